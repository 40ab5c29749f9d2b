"""Threads add records to a batch without a lock: none is lost, doubled, out of order or told wrongly of.

The clock is read after a record gets its ticket and before it joins the batch: a test that puts its own clock
there decides what another thread does meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import contents

from commitlog import ClosedError, CommitLog, Partition, Producer, RecordFuture

NEVER = 10**9  # a linger that does not end


@pytest.fixture
def topic(log: CommitLog) -> Any:
    return log.create_topic("t", config={"flush_ms": -1})


@pytest.fixture
def partition(topic: Any) -> Partition:
    partition: Partition = topic.partition(0)
    return partition


@pytest.fixture
def producer(log: CommitLog, topic: Any) -> Iterator[Producer]:
    with log.producer(linger_ms=NEVER, batch_size=64 * 20) as producer:
        yield producer


class Held:
    """A clock that does something else first, the next time it is read."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] | None = None
        self.seconds = 1.5e9

    def __call__(self) -> float:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.seconds += 1
        return self.seconds


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    clock = Held()
    monkeypatch.setattr("commitlog.clients.producer.now", clock)
    return clock


def check(partition: Partition, futures: dict[bytes, RecordFuture]) -> None:
    """Every record is there once, and where its future says."""
    found = {record.value: (record.offset, record.timestamp) for record in contents(partition)}
    told = {value: future.result() for value, future in futures.items()}
    assert found == {value: (where.offset, where.timestamp) for value, where in told.items()}
    assert partition.next_offset == len(futures)


def test_a_record_that_is_overtaken_comes_behind_and_its_future_knows(
    producer: Producer, partition: Partition, held: Held
) -> None:
    futures = {b"first": producer.send("t", b"first")}

    def overtake() -> None:
        for value in (b"fast1", b"fast2"):
            futures[value] = producer.send("t", value)

    held.meanwhile = overtake
    futures[b"slow"] = producer.send("t", b"slow")
    futures[b"last"] = producer.send("t", b"last")
    producer.flush()
    assert [record.value for record in contents(partition)] == [
        b"first",
        b"fast1",
        b"fast2",
        b"slow",
        b"last",
    ]
    check(partition, futures)


def test_headers_partitions_and_callbacks_stay_with_a_record_that_overtakes(
    log: CommitLog, held: Held
) -> None:
    topic = log.create_topic("two", partitions=2)
    told = []
    with log.producer(linger_ms=NEVER) as producer:
        producer.send("two", b"first", partition=0)

        def overtake() -> None:
            producer.send(
                "two", b"fast", headers=[("h", b"1")], partition=1, timestamp=5,
                on_delivery=lambda metadata, _: told.append(metadata),
            )  # fmt: skip

        held.meanwhile = overtake
        producer.send("two", b"slow")
    (record,) = [one for one in contents(topic.partition(1)) if one.headers]
    assert (record.value, record.headers, record.timestamp) == (b"fast", (("h", b"1"),), 5)
    assert [(one.partition, one.offset, one.timestamp) for one in told] == [(1, record.offset, 5)]


@pytest.mark.parametrize("sent_before", [1, 5])
def test_a_record_whose_batch_is_closed_before_it_gets_there_goes_into_the_next(
    producer: Producer, partition: Partition, held: Held, sent_before: int
) -> None:
    futures = {b"%05d" % number: producer.send("t", b"%05d" % number) for number in range(sent_before)}
    held.meanwhile = producer.flush
    futures[b"slow."] = producer.send("t", b"slow.")
    assert partition.next_offset == sent_before
    assert not futures[b"slow."].done()
    futures[b"last."] = producer.send("t", b"last.")
    producer.flush()
    assert [len(batch) for batch in partition.batches()] == [sent_before, 2]
    check(partition, futures)


def test_a_record_may_be_held_up_while_many_batches_pass(
    producer: Producer, partition: Partition, held: Held
) -> None:
    futures = {b"first": producer.send("t", b"first")}

    def overtake() -> None:
        for number in range(100):
            futures[b"%05d" % number] = producer.send("t", b"%05d" % number)

    held.meanwhile = overtake
    futures[b"slow."] = producer.send("t", b"slow.")
    producer.flush()
    assert len(list(partition.batches())) > 3
    check(partition, futures)


def test_a_record_that_is_held_up_until_the_producer_is_closed_is_refused(
    producer: Producer, partition: Partition, held: Held
) -> None:
    producer.send("t", b"first")
    held.meanwhile = producer.close
    with pytest.raises(ClosedError):
        producer.send("t", b"slow.")
    assert [record.value for record in contents(partition)] == [b"first"]


def test_a_send_that_is_interrupted_leaves_nothing_behind(
    producer: Producer, partition: Partition, held: Held
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    futures = {}
    for number in range(50):
        if number % 3 == 0:
            held.meanwhile = interrupt
            with pytest.raises(KeyboardInterrupt):
                producer.send("t", b"never")
        futures[b"%05d" % number] = producer.send("t", b"%05d" % number)
    producer.flush()
    check(partition, futures)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize(
    "settings", [{"batch_size": 2_000}, {"linger_ms": 0}, {"linger_ms": 0, "acks": "all"}]
)
def test_threads_that_share_a_producer_are_all_told_right(
    log: CommitLog, partitions: int, settings: dict[str, Any]
) -> None:
    topic = log.create_topic("many", partitions=partitions)
    futures: dict[bytes, RecordFuture] = {}

    def work(name: int) -> None:
        for number in range(400):
            value = b"%d %d" % (name, number)
            large = value + bytes(number * 7) if number % 50 == 0 else value
            headers = [("n", value)] if number % 31 == 0 else None
            futures[value] = shared.send("many", large, key=b"%d" % name, headers=headers)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads are held up as often as can be
    try:
        with log.producer(**settings) as shared:
            threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    seen: dict[int, list[int]] = {}
    for partition in topic.partitions:
        for record in contents(partition):
            value = record.value.rstrip(b"\0")
            name, number = map(int, value.split())
            seen.setdefault(name, []).append(number)
            where = futures[value].result()
            assert (where.partition, where.offset) == (topic.partitions.index(partition), record.offset)
            assert where.timestamp == record.timestamp
            assert record.headers == ((("n", value),) if number % 31 == 0 else ())
    assert seen == {name: list(range(400)) for name in range(4)}
