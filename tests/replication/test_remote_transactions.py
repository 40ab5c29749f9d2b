"""Readers on other machines see the records of committed transactions, and wait for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from helpers import flip, wait_until

import commitlog
from commitlog import CommitLog, ConfigError, CorruptionError, OffsetOutOfRangeError, Partition
from commitlog.aborted_index import Aborted, path_beside
from commitlog.clients.producer import Producer
from commitlog.record import TopicPartition
from commitlog.replication import Node, StaticController, TcpTransport
from commitlog.replication.messages import Message, Read, ReadBatches
from commitlog.replication.ports import Reply
from commitlog.replication.remote import committed_read, remote_partition
from commitlog.replication.remote.client_service import read_batches
from commitlog.replication.remote.remote_log import RemoteLog
from commitlog.replication.remote.remote_partition import RemotePartition

from .conftest import MakeTransport
from .lone_node import Cluster, LoneNode

Level = Literal["read_committed", "read_uncommitted"]
LEVELS: tuple[Level, Level] = ("read_committed", "read_uncommitted")
NAME = TopicPartition("t", 0)


@pytest.fixture
def node(log: CommitLog, make_transport: MakeTransport) -> Iterator[LoneNode]:
    made = LoneNode(Cluster(log), make_transport())
    yield made
    made.close()


@pytest.fixture
def remote(node: LoneNode) -> Iterator[RemoteLog]:
    with commitlog.connect(node.address) as opened:
        yield opened


@pytest.fixture
def both(log: CommitLog, remote: RemoteLog) -> tuple[Partition, RemotePartition]:
    """One partition, as it is here and as it looks from elsewhere."""
    return log.create_topic("t", config={"file_delete_delay_ms": 0}).partition(0), remote.topic("t")[0]


def begin(log: CommitLog, name: str, *values: bytes) -> Producer:
    """Leave a transaction open."""
    producer = log.producer(transactional_id=name, linger_ms=100_000, acks=1)
    producer.begin_transaction()
    for value in values:
        producer.send("t", value)
    producer.flush()
    return producer


def transacted(log: CommitLog, seed: int, count: int = 120) -> list[Producer]:
    """Append to "t" in and outside transactions; returns the producers whose transactions are open."""
    random, partition = Random(seed), log.topic("t").partition(0)
    open_ones: list[Producer] = []
    for number in range(count):
        chance = random.random()
        if chance < 0.3 and len(open_ones) < 4:
            open_ones.append(begin(log, f"{seed}-{number}", b"%d" % number, b"again"))
        elif chance < 0.6 and open_ones:
            one = random.choice(open_ones)
            one.send("t", b"more %d" % number, timestamp=1000 + number)
            one.flush()
        elif chance < 0.75 and open_ones:
            ended = open_ones.pop(random.randrange(len(open_ones)))
            (ended.commit_transaction if random.random() < 0.5 else ended.abort_transaction)()
            ended.close()
        elif chance < 0.8:
            partition.roll()
        else:
            partition.append_many([b"plain %d" % number, b"x" * random.randrange(200)], timestamps=[5, 1000])
    return open_ones


def seen_by(partition: Any, level: Level) -> dict[str, Any]:
    """What a reader gets by each method."""
    start, end = partition.start_offset, partition.end_offset(level)
    got = []
    for offset in range(start, end):
        got.append(partition.get(offset, isolation_level=level))
    return {
        "offsets": (
            start,
            end,
            partition.last_stable_offset,
            partition.high_watermark,
            partition.next_offset,
        ),
        "records": list(partition.records(isolation_level=level)),
        "from the middle": list(partition.records((start + end) // 2, isolation_level=level)),
        "batches": [record for one in partition.batches(isolation_level=level) for record in one.records()],
        "combined": [
            record for one in partition.combined_batches(isolation_level=level) for record in one.records()
        ],
        "arrow": partition.to_arrow(isolation_level=level).to_pydict(),
        "reader": partition.to_reader(isolation_level=level).read_all().to_pydict(),
        "each": got,
        "count": partition.count_records(start, isolation_level=level),
        "lag": [partition.lag(offset, isolation_level=level) for offset in (start, (start + end) // 2, end)],
        "times": [
            partition.offset_for_timestamp(time, isolation_level=level) for time in (0, 6, 1050, 1 << 60)
        ],
        "has transactions": partition.has_transactions,
    }


@pytest.mark.parametrize("read_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_every_reader_sees_from_afar_what_it_sees_here(
    log: CommitLog,
    both: tuple[Partition, RemotePartition],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    read_bytes: int,
) -> None:
    monkeypatch.setattr(remote_partition, "_READ_BYTES", read_bytes)
    partition, far = both
    open_ones = transacted(log, seed)
    for _ in range(2):
        for level in LEVELS:
            here, there = seen_by(partition, level), seen_by(far, level)
            for what, found in here.items():
                assert there[what] == found, what
        for one in open_ones:
            one.abort_transaction()
    assert seen_by(far, "read_committed")["records"] != seen_by(far, "read_uncommitted")["records"]


def test_the_latest_value_of_each_key_is_a_committed_one(
    log: CommitLog, both: tuple[Partition, RemotePartition]
) -> None:
    _, far = both
    with log.transaction() as transaction:
        transaction.append("t", b"one", key=b"k")
    with pytest.raises(KeyError), log.transaction() as transaction:
        transaction.append_many("t", [bytes(600_000)] * 2 + [b"two"], keys=[b"k"] * 3)  # is written at once
        raise KeyError
    assert far.next_offset > 2
    assert far.latest()[b"k"] == b"one"
    assert far.latest(isolation_level="read_uncommitted")[b"k"] == b"two"


def test_what_compaction_has_rewritten_is_read_as_here(log: CommitLog, remote: RemoteLog) -> None:
    config = {"cleanup_policy": "compact", "file_delete_delay_ms": 0, "min_compaction_lag_ms": 0}
    partition = log.create_topic("t", config=config).partition(0)
    for number in range(20):
        producer = log.producer(transactional_id="p", acks=1)
        producer.begin_transaction()
        for key in range(5):
            producer.send("t", b"%d" % number, key=b"%d" % key)
        producer.flush()
        (producer.commit_transaction if number % 3 == 0 else producer.abort_transaction)()
        producer.close()
        if number % 5 == 0:
            partition.roll()
    partition.roll()
    partition.compact()
    far = remote.topic("t")[0]
    for level in LEVELS:
        assert seen_by(far, level) == seen_by(partition, level)


# --- waiting


def test_a_long_poll_waits_for_the_marker(
    log: CommitLog, both: tuple[Partition, RemotePartition], node: LoneNode
) -> None:
    partition, far = both
    producer = begin(log, "p", b"x")
    assert far.wait_for(0, 30, isolation_level="read_uncommitted")
    assert not far.wait_for(0, 0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(far.wait_for, 0, 30)
        wait_until(lambda: node.service._waiting)
        producer.send("t", b"y")
        producer.flush()
        partition.append(b"plain")  # it lies above the open transaction
        assert node.service._waiting
        producer.commit_transaction()
        assert waiting.result(30)
    assert [record.value for record in far.records()] == [b"x", b"y", b"plain"]


def test_reads_beyond_the_stable_offset_get_nothing_and_no_error(
    log: CommitLog, both: tuple[Partition, RemotePartition]
) -> None:
    _, far = both
    begin(log, "p", b"x", b"y")
    assert (far.last_stable_offset, far.high_watermark) == (0, 2)
    assert list(far.records()) == list(far.records(1)) == []
    with pytest.raises(OffsetOutOfRangeError):
        far.get(0)
    with pytest.raises(OffsetOutOfRangeError):
        list(far.records(3))
    assert far.readable_range() == (0, 0)
    assert far.readable_range(isolation_level="read_uncommitted") == (0, 2)


# --- what is sent


def read(partition: Partition, offset: int = 0, max_bytes: int = 1 << 20, **options: bool) -> ReadBatches:
    return read_batches(partition, Read(NAME, "", offset, max_bytes, 0, **options))


def test_what_is_not_decided_is_not_sent_to_readers_of_committed_records(
    log: CommitLog, both: tuple[Partition, RemotePartition]
) -> None:
    partition, _ = both
    for number in range(100):
        partition.append(b"%d" % number)
    whole = read(partition)
    begin(log, "p", b"x" * 1000)
    partition.append(b"after")
    again = read(partition)
    assert (
        (again.end_offset, again.data.size) == (whole.end_offset, whole.data.size) == (100, whole.data.size)
    )
    assert read(partition, 100).data.size == 0
    assert read(partition, committed=False).end_offset == 102


def test_only_what_is_aborted_among_the_batches_is_named(
    log: CommitLog, both: tuple[Partition, RemotePartition]
) -> None:
    partition, _ = both
    ids = []
    for number in range(5):
        producer = begin(log, f"p{number}", b"x")  # at 2 * number, its marker follows
        ids.append(producer.producer_id)
        producer.abort_transaction()
    assert read(partition).aborted == tuple(Aborted(ids[one], 2 * one, 2 * one + 1) for one in range(5))
    assert read(partition, 4, max_bytes=1).aborted == (Aborted(ids[2], 4, 5),)
    assert read(partition, 5, max_bytes=1).aborted == ()
    assert read(partition, committed=False).aborted == ()
    assert read(partition, 10).aborted == ()


def test_an_answer_names_no_more_aborted_transactions_than_a_client_believes(
    log: CommitLog, both: tuple[Partition, RemotePartition], node: LoneNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_read, "MOST_ABORTED", 3)
    partition, far = both
    answers: list[ReadBatches] = []

    def note(message: Message, reply: Reply) -> bool:
        def noted(answer: Message) -> None:
            if isinstance(answer, ReadBatches):
                answers.append(answer)
            reply(answer)

        node.service.handle(message, noted)
        return True

    node.intercept = note
    open_ones = [begin(log, f"open {number}", b"open") for number in range(5)]
    for number in range(20):
        producer = begin(log, f"p{number}", b"aborted")
        producer.abort_transaction()
        partition.append(b"%d" % number)
    for one in open_ones:
        one.abort_transaction()
    assert [record.value for record in far.records()] == [b"%d" % number for number in range(20)]
    assert max(len(answer.aborted) for answer in answers) == 3


def test_damage_that_may_hide_a_marker_is_met_by_remote_readers_as_well(
    log: CommitLog, both: tuple[Partition, RemotePartition]
) -> None:
    partition, far = both
    partition.append(b"plain")
    producer = begin(log, "p", b"aborted")
    producer.abort_transaction()
    partition.append(b"later")
    partition.roll()
    first = partition.segments[0]
    markers = [place for place, header in first.headers() if header.is_marker]
    Path(path_beside(first.path)).unlink()
    flip(first.path, markers[0] + 70)
    partition._state._aborted = None  # as in a process that has not seen the marker
    for reader in (partition, far):
        records = reader.records()
        assert next(records).value == b"plain"
        with pytest.raises(CorruptionError):
            list(records)
    with pytest.raises(CorruptionError):
        far.get(1)


# --- what is refused


def test_transactions_need_the_process_that_has_the_log(remote: RemoteLog) -> None:
    with pytest.raises(ConfigError, match=r"transactional_id = 'p'.*the process that has the log"):
        remote.producer(transactional_id="p")
    with pytest.raises(ConfigError, match="the process that has the log"):
        remote.producer()
    with pytest.raises(ConfigError, match="transactions need the process that has the log"):
        remote.transaction()


# --- logs that are served


@pytest.mark.parametrize("mode", ["w", "shared"])
def test_a_served_log_is_read_as_it_is_read_here(tmp_path: Path, mode: Literal["w", "shared"]) -> None:
    with commitlog.open(tmp_path, mode=mode) as log:
        partition = log.create_topic("t").partition(0)
        with commitlog.serve(log) as server, commitlog.connect(server.address) as remote:
            far = remote.topic("t")[0]
            open_ones = transacted(log, 5, 60)
            for level in LEVELS:
                assert seen_by(far, level) == seen_by(partition, level)
            for one in open_ones:
                one.commit_transaction()
            assert seen_by(far, "read_committed") == seen_by(partition, "read_committed")


# --- followers


@pytest.fixture
def nodes(tmp_path: Path, make_transport: Callable[..., TcpTransport]) -> Iterator[dict[int, Node]]:
    """Two nodes over sockets."""
    controller, made = StaticController(), {}
    settings = {"replica_fetch_wait_max_ms": 100, "replica_fetch_backoff_ms": 20}
    for node_id in (1, 2):
        log = commitlog.open(tmp_path / str(node_id))
        made[node_id] = Node(log, make_transport(), controller, node_id, settings).start()
    made[1].create_topic("t", 1, 2)
    yield made
    for node in made.values():
        node.stop(hand_over=False)
        node.log.close()
    controller.close()


def test_readers_at_a_follower_see_what_is_committed_there(nodes: dict[int, Node]) -> None:
    leader = nodes[nodes[1].wait_for_leader(NAME)]
    wait_until(lambda: leader.leads(NAME))
    follower = next(node for node in nodes.values() if node is not leader)
    wait_until(lambda: follower.log.topics() == ["t"])
    here, copy = (node.log.topic("t").partition(0) for node in (leader, follower))
    with leader.log.transaction(sync=True) as transaction:
        transaction.append("t", b"committed")
    begin(leader.log, "aborted", b"aborted").abort_transaction()
    producer = begin(leader.log, "open", b"open")
    wait_until(lambda: copy.high_watermark == here.next_offset)
    assert follower.address is not None
    with commitlog.connect(follower.address, read_from="any") as remote:
        far = remote.topic("t")[0]
        for level in LEVELS:
            assert seen_by(far, level) == seen_by(here, level) == seen_by(copy, level)
        assert [record.value for record in far.records()] == [b"committed"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(far.wait_for, 4, 30)
            producer.commit_transaction(sync=True)
            assert waiting.result(30)
        assert [record.value for record in far.records()] == [b"committed", b"open"]
