"""Records sent one by one are appended in batches, in order and once; all are told what became of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Clock, contents, wait_until

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    CommitLogError,
    ConfigError,
    DiskFullError,
    InvalidRecordError,
    Partition,
    Producer,
    RecordMetadata,
    RecordTooLargeError,
    UnknownTopicError,
)
from commitlog.clients import accumulator
from commitlog.clients.quotas import Quotas
from commitlog.clients.rate_limit import Throttle
from commitlog.errors import BatchTooLargeError, BufferFullError, DeliveryTimeoutError, UnknownPartitionError
from commitlog.partitions.syncer import Syncer
from commitlog.tasks import Task

NEVER = 10**9  # a linger that does not end


@pytest.fixture
def partition(log: CommitLog) -> Partition:
    partition: Partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    return partition


def producers(log: CommitLog, **settings: Any) -> Producer:
    return log.producer(**{"linger_ms": NEVER, **settings})


def test_what_was_sent_is_there_in_order_after_a_flush(log: CommitLog, partition: Partition) -> None:
    with producers(log) as producer:
        futures = [producer.send("t", b"%d" % number, key=b"k", timestamp=number) for number in range(100)]
        assert not any(future.done() for future in futures)
        assert partition.next_offset == 0
        producer.flush()
        assert [future.result() for future in futures] == [
            RecordMetadata("t", 0, number, number) for number in range(100)
        ]
    assert [record.value for record in contents(partition)] == [b"%d" % number for number in range(100)]
    assert len(list(partition.batches())) == 1


def test_a_full_batch_is_appended_by_who_fills_it(log: CommitLog, partition: Partition) -> None:
    with producers(log, batch_size=1_000) as producer:
        for _ in range(10):
            producer.send("t", b"v" * 100)
        assert partition.next_offset == 7


def test_what_has_lingered_is_appended_behind_the_senders_back(log: CommitLog, partition: Partition) -> None:
    with log.producer(linger_ms=1) as producer:
        future = producer.send("t", b"v")
        assert future.result(timeout=30).offset == 0
        assert future.get() == future.result()
        assert future.exception() is None


def test_records_go_to_the_partition_of_their_key_or_the_one_given(log: CommitLog) -> None:
    topic = log.create_topic("many", partitions=5)
    with producers(log) as producer:
        keyed = [producer.send("many", b"%d" % number, key=b"%d" % (number % 17)) for number in range(200)]
        given = [producer.send("many", b"given", partition=number % 5) for number in range(20)]
        producer.flush()
    assert [future.result().partition for future in given] == [number % 5 for number in range(20)]
    for number, future in enumerate(keyed):
        where = future.result()
        record = topic.partition(where.partition).get(where.offset)
        assert (record.value, record.key) == (b"%d" % number, b"%d" % (number % 17))
    by_key = {(b"%d" % (number % 17), future.result().partition) for number, future in enumerate(keyed)}
    assert len(by_key) == 17, "a key has one partition"
    assert sum(partition.next_offset for partition in topic.partitions) == 220


def test_headers_nulls_and_buffers_arrive_as_they_were_sent(log: CommitLog, partition: Partition) -> None:
    changing = bytearray(b"before")
    with producers(log) as producer:
        producer.send("t", None, key=b"deleted")
        producer.send("t", changing, key=memoryview(b"view"), headers=[("h", b"1"), ("n", None)])
        changing[:] = b"after!"
        producer.send("t", b"plain")
    found = [(record.key, record.value, record.headers) for record in contents(partition)]
    expected = [
        (b"deleted", None, ()),
        (b"view", b"before", (("h", b"1"), ("n", None))),
        (None, b"plain", ()),
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"topic": "nowhere"}, UnknownTopicError),
        ({"value": "text"}, InvalidRecordError),
        ({"key": 5}, InvalidRecordError),
        ({"headers": [("h", 5)]}, InvalidRecordError),
        ({"partition": 1}, UnknownPartitionError),
        ({"timestamp": -1}, InvalidRecordError),
        ({"timestamp": 1.5}, InvalidRecordError),
        ({"value": bytes(2 << 20)}, RecordTooLargeError),
    ],
)
def test_a_record_that_cannot_be_sent_is_refused_at_once_and_leaves_the_others_alone(
    log: CommitLog, partition: Partition, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with producers(log) as producer:
        producer.send("t", b"before")
        with pytest.raises(error):
            producer.send(**{"topic": "t", "value": b"v", **arguments})
        producer.send("t", b"after")
    assert [record.value for record in contents(partition)] == [b"before", b"after"]


def test_an_unkeyed_record_is_refused_by_a_compacted_topic(log: CommitLog) -> None:
    log.create_topic("c", config={"cleanup_policy": "compact"})
    with producers(log) as producer, pytest.raises(InvalidRecordError, match="key"):
        producer.send("c", b"v")


# --- acks


def test_acks_all_means_durable(log: CommitLog, partition: Partition) -> None:
    with producers(log, acks="all") as producer:
        future = producer.send("t", b"v")
        producer.flush()
        assert future.done()
        assert partition.durable_offset == 1


def test_acks_1_means_written(log: CommitLog, partition: Partition) -> None:
    with producers(log) as producer:
        future = producer.send("t", b"v")
        producer.flush()
        assert future.result().offset == 0
        assert partition.durable_offset == 0


def test_acks_0_does_not_wait(log: CommitLog, partition: Partition) -> None:
    with producers(log, acks=0) as producer:
        assert producer.send("t", b"v", timestamp=5).result() == RecordMetadata("t", -1, -1, 5)
        assert partition.next_offset == 0
    assert partition.next_offset == 1


def test_who_sends_faster_than_the_disk_syncs_is_held_back(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    real = Syncer.sync

    def slow(self: Syncer) -> None:
        assert may_go_on.wait(30)
        real(self)

    monkeypatch.setattr(Syncer, "sync", slow)
    producer = producers(log, acks="all", batch_size=1_000, buffer_memory=5_000, max_block_ms=1)
    sent = 0
    with pytest.raises(BufferFullError):
        for _ in range(1_000):
            producer.send("t", b"v" * 100)
            sent += 1
    assert partition.size_bytes < 20_000
    may_go_on.set()
    producer.close()
    assert partition.next_offset == sent, "the record that was refused is not there"


# --- errors


def fails(monkeypatch: pytest.MonkeyPatch, times: int, *, after: bool = False) -> list[int]:
    """Let appends fail so often with a full disk, `after` they were made or before."""
    real = Partition.append_encoded
    left = [times]

    def failing(self: Partition, *args: Any, **kwargs: Any) -> range:
        if left[0] == 0:
            return real(self, *args, **kwargs)
        left[0] -= 1
        if after:
            real(self, *args, **kwargs)
        raise DiskFullError("t-0", "No space left on device")

    monkeypatch.setattr(Partition, "append_encoded", failing)
    return left


def test_a_batch_whose_answer_was_lost_is_tried_again_and_there_once(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producers(log, retry_backoff_ms=1) as producer:
        for round_number in range(5):
            left = fails(monkeypatch, 2, after=True)
            futures = [producer.send("t", b"%d %d" % (round_number, number)) for number in range(10)]
            producer.flush()
            assert left == [0]
            first = 10 * round_number
            assert [one.result().offset for one in futures] == list(range(first, first + 10))
    assert partition.next_offset == 50


def test_an_error_reaches_the_future_and_the_flush(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producers(log, delivery_timeout_ms=0)
    with monkeypatch.context() as patch:
        fails(patch, 1)
        future = producer.send("t", b"lost")
        with pytest.raises(DiskFullError):
            producer.flush()
    assert isinstance(future.exception(), DiskFullError)
    with pytest.raises(DiskFullError):
        future.result()
    assert producer.send("t", b"next").done() is False
    producer.close()
    assert [record.value for record in contents(partition)] == [b"next"]


def test_an_error_that_a_callback_was_told_of_is_not_raised_again(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[RecordMetadata | None, Exception | None]] = []

    def callback(metadata: RecordMetadata | None, error: Exception | None) -> None:
        told.append((metadata, error))

    with producers(log, delivery_timeout_ms=0) as producer:
        with monkeypatch.context() as patch:
            fails(patch, 1)
            producer.send("t", b"lost", on_delivery=callback)
            producer.flush()
        producer.send("t", b"kept", timestamp=7, on_delivery=callback)
        producer.flush()
    assert told[0][0] is None
    assert isinstance(told[0][1], DiskFullError)
    assert told[1] == (RecordMetadata("t", 0, 0, 7), None)


def test_a_callback_that_fails_harms_nobody(log: CommitLog, partition: Partition) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("not ours")

    with producers(log) as producer:
        producer.send("t", b"one", on_delivery=failing)
        producer.send("t", b"two")
    assert partition.next_offset == 2


def test_a_result_that_does_not_come_in_time_is_told_so(log: CommitLog, partition: Partition) -> None:
    with producers(log) as producer:
        future = producer.send("t", b"v")
        with pytest.raises(DeliveryTimeoutError):
            future.result(timeout=0)
        with pytest.raises(DeliveryTimeoutError):
            future.exception(timeout=0)


# --- quotas


@pytest.fixture
def clock(log: CommitLog) -> Clock:
    """What the quotas of the log go by."""
    clock = Clock()
    log._quotas = Quotas(log.path, clock)
    return clock


@pytest.fixture
def pauses(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes when a producer waits, and is noted here."""
    noted: list[float] = []

    def pause(_: Throttle, seconds: float) -> None:
        noted.append(seconds)
        clock.move(seconds)

    monkeypatch.setattr(Throttle, "_pause", pause)
    return noted


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_a_producer_over_its_quota_waits_as_told_and_loses_nothing(
    log: CommitLog, partition: Partition, clock: Clock, pauses: list[float], acks: Any
) -> None:
    log.set_quota("a", producer_byte_rate=1_000)
    with producers(log, client_id="a", acks=acks, batch_size=1_000) as producer:
        for number in range(1_000):
            producer.send("t", b"%d" % number, key=bytes(100))
        producer.flush()
        assert sum(pauses) == pytest.approx(partition.size_bytes / 1_000 - 1)
        assert producer._throttle.seconds_left() == 0.0
    assert [record.value for record in contents(partition)] == [b"%d" % number for number in range(1_000)]


def test_producers_of_a_client_id_pay_together_and_others_for_themselves(
    log: CommitLog, partition: Partition, clock: Clock, pauses: list[float]
) -> None:
    log.set_quota(None, producer_byte_rate=1_000)
    for client_id in ("a", "a", "b"):
        producer = producers(log, client_id=client_id)
        producer.send("t", bytes(900))
        producer.flush()
    with producers(log, client_id="a") as last:
        last.send("t", bytes(900))
        last.flush()
    first_a, other_a, b, last_a = (batch.size_bytes for batch in partition.batches())
    assert b < 1_000
    assert sum(pauses) == pytest.approx((first_a + other_a + last_a) / 1_000 - 1)


def test_records_are_delivered_before_their_sender_waits(
    log: CommitLog, partition: Partition, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.set_quota("a", producer_byte_rate=1)
    seen = []

    def pause(_: Throttle, seconds: float) -> None:
        seen.append((future.done(), partition.durable_offset))
        clock.move(3_600)

    monkeypatch.setattr(Throttle, "_pause", pause)
    with producers(log, client_id="a", acks="all") as producer:
        future = producer.send("t", b"v")
        producer.flush()
    assert seen == [(True, 1)]


def test_what_lingers_waits_until_the_producer_has_paid(
    log: CommitLog, partition: Partition, clock: Clock
) -> None:
    log.set_quota("a", producer_byte_rate=10)
    with log.producer(client_id="a", linger_ms=1) as producer:
        assert producer.send("t", bytes(1_000)).result(30).offset == 0
        future = producer.send("t", b"later")
        for _ in range(3):
            producer._work()
        assert not future.done()
        clock.move(3_600)
        producer._work()
        assert future.result(30).offset == 1


def test_a_batch_that_no_segment_holds_is_appended_in_parts(log: CommitLog) -> None:
    log.create_topic("small", partitions=2, config={"segment_bytes": 1000})
    with producers(log) as producer:
        futures = [
            producer.send("small", b"%0200d" % number, key=b"%d" % (number % 5)) for number in range(40)
        ]
        too_large = producer.send("small", bytes(2000))
        with pytest.raises(BatchTooLargeError):
            producer.flush()
    found = {
        (partition.name, record.offset): record.value
        for partition in log.topic("small").partitions
        for record in partition.records()
    }
    places = [future.result() for future in futures]
    assert [found[f"small-{place.partition}", place.offset] for place in places] == [
        b"%0200d" % number for number in range(40)
    ]
    assert len(found) == 40
    assert isinstance(too_large.exception(), BatchTooLargeError)


def test_flush_in_a_callback_that_it_would_wait_for_is_refused(log: CommitLog, partition: Partition) -> None:
    problems: list[Exception] = []

    def flush(*_: object) -> None:
        try:
            producer.flush()
        except CommitLogError as problem:
            problems.append(problem)

    with producers(log, acks="all") as producer:
        producer.send("t", b"v", on_delivery=flush)
        producer.flush()
    assert "callback" in str(problems)


def test_without_a_linger_each_send_appends_its_record_itself(log: CommitLog, partition: Partition) -> None:
    with log.producer(linger_ms=0) as producer:
        for number in range(3):
            future = producer.send("t", b"v", key=b"k")
            assert future.done()
            assert partition.next_offset == number + 1
        threads = [threading.Thread(target=producer.send, args=("t", b"%d" % one)) for one in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(record.value for record in partition.records(3)) == [b"%d" % one for one in range(8)]


def test_a_throttled_producer_can_be_closed_at_once_and_delivers_everything(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.set_quota("a", producer_byte_rate=1)
    waiting = threading.Event()
    real = Throttle._pause

    def pause(throttle: Throttle, seconds: float) -> None:
        waiting.set()
        real(throttle, seconds)

    monkeypatch.setattr(Throttle, "_pause", pause)
    producer = producers(log, client_id="a", batch_size=5_000)

    def work() -> None:
        for number in range(5):
            producer.send("t", b"%d" % number, key=bytes(1_000))

    thread = threading.Thread(target=work)
    thread.start()
    assert waiting.wait(30)
    producer.send("t", b"last")
    producer.close()
    thread.join(30)
    assert not thread.is_alive()
    assert [record.value for record in contents(partition)] == [b"0", b"1", b"2", b"3", b"4", b"last"]


# --- the end


def test_closing_a_log_delivers_what_its_producers_hold(log_path: Path) -> None:
    log = commitlog.open(log_path)
    log.create_topic("t")
    producer = producers(log)
    future = producer.send("t", b"v")
    log.close()
    assert future.result().offset == 0
    with pytest.raises(ClosedError):
        producer.send("t", b"late")
    producer.close()
    with commitlog.open(log_path) as again:
        assert again.topic("t").partition(0).next_offset == 1


def test_a_log_is_closed_even_if_a_producer_could_not_deliver(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commitlog.open(log_path)
    log.create_topic("t")
    first, second = producers(log, delivery_timeout_ms=0), producers(log, delivery_timeout_ms=0)
    for producer in (first, second):
        producer.send("t", b"v")
    fails(monkeypatch, 1)
    with pytest.raises(DiskFullError):
        log.close()
    with commitlog.open(log_path) as again:
        assert again.recovery[0].clean
        assert again.topic("t").partition(0).next_offset == 1


def test_threads_share_a_producer(log: CommitLog) -> None:
    topic = log.create_topic("many", partitions=3)
    with log.producer(batch_size=2_000, linger_ms=1) as producer:

        def work(name: int) -> None:
            for number in range(300):
                producer.send("many", b"%d %d" % (name, number), key=b"%d" % name)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen: dict[int, list[int]] = {}
    for partition in topic.partitions:
        for record in partition.records():
            name, number = map(int, record.value.split())
            seen.setdefault(name, []).append(number)
    assert seen == {name: list(range(300)) for name in range(5)}


def test_a_callback_may_send_and_fill_a_batch(log: CommitLog, partition: Partition) -> None:
    def echo(metadata: RecordMetadata | None, _: Exception | None) -> None:
        assert metadata is not None
        if metadata.offset < 3:
            producer.send("t", b"%d" % (metadata.offset + 1), on_delivery=echo)

    with producers(log, batch_size=1) as producer:
        producer.send("t", b"0", on_delivery=echo)
    assert [record.value for record in contents(partition)] == [b"0", b"1", b"2", b"3"]


def test_a_partitioner_that_fails_is_told_of(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create_topic("many", partitions=3)

    def failing(*_: object) -> None:
        raise RuntimeError("not ours")

    monkeypatch.setattr(topic, "places", failing)
    producer = producers(log)
    future = producer.send("many", b"v")
    with pytest.raises(RuntimeError):
        producer.flush()
    assert isinstance(future.exception(), RuntimeError)
    producer.close()


def test_settings_altered_while_records_wait_hold_for_the_next_ones(log: CommitLog) -> None:
    topic = log.create_topic("t")
    with producers(log) as producer:
        futures = [producer.send("t", b"v" * size) for size in (10, 1_000, 10)]
        topic.alter_config(max_message_bytes=100, cleanup_policy="compact")
        with pytest.raises(RecordTooLargeError):
            producer.send("t", b"v" * 1_000, key=b"k")
        producer.flush()
        with pytest.raises(InvalidRecordError, match="key"):
            producer.send("t", b"v")
        assert [future.result().offset for future in futures] == [0, 1, 2]


# --- how batches fill


def sizes_of(partition: Partition) -> list[int]:
    return [batch.size_bytes for batch in partition.batches()]


def counts_of(partition: Partition) -> list[int]:
    return [len(batch) for batch in partition.batches()]


@pytest.mark.parametrize("small", [0, 1, 10])
def test_large_records_among_small_ones_close_a_batch_in_time(
    log: CommitLog, partition: Partition, small: int
) -> None:
    with producers(log, batch_size=10_000) as producer:
        for number in range(60):
            for _ in range(small):
                producer.send("t", b"small", key=b"k")
            producer.send("t", bytes(number * 100), key=b"k")
    assert partition.next_offset == 60 * (small + 1)
    assert max(sizes_of(partition)) < 10_000 + 6_000, "at most a record above batch_size"


def test_a_few_large_records_do_not_make_every_batch_a_small_one(
    log: CommitLog, partition: Partition
) -> None:
    with producers(log, batch_size=10_000) as producer:
        for number in range(2_000):
            producer.send("t", bytes(5_000) if number % 200 == 0 else b"v" * 36)
    counts = counts_of(partition)
    assert len(counts) < 60
    assert sum(counts) == 2_000


def test_batches_of_records_of_one_size_are_full(log: CommitLog, partition: Partition) -> None:
    with producers(log, batch_size=10_000) as producer:
        for _ in range(500):
            producer.send("t", b"v" * 26, key=b"k" * 10)
    assert counts_of(partition) == [100] * 5


def test_memory_that_waits_for_a_sync_is_never_counted_too_low(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    real = Syncer.sync

    def slow(self: Syncer) -> None:
        assert may_go_on.wait(30)
        real(self)

    monkeypatch.setattr(Syncer, "sync", slow)
    producer = producers(log, acks="all", batch_size=1_000, buffer_memory=50_000, max_block_ms=1)
    with pytest.raises(BufferFullError):
        for number in range(1_000):
            producer.send("t", bytes(number % 50 * 100))
    assert sum(sizes_of(partition)) < 50_000 + 2 * 6_000
    may_go_on.set()
    producer.close()


# --- timestamps and serializers


def test_a_record_has_the_time_at_which_it_was_sent(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [1_700_000_000 + number * 0.75 for number in range(8)]
    clock = iter(seconds)
    monkeypatch.setattr("commitlog.clients.producer.now", lambda: next(clock))
    with producers(log) as producer:
        futures = [producer.send("t", b"v") for _ in range(4)]
        futures += [producer.send("t", bytearray(b"w"), headers=[("h", b"1")]) for _ in range(4)]
    expected = [int(second * 1000) for second in seconds]
    assert [record.timestamp for record in contents(partition)] == expected
    assert [future.result().timestamp for future in futures] == expected


def test_a_timestamp_that_was_given_is_kept_to_the_millisecond(log: CommitLog, partition: Partition) -> None:
    given = [0, 1, (1 << 62) + 1, 1_700_000_000_001]
    with producers(log) as producer:
        futures = [producer.send("t", b"v", timestamp=timestamp) for timestamp in given]
        between = producer.send("t", b"v")
    assert [record.timestamp for record in contents(partition)][:4] == given
    assert [future.result().timestamp for future in futures] == given
    assert between.result().timestamp == contents(partition)[4].timestamp


def test_acks_0_tells_the_timestamp_whenever_it_is_asked(log: CommitLog, partition: Partition) -> None:
    with producers(log, acks=0) as producer:
        futures = [producer.send("t", b"v") for _ in range(3)]
        before = [future.result().timestamp for future in futures]
        producer.flush()
        after = [future.result().timestamp for future in futures]
    assert before == after == [record.timestamp for record in contents(partition)]


def test_serializers_make_bytes_of_keys_and_values(log: CommitLog, partition: Partition) -> None:
    def encoded(number: int | None) -> bytes | None:
        return None if number is None else b"%d" % number

    with producers(log, key_serializer=str.encode, value_serializer=encoded) as producer:
        for number in (1, None, 3):
            producer.send("t", number, key=f"key {number}")
    found = [(record.key, record.value) for record in contents(partition)]
    assert found == [(b"key 1", b"1"), (b"key None", None), (b"key 3", b"3")]


def test_what_a_serializer_raises_leaves_nothing_behind(log: CommitLog, partition: Partition) -> None:
    with producers(log, value_serializer=lambda text: text.encode("ascii")) as producer:
        producer.send("t", "before", key=b"k")
        with pytest.raises(UnicodeEncodeError):
            producer.send("t", "f\u00fcr", key=b"k")
        producer.send("t", "after", key=b"k")
    assert [record.value for record in contents(partition)] == [b"before", b"after"]


def test_what_a_serializer_returns_is_checked(log: CommitLog, partition: Partition) -> None:
    with producers(log, key_serializer=str) as producer, pytest.raises(InvalidRecordError, match="key"):
        producer.send("t", b"v", key=5)
    assert partition.next_offset == 0


def test_the_producers_thread_ends_with_it(log: CommitLog, partition: Partition) -> None:
    def alive() -> Iterator[str]:
        return (thread.name for thread in threading.enumerate() if thread.name == "commitlog-producer")

    producer = log.producer()
    wait_until(lambda: any(alive()))
    producer.close()
    assert not any(alive())


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 2},
        {"batch_size": 0},
        {"compression_type": "rar"},
        {"linger_ms": -1},
        {"batchsize": 5},
        {"key_serializer": "utf-8"},
        {"value_serializer": 5},
        {"client_id": None},
    ],
)
def test_wrong_settings_are_refused(log: CommitLog, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        log.producer(**settings)


def test_a_producer_may_compress_what_its_topic_does_not(log: CommitLog, partition: Partition) -> None:
    with producers(log, compression_type="zstd") as producer:
        for _ in range(100):
            producer.send("t", b"the same " * 10)
    (batch,) = partition.batches()
    assert batch.header.compression_type == "zstd"


# --- Ctrl-C


def interrupting_once(patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False) -> None:
    """Interrupt the next call of a function, before or after it has done something."""
    real = getattr(owner, name)

    def interrupted(*args: Any, **others: Any) -> None:
        patch.undo()
        if after:
            real(*args, **others)
        raise KeyboardInterrupt

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("place", ["encode", "usual_bytes", "totals"])
def test_what_was_sent_before_ctrl_c_is_delivered_once_or_its_sender_hears_of_it(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, place: str, idempotent: bool
) -> None:
    topic = log.create_topic("many", 3)
    producer = producers(log, enable_idempotence=idempotent)
    futures = [producer.send("many", b"%d" % number, key=b"%d" % number) for number in range(5)]
    interrupting_once(monkeypatch, accumulator, place)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    in_doubt = place == "totals" and not idempotent  # it was appended, and the answer was lost
    with pytest.raises(CommitLogError, match="interrupted") if in_doubt else contextlib.nullcontext():
        producer.flush()
    found = [record.value for partition in topic.partitions for record in partition.records()]
    assert sorted(found) == [b"%d" % number for number in range(5)]
    assert all(future.done() for future in futures)
    producer.close()


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_append_that_ctrl_c_ends_is_not_made_twice(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    partition = log.create_topic("one").partition(0)
    producer = producers(log, enable_idempotence=idempotent)
    future = producer.send("one", b"once")
    interrupting_once(monkeypatch, Partition, "append_encoded", after=True)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    with contextlib.nullcontext() if idempotent else pytest.raises(CommitLogError, match="interrupted"):
        producer.close()
    assert future.done()
    assert [record.value for record in partition.records()] == [b"once"]


@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize("place", [(accumulator, "encode"), (Task, "wake")])
def test_a_close_that_ctrl_c_ended_is_finished_by_the_next(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str], acks: Any
) -> None:
    partition = log.create_topic("one").partition(0)
    producer = producers(log, acks=acks)
    future = producer.send("one", b"sent")
    interrupting_once(monkeypatch, *place)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    producer.close()
    assert future.done()
    assert [record.value for record in partition.records()] == [b"sent"]


def test_what_was_sent_is_delivered_though_ctrl_c_comes_while_the_log_is_closed(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = commitlog.open(log_path)
    log.create_topic("one")
    producers(log).send("one", b"sent")
    interrupting_once(monkeypatch, accumulator, "encode")
    with pytest.raises(KeyboardInterrupt):
        log.close()
    with commitlog.open(log_path, mode="r") as reading:
        assert [record.value for record in reading.topic("one").partition(0).records()] == [b"sent"]


def test_a_throttled_producer_leaves_full_batches_to_their_time(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=60_000) as producer:
        producer.send("t", b"v")
        lane = producer._lanes["t"]
        with producer._lock:
            producer._close_batch(lane)
        producer._opened = False
        with monkeypatch.context() as patch:
            patch.setattr(producer._throttle, "seconds_left", lambda: 0.25)
            assert producer._work() > 0
            assert lane.ready
        producer._work()
        assert not lane.ready


def test_a_full_disk_fails_a_batch_that_is_older_than_the_delivery_timeout(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log.create_topic("t").partition(0)

    def append(*_: object) -> None:
        raise DiskFullError("a file", "full")

    with monkeypatch.context() as patch:
        patch.setattr(partition, "append_encoded", append)
        producer = log.producer(linger_ms=60_000, delivery_timeout_ms=120_000)
        future = producer.send("t", b"v")
        producer._filling["t"].created -= 120  # it has waited behind others
        with pytest.raises(DiskFullError):
            producer.flush()
        assert isinstance(future.exception(), DiskFullError)
    producer.close()


def test_flush_ends_although_others_go_on_sending(log: CommitLog) -> None:
    log.create_topic("t")
    sent = 0
    with log.producer(acks="all", batch_size=1) as producer:

        def send(*_: object) -> None:
            """Send the next record when one is delivered: before that is forgotten."""
            nonlocal sent
            sent += 1
            if sent < 5_000:
                producer.send("t", b"v", on_delivery=send)

        send()
        producer.flush()
        assert sent < 5_000
        sent = 5_000
