"""Staged files that travel to the node of a log; and commitlog.serve(), which makes a node of any log."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from helpers import CODECS, full_after, names, stage, tree

import commitlog
from commitlog import CommitLog, StagedFile, files
from commitlog.batches.staged import Claim
from commitlog.errors import (
    AuthenticationError,
    CommitLogError,
    ConfigError,
    ConnectionFailedError,
    CorruptionError,
    DiskFullError,
    InvalidRecordError,
    NotJoinedError,
    ReplicationTimeoutError,
    TopicReplacedError,
    UnfinishedPublicationError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.publishing.receiver import Receiver
from commitlog.record import TopicPartition
from commitlog.replication import Node, StaticController, TcpTransport
from commitlog.replication.log_server import LogServer
from commitlog.replication.messages import (
    Append,
    Bytes,
    Describe,
    FindOffset,
    Message,
    Publish,
    Published,
    Read,
    SentFile,
    Stage,
    Staged,
)
from commitlog.replication.ports import Handler, Reply
from commitlog.replication.refusals import refused
from commitlog.replication.remote import client_service, remote_output
from commitlog.replication.remote.remote_log import RemoteLog
from commitlog.replication.remote.remote_output import sent_file
from commitlog.replication.remote.router import Pending


class Interrupted:
    """A server whose connections end before a request is handled, or before it is answered."""

    def __init__(self, server: LogServer) -> None:
        transport: Any = server._transport
        self.handle, self.transport = server._clients.handle, transport
        self.asked: list[Message] = []
        self.lose_request: list[type] = []
        self.lose_answer: list[type] = []
        self.before: dict[type, Callable[[], None]] = {}
        transport._handle = self._handle

    def _handle(self, message: Message, reply: Reply) -> None:
        self.asked.append(message)
        kind = type(message)
        self.before.pop(kind, lambda: None)()
        if kind in self.lose_request:
            self.lose_request.remove(kind)
            end_connections(self.transport)
        elif kind in self.lose_answer:
            self.lose_answer.remove(kind)
            self.handle(message, lambda answer: None)
            end_connections(self.transport)
        else:
            self.handle(message, reply)


def end_connections(transport: Any) -> None:
    for connection in list(transport._incoming):
        connection.end(ConnectionFailedError("a test", "ended it"))


@pytest.fixture
def log(log: CommitLog) -> CommitLog:
    log.create_topic("t", partitions=3)
    return log


@pytest.fixture
def server(log: CommitLog) -> Iterator[LogServer]:
    with commitlog.serve(log) as server:
        yield server


@pytest.fixture
def remote(server: LogServer) -> Iterator[RemoteLog]:
    with commitlog.connect(server.address) as remote:
        yield remote


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_output, "_CHUNK_BYTES", 1000)


def sent(remote: RemoteLog, partition: int = 0, epoch: int = 0, size: int = 100, mark: int = 0) -> StagedFile:
    """A file of 50 records that was sent to the node."""
    values = [b"%d-%d" % (mark, number) + b"." * size for number in range(50)]
    return stage(remote, "t", partition, values, claim=("query", epoch))  # type: ignore[arg-type]


def staged_names(log: CommitLog) -> list[str]:
    return names(os.path.join(log.path, "staging"))


def count(log: CommitLog) -> list[int]:
    return [partition.next_offset for partition in log.topic("t")]


# --- what it is for ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_records_staged_from_afar_are_published_once(log: CommitLog, remote: RemoteLog, codec: str) -> None:
    log.topic("t").alter_config(compression_type=codec)
    rows = [b"%d" % number * 30 for number in range(30_000)]
    with remote.stage("t", 1, txn_id="query", epoch=7) as writer:
        for first in range(0, 30_000, 10_000):
            writer.append(pa.table({"value": pa.array(rows[first : first + 10_000], pa.binary())}))
        staged = writer.finish()
    assert staged.size_bytes == os.path.getsize(f"{log.path}/{staged.path}")
    assert remote.publish("query", 7, [staged, sent(remote, 2, 7)])
    assert not remote.publish("query", 7, [staged])
    assert [record.value for record in log.topic("t")[1].records()] == rows
    assert count(log) == [0, 30_000, 50]
    assert log.published("query") == 7
    assert staged_names(log) == []
    assert all(one.durable_offset == one.next_offset for one in log.topic("t"))


@pytest.mark.usefixtures("small_chunks")
def test_a_file_of_many_chunks_is_the_same_file(log: CommitLog, remote: RemoteLog, tmp_path: Path) -> None:
    staged = sent(remote, size=1_000)
    here = stage(log, "t", 0, [b"%d-%d" % (0, number) + b"." * 1_000 for number in range(50)])
    assert staged.size_bytes == here.size_bytes > 40 * remote_output._CHUNK_BYTES
    assert remote.publish("query", 0, [staged])
    assert [len(record.value) for record in log.topic("t")[0].records()] == [
        len(b"0-%d" % number) + 1_000 for number in range(50)
    ]


def test_an_empty_file_and_an_empty_epoch_are_published(log: CommitLog, remote: RemoteLog) -> None:
    with remote.stage("t", 0, txn_id="query", epoch=0) as writer:
        staged = writer.finish()
    assert remote.publish("query", 0, [staged])
    assert remote.publish("query", 1, [])
    assert not remote.publish("query", 1, [])
    assert count(log) == [0, 0, 0]


def test_an_epoch_that_is_given_up_leaves_nothing(log: CommitLog, remote: RemoteLog) -> None:
    sent(remote)
    unfinished = remote.stage("t", 1, txn_id="query", epoch=0)
    unfinished.append(pa.table({"value": pa.array([os.urandom(100) for _ in range(20_000)], pa.binary())}))
    unfinished.discard()
    kept = sent(remote, epoch=1)
    remote.discard("query", 0)
    assert [f"staging/{name}" for name in staged_names(log)] == [kept.path]


def test_what_other_attempts_sent_is_removed_with_the_epoch(log: CommitLog, remote: RemoteLog) -> None:
    sent(remote)
    unfinished = remote.stage("t", 1, txn_id="query", epoch=0)
    unfinished.append(pa.table({"value": pa.array([os.urandom(100) for _ in range(20_000)], pa.binary())}))
    assert remote.publish("query", 0, [sent(remote)])
    assert staged_names(log) == []
    assert count(log) == [50, 0, 0]
    with pytest.raises(CorruptionError, match="were not received"):
        unfinished.finish()


# --- what is refused --------------------------------------------------------------------------------


def test_names_that_do_not_exist_are_refused(remote: RemoteLog) -> None:
    with pytest.raises(UnknownTopicError):
        remote.stage("nothing", 0, txn_id="query", epoch=0)
    with pytest.raises(UnknownPartitionError):
        remote.stage("t", 3, txn_id="query", epoch=0)


def test_a_topic_that_was_made_again_is_refused(log: CommitLog, remote: RemoteLog) -> None:
    staged = sent(remote)
    log.delete_topic("t")
    log.create_topic("t", partitions=3)
    with pytest.raises(TopicReplacedError):
        remote.publish("query", 0, [staged])
    assert count(log) == [0, 0, 0]


def test_a_topic_that_was_deleted_ends_a_publication_to_others_too(
    log: CommitLog, server: LogServer, remote: RemoteLog
) -> None:
    log.create_topic("other")
    other = stage(remote, "other", 0, [b"x"], claim=("query", 0))  # type: ignore[arg-type]
    staged = [sent(remote), other]
    broken = Interrupted(server)
    broken.before[Publish] = lambda: log.delete_topic("other")
    with pytest.raises(UnknownTopicError, match="other"):
        remote.publish("query", 0, staged)
    assert sum(isinstance(message, Publish) for message in broken.asked) == 1
    assert count(log) == [0, 0, 0]


def test_a_damaged_file_is_refused_before_it_is_published(log: CommitLog, remote: RemoteLog) -> None:
    staged = sent(remote)
    path = Path(log.path, staged.path)
    raw = bytearray(path.read_bytes())
    raw[-20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptionError):
        remote.publish("query", 0, [staged])
    assert count(log) == [0, 0, 0]


def ask(server: LogServer, message: Message) -> CommitLogError | Message:
    """What the server answers to a client that sends what it likes."""
    answers: list[Message] = []
    server._clients.handle(message, answers.append)
    return answers[0]


def made_up(log: CommitLog, claim: Claim | None = None, **changes: Any) -> SentFile:
    topic_id = log.topic("t").topic_id
    file = StagedFile("t", 0, 7, 0, 0, 0, topic_id, claim or Claim.of("query", 0))
    return replace(sent_file(file), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../../../../tmp/outside"}, {"file": "0" * 16}, {"file": ""}, {"size_bytes": -1},
        {"records": -1}, {"name": TopicPartition("__publications", 0)}, {"name": TopicPartition("t", 9)},
        {"topic_id": "x"}, {"name": TopicPartition("../t", 0)},
    ],
    ids=str,
)  # fmt: skip
def test_a_hostile_name_or_size_leaves_nothing_behind(
    log: CommitLog, server: LogServer, changes: dict[str, Any]
) -> None:
    before = tree(Path(log.path))
    file = made_up(log, **changes)
    for message in (Stage(file, 0, Bytes(b"x" * 100)), Stage(file, 0), Publish("query", 0, (file,))):
        answer = ask(server, message)
        assert type(answer).__name__ == "Refused", answer
    assert tree(Path(log.path)) == before
    assert count(log) == [0, 0, 0]


def test_bytes_that_are_no_batches_are_never_staged(log: CommitLog, server: LogServer) -> None:
    file = made_up(log, size_bytes=100, records=1)
    assert ask(server, Stage(file, 0, Bytes(b"x" * 100))) == Staged()
    assert ask(server, Stage(file, 100)).error == "CorruptionError"  # type: ignore[union-attr]
    assert ask(server, Publish("query", 0, (file,))).error == "CorruptionError"  # type: ignore[union-attr]
    assert ask(server, Stage(file, 100, Bytes(b"more"))) == Staged()
    assert ask(server, Stage(file, 104)).error == "CorruptionError"  # type: ignore[union-attr]
    assert not any(name.endswith(".staged") for name in staged_names(log))


def test_topics_of_the_log_itself_are_not_served(log: CommitLog, server: LogServer) -> None:
    log.publish("query", 0, [])
    log.topic("t")[0].append(b"forged", key=b"query")
    name = TopicPartition("__publications", 0)
    topic_id = log.topic("__publications").topic_id or ""
    batch = log.topic("t")[0].read_replica(0, 1 << 20).data
    forged = Append(name, topic_id, 1, 1_000, batch)
    for message in (forged, Read(name, topic_id, 0, 1 << 20, 0), FindOffset(name, topic_id, 0)):
        assert ask(server, message) == refused(UnknownTopicError("__publications"))
    assert log.topic("__publications")[0].next_offset == 1


def test_a_topic_that_is_deleted_meanwhile_does_not_hide_the_others(
    log: CommitLog, remote: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "topics", lambda: ["deleted", "t"])
    assert remote.topics() == ["t"]
    assert len(remote.topic("t")) == 3


class Eager(TcpTransport):
    """A transport on which a client asks before serve() has told the server its address."""

    answers: list[Message]

    def serve(self, handle: Handler) -> str:
        self.answers = []
        handle(Describe(()), self.answers.append)
        return super().serve(handle)


def test_a_client_that_asks_too_early_is_told_to_ask_again(log: CommitLog) -> None:
    transport = Eager()
    with LogServer(log, transport):
        assert transport.answers == [refused(NotJoinedError(0, "it is starting"))]


def test_a_file_without_bytes_has_no_records(log: CommitLog, server: LogServer) -> None:
    answer = ask(server, Publish("query", 0, (made_up(log, records=5),)))
    assert answer.error == "CorruptionError"  # type: ignore[union-attr]
    assert log.unfinished_publications() == []
    assert log.publish("query", 0, [])


def test_a_chunk_from_the_middle_of_nothing_is_refused(log: CommitLog, server: LogServer) -> None:
    answer = ask(server, Stage(made_up(log), 1 << 60, Bytes(b"x")))
    assert answer.error == "CorruptionError"  # type: ignore[union-attr]
    assert "were not received" in str(answer)
    assert staged_names(log) == []


def test_records_that_the_topic_refuses_are_refused_by_the_node_too(
    log: CommitLog, remote: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("keyed", config={"cleanup_policy": "compact"})
    writer = remote.stage("keyed", 0, txn_id="query", epoch=0)
    object.__setattr__(writer._rules, "keyed", False)  # a client that does not check
    writer.append(pa.table({"value": pa.array([b"x"])}))
    with pytest.raises(InvalidRecordError, match="needs a key"):
        writer.finish()
    assert not any(name.endswith(".staged") for name in staged_names(log))


def test_a_log_that_is_only_read_is_not_served(log_path: Path, log: CommitLog) -> None:
    with (
        commitlog.open(log_path, mode="r") as reader,
        pytest.raises(ConfigError, match="must be open for writing"),
    ):
        commitlog.serve(reader)


def test_topics_are_created_where_the_log_is_open(remote: RemoteLog) -> None:
    with pytest.raises(ConfigError, match="belongs to the process that serves it"):
        remote.create_topic("more")


def test_an_epoch_that_no_message_can_have_is_refused_at_once(remote: RemoteLog) -> None:
    for ask_with in (
        lambda epoch: remote.publish("query", epoch, []),
        lambda epoch: remote.discard("query", epoch),
    ):
        for epoch in (-1, 1 << 63):
            with pytest.raises(ConfigError, match="must be a non-negative integer"):
                ask_with(epoch)


def test_more_files_than_a_message_can_name_are_refused_with_what_to_do(
    log: CommitLog, remote: RemoteLog
) -> None:
    topic_id, claim = log.topic("t").topic_id, Claim.of("query", 0)
    staged = [StagedFile("t", 0, number, 0, 0, 0, topic_id, claim) for number in range(50_000)]
    with pytest.raises(ConfigError, match="50000: are too many files for one message"):
        remote.publish("query", 0, staged)


def test_a_server_that_others_reach_needs_a_secret(log: CommitLog) -> None:
    with pytest.raises(ConfigError, match="needs `secret` or `tls`"):
        commitlog.serve(log, "0.0.0.0")
    with commitlog.serve(log, "0.0.0.0", secret=b"s", advertised_host="127.0.0.1") as server:
        with pytest.raises(AuthenticationError):
            commitlog.connect(server.address, secret=b"other")
        with commitlog.connect(server.address, secret=b"s") as remote:
            assert remote.log_id == log.log_id


def test_a_log_with_replicated_topics_is_served_by_its_node_only(tmp_path: Path) -> None:
    transport, controller = TcpTransport(), StaticController()
    with commitlog.open(tmp_path / "log") as log, Node(log, transport, controller, 1) as node:
        node.create_topic("r", partitions=2)
        with pytest.raises(ConfigError, match="start a Node"):
            commitlog.serve(log)
        with commitlog.connect(str(node.address)) as remote:
            staged = stage(remote, "r", 1, [b"x"], claim=("query", 0))  # type: ignore[arg-type]
            assert remote.publish("query", 0, [staged])
            assert [record.value for record in remote.topic("r").records()] == [b"x"]
    controller.close()
    transport.close()


def test_what_is_on_several_nodes_is_refused(tmp_path: Path) -> None:
    controller = StaticController()
    transports = TcpTransport(), TcpTransport()
    with (
        commitlog.open(tmp_path / "one") as one,
        commitlog.open(tmp_path / "two") as two,
        Node(one, transports[0], controller, 1) as first,
        Node(two, transports[1], controller, 2),
    ):
        first.create_topic("spread", partitions=2)
        first.create_topic("copied", replication_factor=2)
        with commitlog.connect(str(first.address)) as remote:
            staged = [
                stage(remote, "spread", number, [b"x"], claim=("query", 0))  # type: ignore[arg-type]
                for number in range(2)
            ]
            with pytest.raises(ConfigError, match="spread-0 and spread-1 are on different nodes"):
                remote.publish("query", 0, staged)
            assert remote.publish("query", 0, staged[:1])
            with pytest.raises(ConfigError, match="use one replica"):
                stage(remote, "copied", 0, [b"x"], claim=("query", 1))  # type: ignore[arg-type]
    controller.close()
    for transport in transports:
        transport.close()


# --- what happens on the way ------------------------------------------------------------------------


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("lost", ["lose_request", "lose_answer"])
@pytest.mark.parametrize("which", [1, 3, 8])
def test_what_is_lost_on_the_way_is_sent_again(
    log: CommitLog, server: LogServer, remote: RemoteLog, lost: str, which: int
) -> None:
    broken = Interrupted(server)
    getattr(broken, lost).extend([Stage] * which)
    staged = sent(remote, size=100)
    getattr(broken, lost).append(Publish)
    remote.publish("query", 0, [staged])  # True or False: its first answer may be lost
    assert count(log) == [50, 0, 0]
    assert sum(isinstance(message, Stage) for message in broken.asked) > which
    assert staged_names(log) == []


class Unanswered(Pending):
    """An answer that comes when somebody waits for it."""

    all: ClassVar[list[Unanswered]] = []

    def __init__(self) -> None:
        super().__init__()
        self.all.append(self)

    def wait(self) -> Message | None:
        if self in self.all:
            self.all.remove(self)
            self(Staged())
        return super().wait()


@pytest.mark.usefixtures("small_chunks")
def test_a_task_with_many_files_does_not_send_more_than_the_node_can_answer_in_time(
    log: CommitLog, remote: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0

    def ask_soon(*_: object) -> Pending:
        nonlocal most
        pending = Unanswered()
        most = max(most, len(Unanswered.all))
        return pending

    outputs = [remote.stage("t", 0, txn_id="query", epoch=0)._output for _ in range(50)]
    monkeypatch.setattr(remote._router, "ask_soon", ask_soon)
    for _ in range(10):
        for output in outputs:
            output.write([b"x" * 1_000], 1_000)
    assert most == 16


@pytest.mark.usefixtures("small_chunks")
def test_connections_that_end_in_the_middle_do_no_harm(
    log: CommitLog, server: LogServer, remote: RemoteLog
) -> None:
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(0.01):
            end_connections(server._transport)

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for epoch in range(10):
            remote.publish("query", epoch, [sent(remote, epoch=epoch, size=200, mark=epoch)])
    finally:
        stop.set()
        cutter.join()
    found = [record.value.split(b".")[0] for record in log.topic("t")[0].records()]
    assert found == [b"%d-%d" % (epoch, number) for epoch in range(10) for number in range(50)]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("adopted", [False, True])
def test_bytes_that_come_again_after_the_publication_change_nothing(
    log: CommitLog, server: LogServer, remote: RemoteLog, adopted: bool
) -> None:
    if adopted:
        log.topic("t").alter_config(segment_bytes=50_000)
    broken = Interrupted(server)
    staged = sent(remote, size=100)
    late = [message for message in broken.asked if isinstance(message, Stage)]
    log.topic("t")[0].append(b"first")
    with crashed_at_publish(late, server):
        assert remote.publish("query", 0, [staged])
    for message in late:  # each of them, in any order, whole files again among them
        ask(server, message)
    assert log.topic("t")[0].verify().damage == ()
    assert count(log) == [51, 0, 0]
    assert not remote.publish("query", 0, [staged])
    assert log.publish("another", 0, [])
    assert staged_names(log) == []


class crashed_at_publish:  # noqa: N801
    """Sends everything again while a publication is under way: adopted, and not yet finished."""

    def __init__(self, late: list[Stage], server: LogServer) -> None:
        self._late, self._server = late, server

    def __enter__(self) -> None:
        from commitlog.publishing.publications import Publications

        self._write = Publications.write

        def write(known: Publications, publication: Any) -> None:
            for message in self._late:
                ask(self._server, message)
            self._write(known, publication)

        Publications.write = write  # type: ignore[method-assign,assignment]

    def __exit__(self, *_: object) -> None:
        from commitlog.publishing.publications import Publications

        Publications.write = self._write  # type: ignore[method-assign]


def test_a_full_disk_is_reported_and_the_file_can_be_sent_again(
    log: CommitLog, remote: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(DiskFullError):
        patch.setattr(files, "write_at", full)
        sent(remote)
    assert remote.publish("query", 0, [sent(remote)])
    assert count(log) == [50, 0, 0]


def test_a_publication_that_the_node_could_not_finish_is_finished_later(
    log: CommitLog, remote: RemoteLog
) -> None:
    staged = [sent(remote, number) for number in range(3)]
    with full_after(1), pytest.raises(UnfinishedPublicationError):
        remote.publish("query", 0, staged)
    assert not remote.publish("query", 0, staged)
    assert count(log) == [50, 50, 50]


def test_a_node_that_is_gone_is_an_error_with_its_address(log: CommitLog) -> None:
    server = commitlog.serve(log)
    with commitlog.connect(server.address, timeout_ms=1_000) as remote:
        writer = remote.stage("t", 0, txn_id="query", epoch=0)
        server.close()
        writer.append(pa.table({"value": pa.array([b"x"])}))
        with pytest.raises((ConnectionFailedError, ReplicationTimeoutError)):
            writer.finish()


SERVER = """
import sys, commitlog
with commitlog.open(sys.argv[1]) as log, commitlog.serve(log, port=int(sys.argv[2])) as server:
    print(server.address, flush=True)
    sys.stdin.read()
"""


def start_server(path: Path, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path), str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


@pytest.mark.parametrize("when", ["before it is asked", "while it is asked"])
def test_a_node_that_is_killed_and_comes_back_publishes_each_epoch_once(
    log_path: Path, log: CommitLog, when: str
) -> None:
    log.close()
    child, address = start_server(log_path)
    port = int(address.rsplit(":", 1)[1])
    with commitlog.connect(address, timeout_ms=60_000) as remote:
        for epoch in range(4):
            staged = [sent(remote, number, epoch=epoch, mark=epoch) for number in range(3)]
            publishing = threading.Thread(target=remote.publish, args=("query", epoch, staged))
            if when == "while it is asked":
                publishing.start()
            child.send_signal(signal.SIGKILL)
            child.communicate()
            child, _ = start_server(log_path, port)
            if when == "before it is asked":
                publishing.start()
            publishing.join()
            assert not remote.publish("query", epoch, staged)
    child.communicate()
    with commitlog.open(log_path, mode="r") as reader:
        for partition in reader.topic("t"):
            found = [record.value.split(b".")[0] for record in partition.records()]
            assert found == [b"%d-%d" % (epoch, number) for epoch in range(4) for number in range(50)]


@pytest.mark.parametrize("hostile", [False, True], ids=["the same bytes", "other bytes"])
def test_bytes_that_a_stopped_server_stores_late_do_not_reach_a_file_that_another_one_finished(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, hostile: bool
) -> None:
    """Two servers of a log: one is stopped when it has opened the file, and the sender turns to the other."""
    log.topic("t").alter_config(segment_bytes=1 << 20)
    log.topic("t")[0].append(b"first")
    staged = stage(log, "t", 0, [os.urandom(1_000) for _ in range(100)], claim=("query", 0))
    raw = Path(log.path, staged.path).read_bytes()
    os.remove(f"{log.path}/{staged.path}")
    stopped, other = Receiver(log.path), Receiver(log.path)
    write_at, wait_for_lock = files.write_at, files.wait_for_lock
    turned = threading.Event()  # the other server is done, or waits

    def finish() -> None:
        other.receive(staged, 0, raw)
        other.finish(staged, lambda path: None)
        assert log.publish("query", 0, [staged])
        turned.set()

    turning = threading.Thread(target=finish)

    def stop(fd: int, parts: Any, size: int, position: int) -> None:
        if threading.current_thread() is not turning and not turning.ident:
            turning.start()
            turned.wait()
        write_at(fd, parts, size, position)

    def wait(fd: int, *, shared: bool = False) -> None:
        if threading.current_thread() is turning and not files.try_lock(fd, shared=shared):
            turned.set()
        wait_for_lock(fd, shared=shared)

    monkeypatch.setattr(files, "write_at", stop)
    monkeypatch.setattr(files, "wait_for_lock", wait)
    stopped.receive(staged, 0, b"?" * len(raw) if hostile else raw)
    turning.join()
    assert log.topic("t")[0].next_offset == 101
    assert log.topic("t")[0].verify().ok


def test_bytes_that_come_while_a_file_is_checked_are_not_in_it(log: CommitLog) -> None:
    staged = stage(log, "t", 0, [b"x" * 100], claim=("query", 0))
    raw = Path(log.path, staged.path).read_bytes()
    os.remove(f"{log.path}/{staged.path}")
    receiver = Receiver(log.path)
    receiver.receive(staged, 0, raw)

    def overwrite() -> None:
        with contextlib.suppress(CorruptionError):  # because the file is finished
            receiver.receive(staged, 0, b"?" * len(raw))

    late = threading.Thread(target=overwrite)

    def check(path: str) -> None:
        with files.Descriptor(os.open(path, os.O_RDONLY)) as fd:
            assert not files.try_lock(fd)
        late.start()

    receiver.finish(staged, check)
    late.join()
    assert Path(log.path, staged.path).read_bytes() == raw
    assert log.publish("query", 0, [staged])


def test_who_reads_next_sees_all_of_what_a_killed_publisher_committed(
    log: CommitLog, remote: RemoteLog
) -> None:
    staged = [stage(log, "t", number, [b"x"] * 2) for number in range(3)]
    with full_after(1), pytest.raises(UnfinishedPublicationError):
        log.publish("query", 0, staged)
    assert count(log) == [2, 0, 0]
    assert len(list(remote.topic("t").records())) == 6
    assert log.unfinished_publications() == []


def test_what_cannot_be_finished_is_read_as_it_is(
    log: CommitLog, remote: RemoteLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client_service, "_FINISH_AGAIN_SECONDS", 1e9)
    staged = [stage(log, "t", number, [b"x"] * 2) for number in range(3)]
    with full_after(1), pytest.raises(UnfinishedPublicationError):
        log.publish("query", 0, staged)
    os.remove(f"{log.path}/{staged[2].path}")
    for _ in range(3):
        assert len(list(remote.topic("t").records())) == 4
    assert caplog.text.count("has an unfinished publication") == 1


def test_a_node_that_was_killed_while_it_published_finishes_when_it_leads_again(tmp_path: Path) -> None:
    controller = StaticController()
    transport = TcpTransport()
    with commitlog.open(tmp_path / "log") as log, Node(log, transport, controller, 1) as node:
        node.create_topic("r", partitions=2)
        with commitlog.connect(str(node.address)) as remote:
            staged = [
                stage(remote, "r", number, [b"x"], claim=("query", 0))  # type: ignore[arg-type]
                for number in range(2)
            ]
            with full_after(1), pytest.raises(UnfinishedPublicationError):
                remote.publish("query", 0, staged)
    transport.close()
    transport = TcpTransport()
    with commitlog.open(tmp_path / "log") as log, Node(log, transport, controller, 1) as node:
        assert log.unfinished_publications() == [("query", 0)]
        leads = [TopicPartition("r", number) for number in range(2)]
        assert transport.wait_for(lambda: all(map(node._core.leads, leads)), 10_000)
        with commitlog.connect(str(node.address)) as remote:
            assert len(list(remote.topic("r").records())) == 2
    controller.close()
    transport.close()


def test_an_answer_is_published_or_refused(log: CommitLog, server: LogServer) -> None:
    assert ask(server, Publish("query", 0, ())) == Published(True)
    assert ask(server, Publish("", 0, ())) == refused(ConfigError("txn_id", "", "must be a non-empty string"))
