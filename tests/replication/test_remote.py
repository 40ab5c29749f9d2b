"""commitlog.connect: remote topics and partitions do what local ones do, whatever happens on the way."""

from __future__ import annotations

import errno
import gc
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import CODECS, contents, wait_until
from hypothesis import given
from property.strategies import columns

import commitlog
from commitlog import CommitLog, CommitLogError, Partition, TopicConfig
from commitlog.batches import encode
from commitlog.errors import (
    AuthenticationError,
    BatchTooLargeError,
    ClosedError,
    ConfigError,
    ConnectionFailedError,
    CorruptionError,
    InvalidRecordError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PartitionFailedError,
    RecordTooLargeError,
    ReplicationTimeoutError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.record import TopicPartition
from commitlog.replication.messages import (
    Append,
    Describe,
    Described,
    DescribedTopic,
    Message,
    Read,
    Refused,
    Submit,
)
from commitlog.replication.ports import Reply
from commitlog.replication.refusals import refused
from commitlog.replication.remote import router
from commitlog.replication.remote.client_service import described, read_batches
from commitlog.replication.remote.remote_log import RemoteLog
from commitlog.replication.remote.remote_partition import RemotePartition

from .conftest import MakeTransport
from .lone_node import Cluster, LoneNode
from .talk import Authority

Connect = Callable[..., RemoteLog]


@pytest.fixture
def cluster(log: CommitLog) -> Cluster:
    return Cluster(log)


@pytest.fixture
def make_node(cluster: Cluster, make_transport: MakeTransport) -> Iterator[Callable[..., LoneNode]]:
    made: list[LoneNode] = []

    def make(**settings: Any) -> LoneNode:
        made.append(LoneNode(cluster, make_transport(**settings)))
        return made[-1]

    yield make
    for node in made:
        node.close()


@pytest.fixture
def node(make_node: Callable[..., LoneNode]) -> LoneNode:
    return make_node()


@pytest.fixture
def connect() -> Iterator[Connect]:
    opened: list[RemoteLog] = []

    def open_one(address: str, **settings: Any) -> RemoteLog:
        opened.append(commitlog.connect(address, **settings))
        return opened[-1]

    yield open_one
    for remote in opened:
        remote.close()


@pytest.fixture
def remote(node: LoneNode, connect: Connect) -> RemoteLog:
    return connect(node.address)


@pytest.fixture
def both(log: CommitLog, remote: RemoteLog) -> tuple[Partition, RemotePartition]:
    """One partition, as it is here and as it looks from elsewhere."""
    return log.create_topic("t").partition(0), remote.topic("t").partition(0)


# --- topics ------------------------------------------------------------------------------------------


def test_topics_are_created_listed_and_deleted(log: CommitLog, remote: RemoteLog) -> None:
    assert remote.topics() == []
    made = remote.create_topic("orders", 3, {"retention.ms": "5"})
    assert (len(made.partitions), made.config.retention_ms) == (3, 5)
    assert log.topic("orders").config.retention_ms == 5
    remote.create_topic("bills", config=TopicConfig(compression_type="zstd"))
    assert remote.topics() == ["bills", "orders"]
    assert remote.topic("bills").config == log.topic("bills").config
    with pytest.raises(TopicExistsError):
        remote.create_topic("orders")
    remote.delete_topic("orders")
    assert log.topics() == ["bills"]
    with pytest.raises(UnknownTopicError):
        remote.topic("orders")
    with pytest.raises(UnknownTopicError):
        remote.delete_topic("orders")


def test_a_wrong_setting_or_name_is_refused_as_it_is_here(remote: RemoteLog) -> None:
    with pytest.raises(ConfigError):
        remote.create_topic("orders", config={"retention_ms": "soon"})
    with pytest.raises(commitlog.errors.InvalidTopicError):
        remote.create_topic("no/slash")


def test_a_partition_that_is_not_there_is_told(remote: RemoteLog) -> None:
    with pytest.raises(UnknownPartitionError):
        remote.create_topic("t").partition(1)


def test_a_remote_topic_is_not_changed_from_afar(remote: RemoteLog) -> None:
    """What cannot be done is not there: an editor, a type checker and Python all say so."""
    topic = remote.create_topic("t")
    assert not hasattr(topic, "add_partitions") and not hasattr(topic, "alter_config")


# --- the same as a local partition -------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_appended_from_afar_is_read_here_and_there(
    log: CommitLog, remote: RemoteLog, codec: str
) -> None:
    log.create_topic("t", config={"compression_type": codec})
    partition = remote.topic("t").partition(0)
    assert partition.append(b"one", key=b"k", headers=[("h", b"x")], timestamp=5) == 0
    assert partition.append_many([b"two" * 50, None], keys=[None, b"l"], timestamps=[6, 7]) == range(1, 3)
    table = pa.table({"value": [b"four", b"five"], "key": [b"k", None]})
    assert partition.append_arrow(table.to_reader()) == range(3, 5)
    here = contents(log.topic("t").partition(0))
    assert [record.value for record in here] == [b"one", b"two" * 50, None, b"four", b"five"]
    assert here[0] == (0, 5, b"k", b"one", (("h", b"x"),))
    assert list(partition.records()) == here


@given(columns(), columns())
def test_random_records_come_back_from_afar(first: dict[str, Any], second: dict[str, Any]) -> None:
    partition, far = _pair()
    start = partition.next_offset
    for one in (first, second):
        far.append_many(**one)
    expected = list(partition.records(start))
    assert list(far.records(start)) == expected
    assert [record for batch in far.batches(start) for record in batch.records()] == expected
    assert far.to_arrow(start).equals(partition.to_arrow(start))
    assert far.to_reader(start).read_all().equals(partition.to_arrow(start))
    middle = start + len(expected) // 2
    assert list(far.records(middle, middle + 3)) == list(partition.records(middle, middle + 3))
    assert far.get(middle) == partition.get(middle)


_shared: list[Any] = []


def _pair() -> tuple[Partition, RemotePartition]:
    return _shared[0]


@pytest.fixture(autouse=True)
def _share(request: pytest.FixtureRequest) -> Iterator[None]:
    if "random_records" in request.node.name:
        _shared.append(request.getfixturevalue("both"))
        yield
        _shared.clear()
    else:
        yield


def fill(partition: Partition, records: int, size: int = 100, a_batch: int = 1000) -> None:
    numbers = count()
    for first in range(0, records, a_batch):
        values = [b"%0*d" % (size, next(numbers)) for _ in range(a_batch)]
        partition.append_many(values, timestamps=range(first, first + a_batch))


def test_a_long_log_of_many_segments_is_read_through(log: CommitLog, remote: RemoteLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 3_000_000}).partition(0)
    fill(partition, 100_000)
    for number in range(3000):
        partition.append(b"single %d" % number)
    assert len(partition.segments) > 3
    far = remote.topic("t").partition(0)
    assert list(far.records()) == list(partition.records())
    assert far.to_arrow().equals(partition.to_arrow())
    assert list(far.records(54_321, 54_400)) == list(partition.records(54_321, 54_400))
    assert [one.values() for one in far.batches(5_500, 7_500)] == [
        one.values() for one in partition.batches(5_500, 7_500)
    ]
    combined = [record for one in far.combined_batches(99_000) for record in one.records()]
    assert combined == list(partition.records(99_000))


def test_a_batch_above_the_read_size_comes_whole(both: tuple[Partition, RemotePartition]) -> None:
    partition, far = both
    values = [os.urandom(1000) for _ in range(5000)]
    partition.append_many(values)
    partition.append(b"last")
    assert [record.value for record in far.records()] == [*values, b"last"]


def test_a_large_append_comes_whole(both: tuple[Partition, RemotePartition]) -> None:
    partition, far = both
    values = [os.urandom(1000) for _ in range(20_000)]
    far.append_many(values)
    assert [record.value for record in partition.records()] == values


def test_offsets_and_times_are_those_of_the_leader(both: tuple[Partition, RemotePartition]) -> None:
    partition, far = both
    fill(partition, 3000)
    partition.trim_before(100)
    for name in ("start_offset", "next_offset", "high_watermark", "durable_offset"):
        assert getattr(far, name) == getattr(partition, name)
    for timestamp in (0, 50, 1500, 2999, 3000):
        assert far.offset_for_timestamp(timestamp) == partition.offset_for_timestamp(timestamp)
    partition.sync()
    assert far.durable_offset == 3000


def test_offsets_outside_are_refused_as_they_are_here(both: tuple[Partition, RemotePartition]) -> None:
    partition, far = both
    fill(partition, 2000)
    partition.trim_before(100)
    for call in (lambda one: list(one.records(99)), lambda one: list(one.records(2001)),
                 lambda one: one.get(99), lambda one: one.get(2000), lambda one: one.get(5000)):  # fmt: skip
        with pytest.raises(OffsetOutOfRangeError) as here:
            call(partition)
        with pytest.raises(OffsetOutOfRangeError) as there:
            call(far)
        assert there.value.args[1:] == here.value.args[1:]
    assert list(far.records(2000)) == []


def test_records_that_compaction_removed_are_none(log: CommitLog, remote: RemoteLog) -> None:
    config = {"cleanup_policy": "compact", "segment_bytes": 4096, "min_cleanable_dirty_ratio": 0}
    partition = log.create_topic("t", config=config).partition(0)
    for number in range(500):
        partition.append(b"%d" % number, key=b"k%d" % (number % 3))
    partition.roll()
    partition.compact()
    far = remote.topic("t").partition(0)
    assert list(far.records()) == list(partition.records())
    assert far.get(0) is None
    assert dict(far.latest().items()) == dict(partition.latest().items())


def test_a_compressed_batch_that_unpacks_to_too_much_is_refused_by_the_leader(
    log: CommitLog, remote: RemoteLog
) -> None:
    partition = log.create_topic("t", config={"compression_type": "zstd"}).partition(0)
    far = remote.topic("t").partition(0)
    with pytest.raises(BatchTooLargeError, match="bytes before compression"):
        far.append_many([bytes(1 << 20)] * 40)
    assert partition.next_offset == 0
    assert far.append_many([bytes(1 << 20)] * 20) == range(20)


def test_arrow_data_that_one_batch_cannot_hold_is_refused(
    log: CommitLog, remote: RemoteLog, node: LoneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t")
    far = remote.topic("t").partition(0)
    monkeypatch.setattr(encode, "MAX_RECORDS", 10)
    with pytest.raises(BatchTooLargeError, match="12 records"):
        far.append_arrow(pa.table({"value": ["x"] * 12}))
    assert not any(isinstance(message, Append) for message in node.asked)


def test_records_that_are_refused_here_are_refused_before_they_are_sent(
    log: CommitLog, remote: RemoteLog, node: LoneNode
) -> None:
    log.create_topic("t", config={"max_message_bytes": 100, "segment_bytes": 1024})
    log.create_topic("keyed", config={"cleanup_policy": "compact"})
    far = remote.topic("t").partition(0)
    with pytest.raises(RecordTooLargeError):
        far.append(bytes(101))
    with pytest.raises(BatchTooLargeError):
        far.append_many([bytes(100)] * 20)
    with pytest.raises(InvalidRecordError):
        far.append("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidRecordError):
        remote.topic("keyed").partition(0).append(b"x")
    assert not any(isinstance(message, Append) for message in node.asked)


def test_the_leader_tells_the_time_where_it_is_to(log: CommitLog, remote: RemoteLog) -> None:
    partition = log.create_topic("t", config={"message_timestamp_type": "LogAppendTime"}).partition(0)
    partition.append(b"before")
    remote.topic("t").partition(0).append_many([b"one", b"two"], timestamps=[1, 2])
    partition.append(b"after")
    times = [record.timestamp for record in partition.records()]
    assert times == sorted(times)
    assert times[1] == times[2]


def test_nothing_appended_from_afar_is_nothing(both: tuple[Partition, RemotePartition]) -> None:
    _, far = both
    assert far.append_many([]) == range(0)
    far.append(b"x")
    assert far.append_many([]) == range(1, 1)


def test_a_synced_append_is_durable(both: tuple[Partition, RemotePartition]) -> None:
    partition, far = both
    far.append(b"x", sync=True)
    assert partition.durable_offset == 1


def test_what_needs_the_files_says_so(both: tuple[Partition, RemotePartition]) -> None:
    with pytest.raises(CommitLogError, match="another machine"):
        both[1].verify()


def test_records_go_to_the_partition_of_their_key_as_they_do_here(log: CommitLog, remote: RemoteLog) -> None:
    keys = [b"k%d" % number for number in range(100)]
    here = log.create_topic("here", 4)
    far = remote.create_topic("far", 4)
    here.append_many(keys, keys=keys)
    assert sum(map(len, far.append_many(keys, keys=keys).values())) == 100
    for mine, theirs in zip(here.partitions, log.topic("far").partitions, strict=True):
        assert [record.key for record in mine.records()] == [record.key for record in theirs.records()]
    for key in keys:
        assert far.append(b"again", key=key)[0] == here.append(b"again", key=key)[0]
    table = pa.table({"value": keys, "key": keys})
    offsets = remote.create_topic("arrow", 4).append_arrow(table)
    assert {number: len(one) for number, one in offsets.items()} == {
        number: sum(1 for _ in one.records()) for number, one in enumerate(log.topic("arrow").partitions)
    }
    assert far.append(b"x", partition=2)[0] == 2
    assert list(far.append_many([b"x"], partition=3)) == [3]


# --- waiting -----------------------------------------------------------------------------------------


def test_who_waits_is_told_of_an_append(both: tuple[Partition, RemotePartition]) -> None:
    partition, far = both
    assert not far.wait_for(0, timeout=0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(far.wait_for, 0, 30)
        partition.append(b"x")
        assert waiting.result(30)
    assert far.wait_for(0)


def test_a_wait_ends_when_its_time_is_over(both: tuple[Partition, RemotePartition]) -> None:
    assert not both[1].wait_for(0, timeout=0.05)


def test_many_wait_for_many_partitions(log: CommitLog, remote: RemoteLog) -> None:
    here = log.create_topic("t", 5)
    far = remote.topic("t")
    with ThreadPoolExecutor(10) as pool:
        waiting = [
            pool.submit(far.partition(number).wait_for, offset, 30)
            for number in range(5)
            for offset in (0, 1)
        ]
        for number in random.Random(3).sample(range(5), 5):
            here.append(b"x", partition=number)
            here.append(b"y", partition=number)
        assert all(one.result(30) for one in waiting)


def test_a_wait_ends_when_the_topic_is_deleted(log: CommitLog, remote: RemoteLog, node: LoneNode) -> None:
    log.create_topic("t")
    far = remote.topic("t").partition(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(far.wait_for, 0, 30)
        wait_until(lambda: node.service._waiting)
        log.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            waiting.result(30)


def test_a_read_that_fails_while_it_waits_does_not_keep_others_from_waiting(
    both: tuple[Partition, RemotePartition], node: LoneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, far = both
    asked = Read(TopicPartition("t", 0), "id", 0, 1000, 30_000)
    answers: list[Message] = []

    def fails(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    node.service.handle(asked, answers.append)
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "read_replica", fails)
        partition.append(b"x")
        wait_until(lambda: answers)
    assert isinstance(answers[0], Refused)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(far.wait_for, 1, 30)
        wait_until(lambda: node.service._waiting)
        partition.append(b"y")
        assert waiting.result(30)


def test_a_node_that_closes_lets_those_who_wait_go(
    both: tuple[Partition, RemotePartition], node: LoneNode
) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(both[1].wait_for, 0, 0.5)
        wait_until(lambda: node.service._waiting)
        node.service.close()
        assert not waiting.result(30)
    assert not any(thread.name == "commitlog-long-poll" for thread in threading.enumerate())


# --- leaders that change, answers that are lost ------------------------------------------------------


@pytest.fixture
def two(make_node: Callable[..., LoneNode]) -> tuple[LoneNode, LoneNode]:
    return make_node(), make_node()


def test_a_client_follows_the_leader(
    log: CommitLog, cluster: Cluster, two: tuple[LoneNode, LoneNode], connect: Connect
) -> None:
    partition = log.create_topic("t").partition(0)
    far = connect(two[0].address).topic("t").partition(0)
    for leader in (0, 1, 0, 1):
        cluster.leader = leader
        far.append(b"to %d" % leader)
        assert far.next_offset == partition.next_offset
        assert isinstance(two[leader].asked[-1], Read)
    assert [record.value for record in far.records()] == [b"to 0", b"to 1", b"to 0", b"to 1"]


def test_a_client_waits_for_a_leader(
    log: CommitLog, cluster: Cluster, two: tuple[LoneNode, LoneNode], connect: Connect
) -> None:
    log.create_topic("t")
    far = connect(two[0].address).topic("t").partition(0)
    cluster.leader = None
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(far.append, b"x")
        wait_until(lambda: sum(isinstance(one, Describe) for one in two[0].asked) > 2)
        cluster.leader = 1
        assert appending.result(30) == 0


def test_a_client_gives_up_when_its_time_is_over(
    log: CommitLog, cluster: Cluster, node: LoneNode, connect: Connect
) -> None:
    log.create_topic("t")
    far = connect(node.address, timeout_ms=50).topic("t").partition(0)
    cluster.leader = None
    with pytest.raises(NotLeaderError):
        far.append(b"x")
    with pytest.raises(NotLeaderError):
        far.get(0)


def test_a_client_goes_on_with_the_node_that_is_left(
    log: CommitLog, cluster: Cluster, two: tuple[LoneNode, LoneNode], connect: Connect
) -> None:
    log.create_topic("t")
    far = connect(two[0].address).topic("t").partition(0)
    far.append(b"one")
    two[0].close()
    cluster.leader = 1
    assert far.append(b"two") == 1
    assert [record.value for record in far.records()] == [b"one", b"two"]


def test_reads_may_go_to_a_follower_that_was_named(
    log: CommitLog, cluster: Cluster, two: tuple[LoneNode, LoneNode], connect: Connect
) -> None:
    log.create_topic("t").append(b"x")
    far = connect(two[1].address, read_from="any").topic("t").partition(0)
    assert [record.value for record in far.records()] == [b"x"]
    assert not any(isinstance(one, Read) for one in two[0].asked)
    assert far.append(b"y") == 1
    assert any(isinstance(one, Append) for one in two[0].asked)


@pytest.mark.parametrize("old_leader", [0, 2], ids=["a zombie itself", "one that is gone"])
def test_a_client_does_not_keep_asking_a_node_that_knows_an_old_state(
    log: CommitLog, cluster: Cluster, make_node: Callable[..., LoneNode], connect: Connect, old_leader: int
) -> None:
    stale, leader, gone = (make_node() for _ in range(3))
    log.create_topic("t")
    cluster.leader = old_leader
    old = described(cluster.state(), ())
    cluster.leader = 1

    def intercept(message: Message, reply: Reply) -> bool:
        if isinstance(message, Describe):
            reply(old)
        elif isinstance(message, Append):
            reply(refused(ReplicationTimeoutError("t-0", 100)))  # nobody fetches from it any more
        return isinstance(message, Describe | Append)

    stale.intercept = intercept
    gone.close()
    far = connect(f"{stale.address},{leader.address}", timeout_ms=10_000).topic("t").partition(0)
    assert far.append(b"x", acks="all") == 0


def test_reads_go_on_at_another_replica_when_the_near_one_has_failed(
    log: CommitLog, two: tuple[LoneNode, LoneNode], connect: Connect
) -> None:
    log.create_topic("t").append(b"x")

    def intercept(message: Message, reply: Reply) -> bool:
        if isinstance(message, Read):
            reply(refused(PartitionFailedError("t-0", "the disk is gone")))
        return isinstance(message, Read)

    two[1].intercept = intercept
    far = connect(two[1].address, read_from="any", timeout_ms=10_000).topic("t").partition(0)
    assert [record.value for record in far.records()] == [b"x"]


def test_what_could_be_read_is_waited_for_when_another_leader_does_not_know_it_yet(
    both: tuple[Partition, RemotePartition], node: LoneNode
) -> None:
    partition, far = both
    for number in range(40):
        partition.append_many([b"%d" % number * 50_000])
    behind = [5, 20, 20]  # high watermarks of new leaders

    def intercept(message: Message, reply: Reply) -> bool:
        if not isinstance(message, Read) or message.max_bytes == 0 or not behind:
            return False
        mark = behind.pop(0)
        whole = message.offset < mark
        found = read_batches(partition, replace(message, max_bytes=1 << 20 if whole else 0))
        reply(replace(found, high_watermark=mark, last_stable_offset=mark))
        return True

    node.intercept = intercept
    assert len(list(far.records(0, 40))) == 40
    assert behind == []


def lose(node: LoneNode, kind: type, times: int, *, done: bool) -> None:
    """Let some answers be lost with their connection; `done` says whether what was asked was done."""
    left = [times]

    def intercept(message: Message, reply: Reply) -> bool:
        if not isinstance(message, kind) or left[0] == 0:
            return False
        left[0] -= 1
        if done:
            node.service.handle(message, lambda answer: None)
        node.break_connections()
        return True

    node.intercept = intercept


def test_an_append_that_may_be_there_is_not_told_to_be_nowhere_as_nobody_leads_any_more(
    log: CommitLog, cluster: Cluster, node: LoneNode, connect: Connect
) -> None:
    partition = log.create_topic("t").partition(0)
    far = connect(node.address, timeout_ms=500).topic("t").partition(0)
    lose(node, Append, 1, done=True)
    lost = node.intercept

    def intercept(message: Message, reply: Reply) -> bool:
        taken = lost(message, reply)
        if taken:
            cluster.leader = None
        return taken

    node.intercept = intercept
    with pytest.raises(ReplicationTimeoutError):  # and not NotLeaderError, which tells that it is not there
        far.append(b"x")
    assert partition.next_offset == 1


def test_an_append_whose_answer_is_lost_is_there_once_though_a_zombie_is_asked_meanwhile(
    log: CommitLog,
    tmp_path: Path,
    make_transport: MakeTransport,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "_SILENT_SECONDS", 0.1)
    with commitlog.open(tmp_path / "zombie") as old_log:
        leader, zombie = (LoneNode(Cluster(one), make_transport()) for one in (log, old_log))
        nodes = {0: zombie.address, 1: leader.address}
        for number, node in enumerate((zombie, leader)):
            node.cluster.log.create_topic("t")
            topic = DescribedTopic("t", "id", {}, (number,), (number,), ((0, 1),), ((0, 1),))
            answering(node, Described("", 0, nodes, (topic,)))
        zombie.cluster.acknowledgement = ReplicationTimeoutError("t-0", 100)  # nobody fetches from it
        far = connect(f"{leader.address},{zombie.address}", timeout_ms=20_000).topic("t").partition(0)
        far.append(b"first", acks="all")
        (first,) = [one for one in leader.asked if isinstance(one, Append)]
        zombie.service.handle(first, lambda answer: None)  # it has this, and nothing since
        far.append(b"second", acks="all")
        described_as = leader.intercept
        lose(leader, Append, 1, done=True)
        lost = leader.intercept
        leader.intercept = lambda message, reply: described_as(message, reply) or lost(message, reply)
        assert far.append(b"third", acks="all") == 2
        assert [record.value for record in log.topic("t").partition(0).records()] == [
            b"first",
            b"second",
            b"third",
        ]
        for node in (leader, zombie):
            node.close()


def answering(node: LoneNode, about: Described) -> None:
    """Let a node tell this of the cluster."""

    def intercept(message: Message, reply: Reply) -> bool:
        if isinstance(message, Describe):
            reply(about)
        return isinstance(message, Describe)

    node.intercept = intercept


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("acks", [1, "all"])
def test_an_append_whose_answer_is_lost_is_there_once(
    both: tuple[Partition, RemotePartition], node: LoneNode, done: bool, acks: Any
) -> None:
    partition, far = both
    for number in range(5):
        lose(node, Append, times=3, done=done)
        assert far.append_many([b"%d" % number] * 10, acks=acks) == range(number * 10, number * 10 + 10)
    assert [record.value for record in partition.records()] == [
        b"%d" % number for number in range(5) for _ in range(10)
    ]


def test_a_read_whose_answer_is_lost_is_read_again(
    both: tuple[Partition, RemotePartition], node: LoneNode
) -> None:
    partition, far = both
    fill(partition, 50_000)
    lose(node, Read, times=5, done=True)
    assert list(far.records()) == list(partition.records())


def test_a_topic_whose_creation_was_not_answered_is_there_once(remote: RemoteLog, node: LoneNode) -> None:
    lose(node, Submit, times=2, done=True)
    assert remote.create_topic("t").name == "t"
    lose(node, Submit, times=2, done=True)
    remote.delete_topic("t")
    assert remote.topics() == []


def test_an_append_that_nobody_answers_says_that_it_may_be_there(
    log: CommitLog, node: LoneNode, connect: Connect
) -> None:
    partition = log.create_topic("t").partition(0)
    far = connect(node.address, timeout_ms=100).topic("t").partition(0)
    far.append(b"one")

    def do_not_answer(message: Message, reply: Reply) -> bool:
        if isinstance(message, Append):
            node.service.handle(message, lambda answer: None)
        return isinstance(message, Append)

    node.intercept = do_not_answer
    with pytest.raises(ReplicationTimeoutError, match="may have been done"):
        far.append(b"two")
    node.intercept = lambda message, reply: False
    assert far.append(b"three") == 2  # and is not taken for the one before
    assert [record.value for record in partition.records()] == [b"one", b"two", b"three"]


def test_a_leader_that_lost_what_it_had_gets_the_next_append_all_the_same(
    both: tuple[Partition, RemotePartition],
) -> None:
    partition, far = both
    for number in range(4):
        far.append(b"%d" % number)
    partition.truncate_from(2)
    assert far.append(b"next") == 2
    assert far.append(b"and on") == 3


def test_acks_all_is_answered_when_the_replicas_have_it_or_do_not(
    both: tuple[Partition, RemotePartition], cluster: Cluster
) -> None:
    _, far = both
    assert far.append(b"x", acks="all") == 0
    cluster.acknowledgement = NotEnoughReplicasError("t-0", 1, 2)
    with pytest.raises(NotEnoughReplicasError):
        far.append(b"y", acks="all")
    assert far.append(b"z", acks=1) == 2


def test_threads_share_a_partition(both: tuple[Partition, RemotePartition]) -> None:
    partition, far = both

    def run(thread: int) -> list[int]:
        return [far.append(b"%d %d" % (thread, number)) for number in range(50)]

    with ThreadPoolExecutor(6) as pool:
        offsets = [offset for found in pool.map(run, range(6)) for offset in found]
    assert sorted(offsets) == list(range(300))
    values = {record.value for record in partition.records()}
    assert values == {b"%d %d" % (thread, number) for thread in range(6) for number in range(50)}


def test_what_was_damaged_is_not_handed_out(both: tuple[Partition, RemotePartition], node: LoneNode) -> None:
    from commitlog.replication.messages import Bytes, ReadBatches

    partition, far = both
    fill(partition, 1000)

    def damage(message: Message, reply: Reply) -> bool:
        def damaged(answer: Message) -> None:
            if isinstance(answer, ReadBatches) and answer.data.size:
                raw = bytearray(answer.data.read())
                raw[len(raw) // 2] ^= 1
                answer = replace(answer, data=Bytes(raw))
            reply(answer)

        node.service.handle(message, damaged)
        return True

    node.intercept = damage
    with pytest.raises(CorruptionError, match="t-0"):
        list(far.records())


# --- connecting --------------------------------------------------------------------------------------


def test_with_tls_and_a_secret(
    log: CommitLog, make_node: Callable[..., LoneNode], connect: Connect, authority: Authority
) -> None:
    fill(log.create_topic("t").partition(0), 20_000)
    node = make_node(tls=authority.tls(), secret=b"s3cret")
    far = connect(node.address, tls=authority.tls(), secret=b"s3cret").topic("t").partition(0)
    assert list(far.records()) == contents(log.topic("t").partition(0))
    with pytest.raises(AuthenticationError):
        connect(node.address, tls=authority.tls(), secret=b"wrong")


def test_nobody_there_is_told(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ConnectionFailedError, match="refused"):
        connect(address, timeout_ms=100)


def test_of_several_addresses_one_that_answers_is_enough(node: LoneNode, connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    assert connect(f"{nobody}, {node.address}").topics() == []


@pytest.mark.parametrize("address", ["", "host", "host:1,", "host:port"])
def test_an_address_that_is_none_is_refused(connect: Connect, address: str) -> None:
    with pytest.raises(ConfigError):
        connect(address)


def test_a_closed_connection_refuses_everything(
    both: tuple[Partition, RemotePartition], remote: RemoteLog
) -> None:
    _, far = both
    remote.close()
    remote.close()
    for call in (
        remote.topics,
        lambda: remote.topic("t"),
        lambda: far.append(b"x"),
        lambda: far.append_many([]),
        lambda: far.get(0),
        far.records,
        lambda: far.wait_for(0, 30),
        far.latest,
    ):
        with pytest.raises(ClosedError):
            call()


def test_closing_leaves_nothing_behind(node: LoneNode, log: CommitLog) -> None:
    log.create_topic("t").append(b"x")

    def come_and_go() -> None:
        with commitlog.connect(node.address) as remote:
            assert remote.topic("t").partition(0).get(0) is not None

    come_and_go()  # the leader keeps handles of its own
    wait_until(lambda: node.transport.counts.incoming == 0)
    gc.collect()
    descriptors, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    come_and_go()
    wait_until(lambda: set(threading.enumerate()) <= threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


def test_importing_commitlog_imports_nothing_of_this() -> None:
    program = (
        "import sys, commitlog; print([one for one in sys.modules if 'ssl' in one or 'replication' in one])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
