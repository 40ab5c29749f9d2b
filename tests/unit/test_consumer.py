"""A consumer by itself: what it reads, where it stands, what it commits, and how it ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import fill, flip, wait_until

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    ConfigError,
    Consumer,
    ConsumerRecord,
    CorruptionError,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetOutOfRangeError,
    Partition,
    Segment,
    Topic,
    TopicPartition,
    UnknownTopicError,
)
from commitlog.errors import (
    CommitFailedError,
    DeserializationError,
    ForkedError,
    NoOffsetError,
    NotAssignedError,
    UnknownPartitionError,
)

T = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
SMALL = {"segment_bytes": 600, "index_interval_bytes": 0, "file_delete_delay_ms": 0, "flush_ms": -1}


@pytest.fixture
def partition(log: CommitLog) -> Partition:
    """The only partition of "t", with offsets [0, 10)."""
    partition: Partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    fill(partition, 10)
    return partition


@pytest.fixture
def pair(log: CommitLog) -> Topic:
    """Two partitions, with offsets [0, 10) each."""
    topic = log.create_topic("t", partitions=2, config={"flush_ms": -1})
    for partition in topic.partitions:
        fill(partition, 10)
    return topic


def offsets(records: Any) -> list[int]:
    return [record.offset for record in records]


def by_number(found: dict[TopicPartition, list[Any]]) -> dict[int, list[int]]:
    return {name.partition: offsets(records) for name, records in found.items()}


def polled(consumer: Consumer, **how: Any) -> list[int]:
    """The offsets of one poll of a consumer of one partition."""
    found = consumer.poll(**how)
    assert len(found) <= 1
    return [record.offset for records in found.values() for record in records]


def drained(consumer: Consumer) -> list[tuple[int, int]]:
    """Partition and offset of everything that is there now."""
    seen = []
    while found := consumer.poll():
        seen += [(one.partition, one.offset) for records in found.values() for one in records]
    return seen


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start a thread; what it returned, or raised, is put in a list."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def ended(thread: threading.Thread) -> bool:
    thread.join(30)
    return not thread.is_alive()


def is_waiting(consumer: Consumer) -> bool:
    """Whether a thread waits for an append."""
    return any(
        isinstance(one.partition, Partition) and one.partition._state.waiters.count
        for one in places(consumer)
    )


def places(consumer: Consumer) -> list[Any]:
    return list(consumer._fetcher.places.values())


# --- what to read


def test_a_subscriber_reads_all_partitions_in_order(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t") as consumer:
        assert consumer.subscription() == {"t"}
        assert consumer.assignment() == {T, T1}
        assert by_number(consumer.poll()) == {0: list(range(10)), 1: list(range(10))}
        assert consumer.poll() == {}


def test_a_record_is_what_was_appended(log: CommitLog) -> None:
    log.create_topic("t").append(b"v", key=b"k", timestamp=5, headers=[("h", None)])
    with log.consumer("t") as consumer:
        assert consumer.poll() == {T: [ConsumerRecord("t", 0, 0, 5, b"k", b"v", (("h", None),))]}


def test_topics_may_be_one_name_or_several(log: CommitLog, partition: Partition) -> None:
    fill(log.create_topic("u").partition(0), 3)
    with log.consumer() as consumer:
        for topics, expected in (("t", {"t"}), (["t", "u"], {"t", "u"}), (iter(["u"]), {"u"})):
            consumer.subscribe(topics)
            assert consumer.subscription() == expected
            assert {name.topic for name in consumer.poll()} == expected


@pytest.mark.parametrize("how", [{}, {"topics": []}, {"topics": ["t"], "pattern": "t"}, {"pattern": "("}])
def test_topics_or_a_pattern_must_be_given(log: CommitLog, partition: Partition, how: Any) -> None:
    with log.consumer("t") as consumer:
        with pytest.raises(ConfigError):
            consumer.subscribe(**how)
        assert consumer.subscription() == {"t"}, "nothing has changed"


def test_an_unknown_topic_is_refused_and_nothing_has_changed(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        with pytest.raises(UnknownTopicError):
            consumer.subscribe(["t", "nowhere"])
        assert polled(consumer) == list(range(10))
    with pytest.raises(UnknownTopicError):
        log.consumer("nowhere")


def test_a_pattern_fits_whole_names_and_topics_to_come(log: CommitLog, partition: Partition) -> None:
    for name in ("orders.eu", "orders.us", "reorders.eu", "orders"):
        fill(log.create_topic(name).partition(0), 1)
    with log.consumer(heartbeat_interval_ms=1) as consumer:
        consumer.subscribe(pattern=r"orders\..*")
        assert consumer.subscription() == {"orders.eu", "orders.us"}
        assert {name.topic for name in consumer.poll()} == {"orders.eu", "orders.us"}
        fill(log.create_topic("orders.asia").partition(0), 2)
        found = consumer.poll(timeout=30)
        assert by_number(found) == {0: [0, 1]}
        assert {name.topic for name in found} == {"orders.asia"}


def test_a_pattern_leaves_internal_topics_alone(log: CommitLog, partition: Partition) -> None:
    with log.consumer(group_id="g") as consumer, log.consumer() as other:
        consumer.assign([T])
        consumer.commit({T: 3})
        other.subscribe(pattern=".*")
        assert other.subscription() == {"t"}


def test_partitions_that_a_topic_gets_later_are_read_from_their_start(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", heartbeat_interval_ms=1) as consumer:
        drained(consumer)
        pair.add_partitions(3)
        fill(pair.partition(2), 4)
        assert by_number(consumer.poll(timeout=30)) == {2: [0, 1, 2, 3]}


def test_just_the_assigned_partitions_are_read(log: CommitLog, pair: Topic) -> None:
    with log.consumer() as consumer:
        consumer.assign([("t", 1)])
        assert (consumer.assignment(), consumer.subscription()) == ({T1}, set())
        assert by_number(consumer.poll()) == {1: list(range(10))}
        consumer.assign([T])
        assert by_number(consumer.poll()) == {0: list(range(10))}
        consumer.assign([])
        assert consumer.poll() == {}


@pytest.mark.parametrize(
    ("name", "error"),
    [(("t", 2), UnknownPartitionError), (("t", -1), UnknownPartitionError), (("u", 0), UnknownTopicError)],
)
def test_what_is_not_there_cannot_be_assigned(
    log: CommitLog, pair: Topic, name: Any, error: type[Exception]
) -> None:
    with log.consumer() as consumer:
        consumer.assign([T])
        with pytest.raises(error):
            consumer.assign([T1, name])
        assert consumer.assignment() == {T}


def test_who_unsubscribes_reads_nothing(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        consumer.unsubscribe()
        assert (consumer.poll(), consumer.assignment(), consumer.subscription()) == ({}, set(), set())
        consumer.subscribe("t")
        assert polled(consumer) == list(range(10))


# --- poll


def test_a_poll_gives_no_more_than_asked_for(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t", max_poll_records=4) as consumer:
        assert polled(consumer) == [0, 1, 2, 3]
        assert polled(consumer, max_records=1) == [4]
        assert polled(consumer, max_records=100) == [5, 6, 7, 8, 9]
        assert polled(consumer) == []


@pytest.mark.parametrize("how", [{"max_records": 0}, {"max_records": -1}, {"max_records": 1.5}])
def test_a_poll_for_less_than_a_record_is_refused(log: CommitLog, partition: Partition, how: Any) -> None:
    with log.consumer("t") as consumer:
        with pytest.raises(ConfigError):
            consumer.poll(**how)
        assert polled(consumer) == list(range(10))


def test_batches_of_less_than_a_byte_are_refused(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        for poll in (consumer.poll_batches, consumer.poll_arrow):
            with pytest.raises(ConfigError):
                poll(max_bytes=0)


def test_an_append_by_another_thread_ends_the_wait(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        drained(consumer)
        thread, outcome = in_thread(lambda: polled(consumer, timeout=60))
        wait_until(lambda: is_waiting(consumer))
        partition.append(b"v")
        assert ended(thread)
        assert outcome == [[10]]


def test_a_consumer_that_waits_does_not_spin(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of a waiting poll lies a wait, whatever is due."""
    settings: list[dict[str, Any]] = [
        {},
        {"group_id": "g"},
        {"group_id": "g", "auto_commit_interval_ms": 0},
        {"group_id": "g", "enable_auto_commit": False},
    ]
    for setting in settings:
        for subscribe in (True, False):
            with log.consumer(**setting) as consumer:
                if subscribe:
                    consumer.subscribe("t")
                else:
                    consumer.assign([T])
                drained(consumer)
                assert fetches(consumer, monkeypatch) < 5, (setting, subscribe)


def fetches(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often a poll that waits for a while looks for records."""
    count = [0]
    real = consumer._fetcher.records

    def counting(limit: int) -> Any:
        count[0] += 1
        return real(limit)

    monkeypatch.setattr(consumer._fetcher, "records", counting)
    consumer.poll(timeout=0.05)
    return count[0]


def test_partitions_take_turns(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", max_poll_records=3) as consumer:
        order = [by_number(consumer.poll()) for _ in range(4)]
    assert order == [{0: [0, 1, 2]}, {1: [0, 1, 2]}, {0: [3, 4, 5]}, {1: [3, 4, 5]}]


# --- iteration


def test_an_iteration_ends_when_nothing_has_come_for_a_while(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t", consumer_timeout_ms=1, max_poll_records=3) as consumer:
        assert offsets(consumer) == list(range(10))
        fill(partition, 2)
        assert offsets(consumer) == [10, 11]


def test_an_iteration_waits_for_what_comes(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        records = iter(consumer)
        assert [next(records).offset for _ in range(10)] == list(range(10))
        thread, outcome = in_thread(lambda: next(records).offset)
        wait_until(lambda: is_waiting(consumer))
        partition.append(b"v")
        assert ended(thread)
        assert outcome == [10]


@pytest.mark.parametrize("then", ["iterate", "poll", "batches"])
def test_a_break_in_the_middle_loses_nothing(log: CommitLog, pair: Topic, then: str) -> None:
    for stop in range(1, 20):
        with log.consumer("t", consumer_timeout_ms=0, max_poll_records=7) as consumer:
            seen = []
            for record in consumer:
                seen.append((record.partition, record.offset))
                if len(seen) == stop:
                    break
            if then == "iterate":
                seen += [(one.partition, one.offset) for one in consumer]
            elif then == "batches":
                for name, batches in consumer.poll_batches().items():
                    seen += [(name.partition, one.offset) for batch in batches for one in batch.records()]
            seen += drained(consumer)
        assert len(seen) == 20
        for number in range(2):
            assert [offset for where, offset in seen if where == number] == list(range(10))


def test_who_seeks_within_the_loop_goes_on_there(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        seen = []
        for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1]:
                consumer.seek(T, 7)
            if seen == [0, 1, 7, 8]:
                consumer.seek(T, 9)
        assert seen == [0, 1, 7, 8, 9]


def test_who_seeks_within_the_loop_moves_the_other_partitions_too(log: CommitLog, pair: Topic) -> None:
    """What was fetched of the other partition, and not handed out yet, does not count any more."""
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        seen = []
        for record in consumer:
            if (record.partition, record.offset) == (0, 0):
                consumer.seek(T1, 8)
            seen.append((record.partition, record.offset))
        assert [offset for where, offset in seen if where == 1] == [8, 9]
        assert [offset for where, offset in seen if where == 0] == list(range(10))


def test_who_pauses_within_the_loop_gets_no_more_of_that(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        seen = []
        for record in consumer:
            if (record.partition, record.offset) == (0, 3):
                consumer.pause(T, T1)
            seen.append((record.partition, record.offset))
        assert seen == [(0, 0), (0, 1), (0, 2), (0, 3)]
        consumer.resume()
        rest = [(one.partition, one.offset) for one in consumer]
        assert sorted(rest) == [(0, offset) for offset in range(4, 10)] + [
            (1, offset) for offset in range(10)
        ]


def test_a_poll_within_the_loop_takes_what_was_not_handed_out(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        seen = []
        for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 3:
                seen += drained(consumer)
        assert sorted(seen) == [(number, offset) for number in range(2) for offset in range(10)]


def test_who_unsubscribes_within_the_loop_gets_no_more(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        seen = 0
        for _ in consumer:
            seen += 1
            consumer.unsubscribe()
        assert seen == 1


def test_who_assigns_anew_within_the_loop_gets_that(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        seen = []
        for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 1:
                consumer.assign([T1])
        assert seen == [(0, 0), *((1, offset) for offset in range(10))]


def test_two_iterations_share_what_there_is(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        one, other = iter(consumer), iter(consumer)
        seen = [next(one).offset, next(other).offset, next(other).offset, next(one).offset]
        assert seen == [0, 1, 2, 3]
        assert offsets(one) + offsets(other) == list(range(4, 10))


def test_the_position_of_an_iteration_is_behind_what_was_handed_out(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        for record in consumer:
            name = TopicPartition(record.topic, record.partition)
            assert consumer.position(name) == record.offset + 1
            if name == T and record.offset == 4:
                assert consumer.position(T1) == 0
                assert consumer.lag() == {T: 5, T1: 10}


# --- interruptions


@pytest.mark.parametrize("failure", [OSError(errno.EMFILE, "Too many open files"), KeyboardInterrupt()])
@pytest.mark.parametrize("how", ["poll", "batches", "iterate"])
def test_a_poll_that_failed_has_taken_nothing(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch, failure: BaseException, how: str
) -> None:
    topic = log.create_topic("t", partitions=2, config=SMALL)
    for partition in topic.partitions:
        fill(partition, 30)
    second = topic.partition(1).segments[1].path
    left = [failure]
    for name in ("record_runs", "combined_batches"):
        real: Callable[..., Iterator[Any]] = getattr(Segment, name)

        def failing(self: Segment, *bounds: Any, real: Any = real, **more: Any) -> Iterator[Any]:
            if self.path == second and left:
                raise left.pop()
            return real(self, *bounds, **more)

        monkeypatch.setattr(Segment, name, failing)
    seen: list[tuple[int, int]] = []
    with log.consumer("t", consumer_timeout_ms=0) as consumer:
        while left:
            try:
                seen += one_go(consumer, how)
            except (OSError, KeyboardInterrupt):
                break
        seen += drained(consumer)
    assert sorted(seen) == [(number, offset) for number in range(2) for offset in range(30)]


def one_go(consumer: Consumer, how: str) -> list[tuple[int, int]]:
    if how == "poll":
        return [(one.partition, one.offset) for some in consumer.poll().values() for one in some]
    if how == "iterate":
        record = next(iter(consumer))
        return [(record.partition, record.offset)]
    found = consumer.poll_batches(max_bytes=1 << 20)
    return [
        (name.partition, one.offset)
        for name, some in found.items()
        for batch in some
        for one in batch.records()
    ]


def test_an_interrupted_deserializer_loses_nothing(log: CommitLog, pair: Topic) -> None:
    left = [15]

    def interrupted(raw: bytes | None) -> bytes | None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return raw

    with log.consumer("t", value_deserializer=interrupted) as consumer:
        with pytest.raises(KeyboardInterrupt):
            consumer.poll()
        assert sorted(drained(consumer)) == [(number, offset) for number in range(2) for offset in range(10)]


# --- positions


def test_a_consumer_goes_on_where_it_was_sought(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        for target in (5, 0, 9, 10):
            consumer.seek(("t", 0), target)
            assert consumer.position(("t", 0)) == target
            assert polled(consumer) == list(range(target, 10))
        consumer.seek_to_beginning()
        assert (consumer.position(T), polled(consumer, max_records=1)) == (0, [0])
        consumer.seek_to_end(T)
        assert (consumer.position(T), polled(consumer)) == (10, [])
        fill(partition, 1)
        assert polled(consumer) == [10]


@pytest.mark.parametrize("offset", [-1, 1.0, "1", True, None])
def test_an_offset_is_a_number_from_0(log: CommitLog, partition: Partition, offset: Any) -> None:
    with log.consumer("t") as consumer, pytest.raises(ConfigError):
        consumer.seek(T, offset)


def test_who_seeks_outside_of_the_log_goes_where_auto_offset_reset_says(log: CommitLog) -> None:
    partition = log.create_topic("t", config=SMALL).partition(0)
    fill(partition, 60)
    partition.trim_before(50)
    resets: list[Any] = [("earliest", list(range(50, 60))), ("latest", [])]
    for reset, expected in resets:
        with log.consumer("t", auto_offset_reset=reset) as consumer:
            for outside in (3, 1000):
                consumer.seek(T, outside)
                assert polled(consumer) == expected
    with log.consumer("t", auto_offset_reset="none") as consumer:
        consumer.seek(T, 1000)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.poll()
        consumer.seek(T, 55)
        assert polled(consumer) == list(range(55, 60))


def test_what_is_not_assigned_has_no_position(log: CommitLog, pair: Topic) -> None:
    with log.consumer() as consumer:
        consumer.assign([T])
        calls: list[Callable[[], Any]] = [
            lambda: consumer.seek(T1, 0),
            lambda: consumer.position(T1),
            lambda: consumer.seek_to_beginning(T1),
            lambda: consumer.seek_to_end(T, T1),
            lambda: consumer.pause(T1),
            lambda: consumer.resume(("u", 7)),
        ]
        for call in calls:
            with pytest.raises(NotAssignedError):
                call()
        assert consumer.position(T) == 0


def test_the_position_is_behind_what_a_poll_gave(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t") as consumer:
        consumer.poll(max_records=4)
        assert (consumer.position(T), consumer.position(T1)) == (4, 0)
        assert consumer.lag() == {T: 6, T1: 10}
        consumer.poll(max_records=12)
        assert (consumer.position(T), consumer.position(T1)) == (6, 10)


def test_nothing_comes_of_what_is_paused(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t") as consumer:
        consumer.poll(max_records=4)
        consumer.pause(("t", 0))
        assert consumer.paused() == {T}
        assert by_number(consumer.poll()) == {1: list(range(10))}
        assert consumer.poll() == {}
        assert consumer.poll_batches() == {}
        assert consumer.assignment() == {T, T1}
        consumer.seek(T, 8)
        assert consumer.poll() == {}
        consumer.resume(T)
        assert consumer.paused() == set()
        assert by_number(consumer.poll()) == {0: [8, 9]}
        consumer.pause()
        assert consumer.paused() == {T, T1}


def test_what_there_is_may_be_asked_of_any_partition(log: CommitLog) -> None:
    partition = log.create_topic("t", config=SMALL).partition(0)
    fill(partition, 60)
    partition.trim_before(50)
    with log.consumer() as consumer:
        assert consumer.beginning_offsets([("t", 0)]) == {T: 50}
        assert consumer.end_offsets([("t", 0)]) == {T: 60}
        wanted: dict[tuple[str, int], int] = {("t", 0): 1_055}
        assert consumer.offsets_for_times(wanted) == {T: OffsetAndTimestamp(55, 1_055)}
        assert consumer.offsets_for_times({T: 0}) == {T: (50, 1_050)}
        assert consumer.offsets_for_times({T: 5_000}) == {T: None}
        with pytest.raises(UnknownTopicError):
            consumer.end_offsets([("u", 0)])


# --- auto_offset_reset


def test_a_new_consumer_reads_from_the_start_unless_told_otherwise(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t") as consumer:
        assert (consumer.position(T), len(drained(consumer))) == (0, 20)


def test_latest_means_from_the_subscription_on(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", auto_offset_reset="latest") as consumer:
        fill(pair.partition(0), 2)
        assert by_number(consumer.poll()) == {0: [10, 11]}


def test_without_a_start_none_is_an_error_until_one_is_given(log: CommitLog, pair: Topic) -> None:
    with log.consumer("t", auto_offset_reset="none") as consumer:
        for _ in range(2):
            with pytest.raises(NoOffsetError):
                consumer.poll()
            with pytest.raises(NoOffsetError):
                consumer.position(T1)
        consumer.seek(T, 9)
        consumer.seek_to_end(T1)
        assert by_number(consumer.poll()) == {0: [9]}


# --- committing


def committed(log: CommitLog, group: str, name: tuple[str, int] = T) -> int | None:
    with log.consumer(group_id=group) as consumer:
        return consumer.committed(name)


def grouped(log: CommitLog, **settings: Any) -> Consumer:
    """A consumer that commits when it is told to."""
    return log.consumer("t", group_id="g", enable_auto_commit=False, **settings)


def test_a_group_goes_on_with_what_was_committed(log: CommitLog, partition: Partition) -> None:
    with grouped(log) as consumer:
        assert consumer.committed(T) is None
        assert polled(consumer, max_records=4) == [0, 1, 2, 3]
        consumer.commit()
        assert consumer.committed(("t", 0)) == 4
        assert polled(consumer, max_records=4) == [4, 5, 6, 7]
    with grouped(log) as consumer:
        assert polled(consumer) == list(range(4, 10))


def test_what_was_committed_is_there_when_the_log_is_opened_again(log_path: Path) -> None:
    for _ in range(3):
        with commitlog.open(log_path) as log:
            topic = log.topic("t") if log.topics() else log.create_topic("t")
            first = topic.partition(0).next_offset
            fill(topic.partition(0), 4)
            with log.consumer("t", group_id="g") as consumer:
                assert drained(consumer) == [(0, offset) for offset in range(first, first + 4)]


def test_given_offsets_are_committed_with_their_notes(log: CommitLog, pair: Topic) -> None:
    with grouped(log) as consumer:
        consumer.poll()
        consumer.commit({("t", 0): 3, T1: (4, "note")})
        assert (consumer.committed(T), consumer.committed(T1)) == (3, 4)
        consumer.commit({T: OffsetAndMetadata(5)})
        assert (consumer.committed(T), consumer.committed(T1)) == (5, 4)
        assert consumer.position(T) == 10


@pytest.mark.parametrize("value", [-1, True, 1.5, "5", "abc", None, (1,), (1, 2), (1, "a", "b"), ("a", "b")])
def test_what_is_no_offset_is_not_committed(log: CommitLog, partition: Partition, value: Any) -> None:
    with grouped(log) as consumer:
        consumer.poll()
        for commit in (consumer.commit, consumer.commit_async):
            with pytest.raises(ConfigError):
                commit({T: value})
        assert consumer.committed(T) is None


def test_offsets_of_what_is_not_there_are_refused(log: CommitLog, partition: Partition) -> None:
    with log.consumer(group_id="g") as consumer:
        for name, error in ((("u", 0), UnknownTopicError), (("t", 1), UnknownPartitionError)):
            with pytest.raises(error):
                consumer.commit({name: 5})
    assert committed(log, "g", ("u", 0)) is None


def test_without_a_group_nothing_is_committed(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        calls: list[Callable[[], Any]] = [
            consumer.commit,
            consumer.commit_async,
            lambda: consumer.committed(T),
            consumer.group_metadata,
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="group_id"):
                call()
    assert log.groups() == []


def test_a_commit_within_the_loop_is_of_what_was_handed_out(log: CommitLog, pair: Topic) -> None:
    with grouped(log, consumer_timeout_ms=0) as consumer:
        handed: dict[int, int] = {}
        for record in consumer:
            handed[record.partition] = record.offset + 1
            consumer.commit()
            assert consumer.committed(("t", record.partition)) == record.offset + 1
            for number in range(2):
                assert (consumer.committed(("t", number)) or 0) == handed.get(number, 0)


def test_a_record_that_cannot_be_deserialized_does_not_take_those_before_it(log: CommitLog) -> None:
    """They were fetched, but the loop was left before they were handed out."""
    topic = log.create_topic("t", partitions=2)
    topic.partition(0).append_many([b"good"] * 3)
    topic.partition(1).append_many([b"good", b"good", b"bad", b"good"])
    settings: dict[str, Any] = {"consumer_timeout_ms": 0, "value_deserializer": refuse_bad}
    with grouped(log, **settings) as consumer:
        for _ in consumer:
            consumer.commit()
            assert consumer.committed(T1) in (None, 0)
            break
        assert (consumer.position(T), consumer.position(T1)) == (1, 0)
        found = consumer.poll()
        assert by_number(found) == {0: [1, 2], 1: [0, 1]}
        with pytest.raises(DeserializationError, match="t-1, offset 2"):
            consumer.poll()
        assert consumer.position(T1) == 2
        consumer.seek(T1, 3)
        assert by_number(consumer.poll()) == {1: [3]}


def refuse_bad(raw: bytes | None) -> str:
    if raw is None or raw == b"bad":
        raise ValueError(raw)
    return raw.decode()


# --- committing behind the caller's back


def test_a_callback_is_told_what_was_committed(log: CommitLog, partition: Partition) -> None:
    told: list[Any] = []
    with grouped(log) as consumer:
        consumer.poll(max_records=4)
        consumer.commit_async(callback=lambda *what: told.append(what))
        wait_until(lambda: consumer.poll(max_records=1) == {} and told)
        assert told == [({T: OffsetAndMetadata(4)}, None)]
        assert consumer.committed(T) == 4


def test_a_callback_is_told_what_went_wrong(log: CommitLog, pair: Topic) -> None:
    told: list[Any] = []
    with grouped(log) as consumer, log.consumer(group_id="g") as outsider:
        consumer.poll()
        outsider.commit_async({T: 3}, lambda *what: told.append(what))
        wait_until(lambda: outsider.poll() == {} and told)
        assert told[0][0] == {T: OffsetAndMetadata(3)}
        assert isinstance(told[0][1], CommitFailedError)
        assert consumer.committed(T) is None


def test_a_commit_comes_after_those_that_were_asked_for_before(log: CommitLog, partition: Partition) -> None:
    told: list[int] = []
    with grouped(log) as consumer:
        consumer.poll()
        for offset in range(1, 9):
            consumer.commit_async({T: offset}, lambda offsets, _: told.append(offsets[T].offset))
        consumer.commit({T: 9})
        assert consumer.committed(T) == 9
        assert told == list(range(1, 9))


def test_who_closes_leaves_no_commit_behind(log: CommitLog, partition: Partition) -> None:
    told: list[Any] = []
    consumer = grouped(log)
    consumer.poll()
    for offset in range(1, 9):
        consumer.commit_async({T: offset}, lambda *what: told.append(what))
    consumer.close()
    assert [error for _, error in told] == [None] * 8
    assert committed(log, "g") == 8


def test_a_callback_that_fails_harms_nobody(log: CommitLog, partition: Partition) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("not ours")

    consumer = grouped(log)
    consumer.poll()
    consumer.commit_async({T: 1}, failing)
    consumer.commit_async({T: 2}, failing)
    consumer.commit({T: 3})
    consumer.commit_async({T: 4}, failing)
    assert all(task.error is None for task in consumer.health())
    consumer.close()
    assert committed(log, "g") == 4
    assert not [one for one in threading.enumerate() if one.name == "commitlog-consumer"]


def test_a_callback_may_use_the_consumer(log: CommitLog, partition: Partition) -> None:
    """Whoever makes the commit, the caller or the thread behind its back, nobody waits for the other."""
    told: list[int] = []

    with grouped(log) as consumer:

        def callback(*_: object) -> None:
            told.append(consumer.position(T))
            consumer.commit({T: 7})

        def work() -> int:
            for offset in range(50):
                consumer.commit_async({T: offset}, callback)
                consumer.commit({T: offset})
            return 50

        consumer.poll()
        thread, outcome = in_thread(work)
        assert ended(thread), "a deadlock"
        assert (outcome, told) == ([50], [10] * 50)


def test_a_callback_is_called_within_a_poll_that_waits(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in its thread: the one that commits behind its back has heartbeats to tell."""
    told: list[Any] = []
    with grouped(log) as consumer:
        drained(consumer)
        assert consumer._session is not None
        member = consumer._session.member
        real = member.commit

        def late(offsets: Any) -> None:
            wait_until(lambda: is_waiting(consumer))
            real(offsets)

        monkeypatch.setattr(member, "commit", late)

        def callback(*_: object) -> None:
            told.append(threading.current_thread())
            partition.append(b"ends the wait")

        consumer.commit_async({T: 5}, callback)
        thread, outcome = in_thread(lambda: polled(consumer, timeout=1_000_000))
        assert ended(thread)
        assert (outcome, told) == ([[10]], [thread])


# --- auto commit


def test_what_was_handed_out_is_committed_when_the_next_poll_is_due(
    log: CommitLog, partition: Partition
) -> None:
    with log.consumer("t", group_id="g", auto_commit_interval_ms=0) as consumer:
        consumer.poll(max_records=4)
        assert (consumer.committed(T) or 0) == 0, "the caller may not be done with them"
        consumer.poll(max_records=2)
        assert consumer.committed(T) == 4
        consumer.poll(max_records=1)
        assert consumer.committed(T) == 6


def test_nothing_is_committed_before_the_interval_is_over(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t", group_id="g", auto_commit_interval_ms=10**9) as consumer:
        for _ in range(3):
            consumer.poll(max_records=3)
        assert consumer.committed(T) is None
    assert committed(log, "g") == 9


def test_a_waiting_poll_commits_when_that_is_due(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t", group_id="g", auto_commit_interval_ms=20) as consumer:
        consumer.poll()
        thread, _ = in_thread(lambda: consumer.poll(timeout=60))
        wait_until(lambda: consumer.committed(T) == 10)
        partition.append(b"v")
        assert ended(thread)


@pytest.mark.parametrize("handed", [1, 3, 7])
def test_what_an_iteration_did_not_hand_out_is_not_committed(
    log: CommitLog, partition: Partition, handed: int
) -> None:
    with log.consumer("t", group_id="g", auto_commit_interval_ms=0) as consumer:
        for record in consumer:
            if record.offset == handed - 1:
                break
        if handed == 7:
            consumer.poll(max_records=1)  # commits what the iteration has handed out
            assert consumer.committed(T) == 7
            handed += 1
    assert committed(log, "g") == handed
    with log.consumer("t", group_id="g") as consumer:
        assert polled(consumer) == list(range(handed, 10))


@pytest.mark.parametrize("how", ["close", "unsubscribe", "subscribe", "assign", "log"])
def test_what_was_handed_out_is_committed_when_it_is_given_up(log_path: Path, how: str) -> None:
    log = commitlog.open(log_path)
    fill(log.create_topic("t").partition(0), 10)
    fill(log.create_topic("u").partition(0), 10)
    consumer = log.consumer("t", group_id="g")
    consumer.poll(max_records=4)
    if how == "close":
        consumer.close()
    elif how == "unsubscribe":
        consumer.unsubscribe()
    elif how == "subscribe":
        consumer.subscribe("u")
    elif how == "assign":
        consumer.assign([("u", 0)])
    log.close()
    with commitlog.open(log_path) as again:
        assert committed(again, "g") == 4


def test_without_auto_commit_nothing_is_committed_at_the_end(log: CommitLog, partition: Partition) -> None:
    with grouped(log) as consumer:
        consumer.poll()
    assert committed(log, "g") is None


def test_offsets_that_were_reset_meanwhile_are_committed_anew(log: CommitLog, partition: Partition) -> None:
    """The same offset as before is not what the group has any more."""
    with log.consumer("t", group_id="g", auto_commit_interval_ms=10**9) as consumer:
        consumer.poll()
        consumer.unsubscribe()
        assert consumer.committed(T) == 10
        log.reset_offsets("g", "earliest")
        consumer.subscribe("t")
        assert polled(consumer) == list(range(10))
    assert committed(log, "g") == 10


def test_assigned_partitions_are_committed_too_where_the_group_has_no_members(
    log: CommitLog, pair: Topic
) -> None:
    with log.consumer(group_id="g") as consumer:
        consumer.assign([T1])
        consumer.poll(max_records=3)
    with log.consumer(group_id="g") as consumer:
        consumer.assign([T, T1])
        assert (consumer.position(T), consumer.position(T1)) == (0, 3)


# --- batches and arrow


def test_batches_come_by_partition(log: CommitLog) -> None:
    topic = log.create_topic("t", partitions=2)
    topic.partition(0).append_many([b"v"] * 5)
    topic.partition(1).append_many([b"w"] * 6)
    with log.consumer("t") as consumer:
        found = consumer.poll_batches()
        assert {name: [len(one) for one in batches] for name, batches in found.items()} == {T: [5], T1: [6]}
        assert (consumer.position(T), consumer.position(T1)) == (5, 6)
        assert consumer.poll_batches() == {}


def test_batches_wait_for_an_append_too(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t") as consumer:
        drained(consumer)
        thread, outcome = in_thread(lambda: consumer.poll_batches(timeout=60))
        wait_until(lambda: is_waiting(consumer))
        partition.append(b"v")
        assert ended(thread)
        assert [len(one) for one in outcome[0][T]] == [1]


def test_fetch_max_bytes_limits_batches(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    for _ in range(5):
        partition.append_many([b"v" * 100] * 10)
    with log.consumer("t", fetch_max_bytes=1) as consumer:
        assert [sum(map(len, consumer.poll_batches()[T])) for _ in range(5)] == [10] * 5
        consumer.seek_to_beginning()
        assert sum(map(len, consumer.poll_batches(max_bytes=1 << 20)[T])) == 50


def test_arrow_tables_have_what_was_appended(log: CommitLog, pair: Topic) -> None:
    pa = pytest.importorskip("pyarrow")
    pair.partition(0).append(None, key=None, headers=[("h", b"1")], timestamp=7)
    with log.consumer("t") as consumer:
        found = consumer.poll_arrow()
        assert {name: table.num_rows for name, table in found.items()} == {T: 11, T1: 10}
        table = found[T]
        assert table.schema.names == ["offset", "timestamp", "key", "value", "headers"]
        assert table.schema.field("offset").type == pa.int64()
        assert table.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
        assert table.schema.field("value").type == pa.binary()
        assert table.column("offset").to_pylist() == list(range(11))
        assert table.slice(10).to_pylist()[0]["value"] is None
        assert consumer.poll_arrow() == {}
        assert consumer.position(T) == 11


def test_deserializers_do_not_touch_batches(log: CommitLog, partition: Partition) -> None:
    with log.consumer("t", value_deserializer=refuse_bad) as consumer:
        (batch,) = consumer.poll_batches()[T]
        assert next(batch.records()).value == b"%020d" % 0


def test_records_batches_and_iteration_may_be_mixed(log: CommitLog) -> None:
    partition = log.create_topic("t", config=SMALL).partition(0)
    for _ in range(6):
        fill(partition, 7)
        partition.append_many([b"v"] * 5)
    with log.consumer("t", consumer_timeout_ms=0, max_poll_records=4) as consumer:
        seen: list[int] = []
        while True:
            found = polled(consumer)
            for batches in consumer.poll_batches(max_bytes=1).values():
                found += [one.offset for batch in batches for one in batch.records()]
            for record in consumer:
                found.append(record.offset)
                break
            seen += found
            if not found:
                break
    assert seen == list(range(72))


# --- settings


@pytest.mark.parametrize(
    "settings",
    [
        {"auto_offset_reset": "first"},
        {"max_poll_records": 0},
        {"fetch_max_bytes": 0},
        {"consumer_timeout_ms": -2},
        {"auto_commit_interval_ms": -1},
        {"enable_auto_commit": 1},
        {"group_id": 5},
        {"group_id": ""},
        {"group_id": "g" * 300},
        {"key_deserializer": "utf-8"},
        {"value_deserializer": 5},
        {"session_timeout_ms": 3000},
        {"heartbeat_interval_ms": 0},
        {"isolation_level": "serializable"},
        {"partition_assignment_strategy": ()},
        {"partition_assignment_strategy": 5},
        {"partition_assignment_strategy": ["range", 5]},
        {"group_id": "g", "partition_assignment_strategy": "nobody knows it"},
        {"groupid": "g"},
    ],
)
def test_wrong_settings_are_refused(log: CommitLog, partition: Partition, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        log.consumer("t", **settings)
    assert log.health().ok


# --- damage


def test_damage_is_told_once_all_before_it_was_handed_out(log: CommitLog) -> None:
    topic = log.create_topic("t", partitions=2, config={"flush_ms": -1})
    for partition in topic.partitions:
        for _ in range(4):
            partition.append_many([b"value"] * 3)
        partition.roll()
    damaged = topic.partition(1)
    size = next(damaged.batches()).size_bytes
    flip(damaged.segments[0].path, 3 * size - 8)
    with log.consumer("t", group_id="g", consumer_timeout_ms=0) as consumer:
        seen = []
        with pytest.raises(CorruptionError):
            for record in consumer:
                seen.append((record.partition, record.offset))
        assert sorted(seen) == [(0, offset) for offset in range(12)] + [(1, offset) for offset in range(6)]
        for _ in range(2):
            with pytest.raises(CorruptionError):
                consumer.poll()
        assert consumer.position(T1) == 6
        topic.partition(0).append(b"v")
        consumer.pause(T1)
        assert by_number(consumer.poll()) == {0: [12]}
        consumer.resume(T1)
        consumer.seek(T1, 9)
        assert by_number(consumer.poll()) == {1: [9, 10, 11]}


# --- topics that come, go and change


def test_a_compacted_topic_is_read_to_its_end(log: CommitLog) -> None:
    config = {**SMALL, "cleanup_policy": "compact", "delete_retention_ms": 0}
    partition = log.create_topic("t", config=config).partition(0)
    for number in range(50):
        partition.append(b"%d" % number if number < 49 else None, key=b"%d" % (number % 5))
    partition.roll()
    partition.compact()
    partition.compact(10**15)
    left = offsets(partition.records())
    assert len(left) == 4
    with log.consumer("t", group_id="g", consumer_timeout_ms=0) as consumer:
        assert offsets(consumer) == left
        assert (consumer.position(T), consumer.lag()) == (50, {T: 0})
    assert committed(log, "g") == 50


def test_a_deleted_topic_is_read_no_more(log: CommitLog, partition: Partition) -> None:
    fill(log.create_topic("u").partition(0), 3)
    with log.consumer("t", "u") as consumer:
        consumer.poll(max_records=1)
        log.delete_topic("t")
        assert {name.topic for name in consumer.poll()} == {"u"}
        assert consumer.poll() == {}
        assert consumer.assignment() == {("u", 0)}


def test_a_topic_that_was_deleted_and_made_again_is_read_from_its_start(
    log: CommitLog, partition: Partition
) -> None:
    groups: list[dict[str, Any]] = [{}, {"group_id": "g", "auto_commit_interval_ms": 0}]
    for settings in groups:
        with log.consumer("t", **settings) as consumer:
            assert polled(consumer) == list(range(10))
            consumer.poll()
            log.delete_topic("t")
            fill(log.create_topic("t").partition(0), 10)
            assert polled(consumer, timeout=30) == list(range(10)), settings


@pytest.mark.parametrize("when", ["poll", "close"])
def test_offsets_of_a_deleted_topic_are_not_committed_again(
    log: CommitLog, partition: Partition, when: str
) -> None:
    """Or the next topic of that name would not be read from its start."""
    with log.consumer("t", group_id="g", auto_commit_interval_ms=0) as consumer:
        consumer.poll(max_records=5)
        log.delete_topic("t")
        if when == "poll":
            consumer.poll()
            consumer.commit()
    fill(log.create_topic("t").partition(0), 8)
    with log.consumer("t", group_id="g") as consumer:
        assert polled(consumer) == list(range(8))


def test_offsets_of_a_topic_that_another_process_deleted_are_not_committed_again(
    log: CommitLog, log_path: Path, partition: Partition
) -> None:
    with commitlog.open(log_path, mode="r") as reading, reading.consumer("t", group_id="g") as consumer:
        consumer.poll(max_records=5)
        log.delete_topic("t")
    fill(log.create_topic("t").partition(0), 8)
    with log.consumer("t", group_id="g") as consumer:
        assert polled(consumer) == list(range(8))


def test_an_assigned_topic_that_is_deleted_is_an_error(log: CommitLog, partition: Partition) -> None:
    with log.consumer() as consumer:
        consumer.assign([T])
        consumer.poll(max_records=1)
        log.delete_topic("t")
        with pytest.raises(UnknownTopicError):
            consumer.poll()


# --- other logs


def test_a_consumer_of_a_log_that_is_open_for_reading_follows_and_commits(
    log: CommitLog, log_path: Path, partition: Partition
) -> None:
    with commitlog.open(log_path, mode="r") as reading:
        with reading.consumer("t", group_id="g") as consumer:
            assert polled(consumer) == list(range(10))
            thread, outcome = in_thread(lambda: polled(consumer, timeout=60))
            fill(partition, 1)
            assert ended(thread)
            assert outcome == [[10]]
        assert committed(reading, "g") == 11
    assert committed(log, "g") == 11


def test_a_consumer_of_a_log_that_is_open_for_reading_sees_topics_and_partitions_to_come(
    log: CommitLog, log_path: Path, partition: Partition
) -> None:
    with commitlog.open(log_path, mode="r") as reading, reading.consumer(heartbeat_interval_ms=1) as consumer:
        consumer.subscribe(pattern=".*")
        drained(consumer)
        fill(log.create_topic("u").partition(0), 2)
        assert set(consumer.poll(timeout=30)) == {("u", 0)}
        log.topic("u").add_partitions(2)
        fill(log.topic("u").partition(1), 2)
        assert set(consumer.poll(timeout=30)) == {("u", 1)}
        fill(log.topic("u").partition(0), 1)
        assert by_number(consumer.poll(timeout=30)) == {0: [2]}


def test_consumers_of_a_shared_log_follow_one_another(log_path: Path) -> None:
    with commitlog.open(log_path, mode="shared") as one, commitlog.open(log_path, mode="shared") as other:
        one.create_topic("t", partitions=2)
        with other.consumer("t", group_id="g", heartbeat_interval_ms=1) as consumer:
            assert consumer.poll() == {}
            thread, outcome = in_thread(lambda: by_number(consumer.poll(timeout=60)))
            one.topic("t").partition(1).append(b"v")
            assert ended(thread)
            assert outcome == [{1: [0]}]
        assert committed(one, "g", T1) == 1


# --- the end


def test_closing_twice_is_fine(log: CommitLog, partition: Partition) -> None:
    consumer = log.consumer("t", group_id="g")
    consumer.close()
    consumer.close()
    consumer.__exit__()


def test_a_closed_consumer_refuses_everything(log: CommitLog, partition: Partition) -> None:
    consumer = log.consumer("t", group_id="g")
    consumer.poll()
    consumer.close()
    for call in calls_on(consumer):
        with pytest.raises(ClosedError):
            call()
    assert (consumer.assignment(), consumer.paused(), consumer.subscription()) == (set(), set(), set())


def calls_on(consumer: Consumer) -> list[Callable[[], Any]]:
    """All that a consumer of "t" may be asked to do."""
    return [
        consumer.poll,
        consumer.poll_batches,
        consumer.poll_arrow,
        lambda: next(iter(consumer)),
        lambda: consumer.subscribe("t"),
        lambda: consumer.subscribe(pattern="t"),
        consumer.unsubscribe,
        lambda: consumer.assign([T]),
        lambda: consumer.seek(T, 0),
        consumer.seek_to_beginning,
        consumer.seek_to_end,
        lambda: consumer.position(T),
        consumer.pause,
        consumer.resume,
        consumer.lag,
        lambda: consumer.beginning_offsets([T]),
        lambda: consumer.end_offsets([T]),
        lambda: consumer.offsets_for_times({T: 0}),
        consumer.commit,
        lambda: consumer.commit({T: 5}),
        consumer.commit_async,
        lambda: consumer.committed(T),
        consumer.group_metadata,
    ]


@pytest.mark.parametrize("settings", [{}, {"group_id": "g"}])
def test_closing_ends_a_poll_that_waits(log: CommitLog, partition: Partition, settings: Any) -> None:
    consumer = log.consumer("t", **settings)
    drained(consumer)
    thread, outcome = in_thread(lambda: consumer.poll(timeout=1_000_000))
    wait_until(lambda: is_waiting(consumer))
    consumer.close()
    assert ended(thread)
    assert outcome == [{}]


def test_closing_ends_an_iteration_that_waits(log: CommitLog, partition: Partition) -> None:
    consumer = log.consumer("t")
    thread, outcome = in_thread(lambda: offsets(consumer))
    wait_until(lambda: is_waiting(consumer))
    consumer.close()
    assert ended(thread)
    assert outcome == [list(range(10))]


def test_closing_ends_an_iteration_that_is_busy(log: CommitLog, pair: Topic) -> None:
    consumer = log.consumer("t")
    seen = []
    for record in consumer:
        seen.append(record.offset)
        consumer.close()
    assert seen == [0]


def test_closing_the_log_ends_what_waits(log_path: Path) -> None:
    log = commitlog.open(log_path)
    fill(log.create_topic("t").partition(0), 10)
    consumer = log.consumer("t", group_id="g")
    drained(consumer)
    thread, outcome = in_thread(lambda: consumer.poll(timeout=1_000_000))
    wait_until(lambda: is_waiting(consumer))
    log.close()
    assert ended(thread)
    assert outcome == [{}]
    with pytest.raises(ClosedError):
        consumer.poll()
    with commitlog.open(log_path) as again:
        assert committed(again, "g") == 10


def test_closing_the_log_closes_consumers_while_producers_still_deliver(log_path: Path) -> None:
    """A listener that is told of the end may still send something."""
    log = commitlog.open(log_path)
    fill(log.create_topic("t").partition(0), 10)
    log.create_topic("results")
    producer = log.producer()

    class Sends(commitlog.RebalanceListener):
        def on_revoked(self, partitions: set[TopicPartition]) -> None:
            producer.send("results", b"%d" % len(partitions))

    consumer = log.consumer(group_id="g")
    consumer.subscribe("t", listener=Sends())
    consumer.poll()
    log.close()
    with commitlog.open(log_path) as again:
        assert [one.value for one in again.topic("results").partition(0).records()] == [b"1"]


def test_the_thread_of_a_consumer_shows_and_ends_with_it(log: CommitLog, partition: Partition) -> None:
    def of_consumers() -> list[Any]:
        return [task for task in log.health().tasks if task.name == "consumer"]

    with log.consumer("t"):
        assert of_consumers() == [], "alone it needs none"
    consumer = log.consumer("t", group_id="g")
    wait_until(lambda: [task.runs for task in of_consumers()] != [0])
    (task,) = of_consumers()
    assert (task.alive, task.failures, task.error) == (True, 0, None)
    assert log.health().ok
    consumer.close()
    assert not [one for one in threading.enumerate() if one.name == "commitlog-consumer"]


def test_the_thread_of_a_consumer_tells_when_it_cannot(
    log: CommitLog, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    with log.consumer("t", group_id="g", heartbeat_interval_ms=1) as consumer:

        def failing() -> float:
            raise OSError(errno.EIO, "Input/output error")

        assert consumer._session is not None
        with monkeypatch.context() as patch:
            patch.setattr(consumer._session.member, "tick", failing)
            wait_until(lambda: not log.health().ok)
            assert "Input/output error" in str(consumer.health()[0].error)


def test_threads_share_a_consumer(log: CommitLog) -> None:
    topic = log.create_topic("t", partitions=3)
    for partition in topic.partitions:
        fill(partition, 300)
    seen: list[tuple[int, int]] = []
    with log.consumer("t", max_poll_records=7) as consumer:
        threads = [in_thread(lambda: drained(consumer)) for _ in range(4)]
        for thread, outcome in threads:
            assert ended(thread)
            seen += outcome[0]
    assert sorted(seen) == [(number, offset) for number in range(3) for offset in range(300)]


def test_a_forked_consumer_refuses_everything(log: CommitLog, partition: Partition) -> None:
    """As a child sees it; tests/integration has real ones."""
    consumer = log.consumer("t", group_id="g")
    consumer.poll()
    consumer._forked = True
    for call in calls_on(consumer):
        with pytest.raises(ForkedError):
            call()
    consumer._forked = False
    consumer.close()
