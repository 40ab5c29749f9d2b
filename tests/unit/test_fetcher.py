"""A place reads its partition in order, whatever becomes of it; the fetcher lets partitions take turns."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import fill, flip

import commitlog
from commitlog import (
    CommitLog,
    ConsumerRecord,
    CorruptionError,
    OffsetOutOfRangeError,
    Partition,
    Record,
    RecordBatch,
    Segment,
    TopicPartition,
)
from commitlog.clients.fetcher import NOWHERE, Fetcher, Place, Reset
from commitlog.clients.quotas import Quotas
from commitlog.clients.rate_limit import Throttle
from commitlog.errors import DeserializationError, NoOffsetError, NotAssignedError

T = TopicPartition("t", 0)
SMALL = {"segment_bytes": 600, "index_interval_bytes": 0, "file_delete_delay_ms": 0, "flush_ms": -1}


def place_in(partition: Any, position: int = 0, reset: Reset = "earliest", name: TopicPartition = T) -> Place:
    return Place(name, partition, position, reset)


def unlimited() -> Throttle:
    """The throttle of a client without a quota."""
    return Throttle(Quotas("no such folder").meter("", "consume"))


def fetcher_of(*places: Place, key: Any = None, value: Any = None) -> Fetcher:
    fetcher = Fetcher(key, value, unlimited())
    fetcher.places = {place.name: place for place in places}
    return fetcher


def offsets(records: list[Any]) -> list[int]:
    return [record.offset for record in records]


def drained(place: Place, limit: int = 7) -> list[Record]:
    """Everything that is there now."""
    found: list[Record] = []
    while records := place.records(limit):
        assert len(records) <= limit
        assert {record[:2] for record in records} == {place.name}
        found += [Record(*record[2:]) for record in records]
    return found


def rows_of(batches: list[RecordBatch]) -> list[int]:
    return [record.offset for batch in batches for record in batch.records()]


@pytest.fixture
def small(log: CommitLog) -> Partition:
    """Segments of a few records."""
    partition: Partition = log.create_topic("small", config=SMALL).partition(0)
    return partition


@pytest.fixture
def compacted(log: CommitLog) -> Partition:
    """Offsets 3, 8, 9 and 10 of 12 are left: gaps at the start, in the middle and at the end."""
    config = {**SMALL, "segment_bytes": 1 << 20, "cleanup_policy": "compact"}
    partition: Partition = log.create_topic("c", config=config).partition(0)
    partition.append_many([b"v"] * 4, keys=[b"a"] * 4)
    partition.append_many([b"v"] * 4, keys=[b"b"] * 4)
    partition.append_many([b"v"] * 3, keys=[b"c", b"d", b"b"])
    partition.append(None, key=b"gone")
    partition.roll()
    far = 10**15
    partition.compact(far)
    partition.compact(2 * far)  # the tombstone's time is over
    assert (offsets(list(partition.records())), partition.next_offset) == ([3, 8, 9, 10], 12)
    return partition


# --- a place


def test_records_come_in_order_and_none_is_left_out(partition: Partition) -> None:
    fill(partition, 10)
    partition.append_many([b"%d" % number for number in range(40)])
    fill(partition, 5)
    place = place_in(partition)
    assert drained(place) == list(partition.records())
    assert (place.fetched, place.records(7)) == (55, [])


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 10, 11, 1000])
def test_no_more_than_the_limit_over_batches_and_single_records(small: Partition, limit: int) -> None:
    for _ in range(3):
        small.append_many([b"value %d" % number for number in range(9)])
        fill(small, 4)
    place = place_in(small)
    first = place.records(limit)
    assert offsets(first) == list(range(min(limit, 39)))
    assert place.fetched == min(limit, 39)
    place.seek(0)
    assert drained(place, limit) == list(small.records())


def test_what_is_appended_later_comes_later(partition: Partition) -> None:
    place = place_in(partition)
    for number in range(0, 20, 4):
        assert place.records(10) == []
        partition.append(b"single")
        assert offsets(place.records(10)) == [number]
        partition.append_many([b"many"] * 3)
        assert offsets(place.records(10)) == [number + 1, number + 2, number + 3]


def test_a_range_that_was_begun_does_not_hide_what_was_appended_since(partition: Partition) -> None:
    partition.append_many([b"old"] * 5)
    place = place_in(partition)
    assert offsets(place.records(2)) == [0, 1]
    partition.append_many([b"new"] * 5)
    assert offsets(drained(place)) == list(range(2, 10))


def test_the_position_waits_for_what_is_handed_out(partition: Partition) -> None:
    fill(partition, 5)
    place = place_in(partition)
    place.records(3)
    assert (place.position, place.fetched) == (0, 3)


def test_a_place_goes_on_where_it_was_sought(partition: Partition) -> None:
    fill(partition, 10)
    place = place_in(partition)
    for target in (3, 0, 9, 10, 4):
        place.records(2)
        place.seek(target)
        assert offsets(drained(place)) == list(range(target, 10))


# --- gaps


def test_gaps_are_passed_over(compacted: Partition) -> None:
    for limit in (1, 2, 3, 4, 5):
        place = place_in(compacted)
        assert offsets(drained(place, limit)) == [3, 8, 9, 10]
        assert (place.fetched, place.position) == (12, 12), "behind what is gone"


def test_the_end_of_a_gap_is_reached_at_once_where_nothing_is_left_to_cut(compacted: Partition) -> None:
    place = place_in(compacted)
    assert offsets(place.records(5)) == [3, 8, 9, 10]
    assert place.fetched == 12


@pytest.mark.parametrize(("start", "left"), [(0, 4), (3, 4), (4, 3), (8, 3), (10, 1), (11, 0), (12, 0)])
def test_a_place_may_start_in_a_gap(compacted: Partition, start: int, left: int) -> None:
    assert offsets(drained(place_in(compacted, start))) == [3, 8, 9, 10][4 - left :]
    place = place_in(compacted, start)
    assert rows_of(place.batches(1 << 20)) == [3, 8, 9, 10][4 - left :]
    assert place.fetched == 12


def test_what_comes_after_a_gap_at_the_end_is_read(compacted: Partition) -> None:
    place = place_in(compacted, 11)
    assert place.records(10) == []
    compacted.append(b"v", key=b"k")
    assert offsets(place.records(10)) == [12]


def test_a_pass_of_compaction_in_the_middle_of_a_range_leaves_nothing_out(log: CommitLog) -> None:
    partition = log.create_topic("c", config={**SMALL, "cleanup_policy": "compact"}).partition(0)
    for number in range(60):
        partition.append(b"%d" % number, key=b"%d" % (number % 4 if number < 50 else number))
    place = place_in(partition)
    seen = offsets(place.records(5))
    partition.roll()
    partition.compact()
    seen += offsets(drained(place))
    assert seen == sorted(set(seen))
    assert set(offsets(list(partition.records()))) <= set(seen)
    assert place.fetched == 60


# --- a log that changes under the reader


def test_a_reader_of_trimmed_records_goes_on_at_the_first(small: Partition) -> None:
    fill(small, 60)
    place = place_in(small)
    place.records(5)
    small.trim_before(40)
    assert offsets(drained(place)) == list(range(40, 60))


def test_a_reader_of_trimmed_records_goes_to_the_end_if_told_so(small: Partition) -> None:
    fill(small, 60)
    place = place_in(small, reset="latest")
    place.records(5)
    small.trim_before(40)
    assert place.records(10) == []
    assert place.position == 60
    fill(small, 1)
    assert offsets(place.records(10)) == [60]


def test_a_reader_of_trimmed_records_is_told_if_it_asks_for_that(small: Partition) -> None:
    fill(small, 60)
    place = place_in(small, reset="none")
    place.records(5)
    small.trim_before(40)
    for read in (place.records, place.batches, place.records):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            read(10)
        assert caught.value.args == ("small-0", 5, 40, 60)
    place.seek(40)
    assert offsets(drained(place)) == list(range(40, 60))


@pytest.mark.parametrize("read", ["records", "batches"])
def test_records_trimmed_in_the_middle_of_a_read_are_passed_over(
    small: Partition, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """The first segment is read when the second and third go."""
    fill(small, 60)
    ends = [one.next_offset for one in small.segments]
    real_runs, real_batches = Segment.record_runs, Segment.combined_batches

    def trims(real: Any) -> Any:
        def reading(self: Segment, *bounds: Any, **more: Any) -> Iterator[Any]:
            yield from real(self, *bounds, **more)
            if self.base_offset == 0:
                small.trim_before(ends[2])

        return reading

    monkeypatch.setattr(Segment, "record_runs", trims(real_runs))
    monkeypatch.setattr(Segment, "combined_batches", trims(real_batches))
    place = place_in(small)
    found = offsets(drained(place, 100)) if read == "records" else rows_of(all_batches(place))
    assert found == [*range(ends[0]), *range(ends[2], 60)]


@pytest.mark.parametrize("read", ["records", "batches"])
@pytest.mark.parametrize("when", ["asked", "read"])
def test_records_trimmed_as_a_read_begins_are_passed_over(
    small: Partition, monkeypatch: pytest.MonkeyPatch, read: str, when: str
) -> None:
    """They were still there when the place looked where it stands."""
    fill(small, 60)
    place = place_in(small)
    left = [40]

    def trimming(real: Any) -> Any:
        def reading(*args: Any, **more: Any) -> Any:
            pieces = real(*args, **more) if when == "read" else None
            if left:
                small.trim_before(left.pop())
            return pieces if when == "read" else real(*args, **more)

        return reading

    monkeypatch.setattr(small, "consumer_records", trimming(small.consumer_records))
    monkeypatch.setattr(small, "combined_batches", trimming(small.combined_batches))
    found = offsets(drained(place, 100)) if read == "records" else rows_of(all_batches(place))
    assert found == list(range(40, 60))


def all_batches(place: Place, max_bytes: int = 1 << 30) -> list[RecordBatch]:
    found: list[RecordBatch] = []
    while some := place.batches(max_bytes):
        found += some
    return found


def test_a_reader_behind_the_end_goes_where_it_is_told(partition: Partition) -> None:
    fill(partition, 10)
    for reset, expected in (("earliest", 0), ("latest", 4)):
        place = place_in(partition, 10, reset)  # type: ignore[arg-type]
        partition.truncate_from(4)
        place.records(1)
        assert place.fetched - expected in (0, 1)
        fill(partition, 6)
    place = place_in(partition, 10, "none")
    partition.truncate_from(4)
    with pytest.raises(OffsetOutOfRangeError):
        place.records(1)


def test_what_is_appended_after_a_truncation_is_read(small: Partition) -> None:
    fill(small, 40)
    place = place_in(small)
    assert offsets(place.records(5)) == list(range(5))
    small.truncate_from(20)
    small.append_many([b"other"] * 30)
    after = drained(place)
    assert offsets(after) == list(range(5, 50))
    assert {record.value for record in after[20:]} == {b"other"}


def test_a_truncation_in_the_middle_of_a_read_leaves_what_follows_readable(
    small: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, 40)
    end = small.segments[0].next_offset
    real = Segment.record_runs
    once = [True]

    def truncates(self: Segment, *bounds: Any, **more: Any) -> Iterator[Any]:
        yield from real(self, *bounds, **more)
        if once:
            once.clear()
            small.truncate_from(end)

    monkeypatch.setattr(Segment, "record_runs", truncates)
    place = place_in(small)
    assert offsets(place.records(100)) == list(range(end))
    assert place.fetched == end
    small.append(b"other")
    assert [one.value for one in place.records(100)] == [b"other"]


# --- where to start


def test_nowhere_means_where_the_reset_says(small: Partition) -> None:
    fill(small, 60)
    small.trim_before(30)
    assert place_in(small, NOWHERE, "earliest").position == 30
    assert place_in(small, NOWHERE, "latest").position == 60
    place = place_in(small, NOWHERE, "none")
    for read in (place.records, place.batches):
        with pytest.raises(NoOffsetError, match="t-0"):
            read(1)


def test_latest_is_the_end_when_the_place_was_made(partition: Partition) -> None:
    fill(partition, 3)
    place = place_in(partition, NOWHERE, "latest")
    fill(partition, 2)
    assert offsets(place.records(10)) == [3, 4]


# --- damage


@pytest.fixture
def damaged(log: CommitLog) -> Partition:
    """Batches of three; the fourth one, [9, 12), is damaged."""
    partition: Partition = log.create_topic("d", config={"flush_ms": -1}).partition(0)
    for _ in range(8):
        partition.append_many([b"value"] * 3)
    partition.roll()
    sizes = [batch.size_bytes for batch in partition.batches()]
    flip(partition.segments[0].path, sum(sizes[:3]) + sizes[3] - 8)
    return partition


@pytest.mark.parametrize("limit", [1, 2, 4, 9, 10, 100])
def test_all_before_the_damage_is_given_out_and_then_the_damage_is_told_each_time(
    damaged: Partition, limit: int
) -> None:
    place = place_in(damaged)
    found: list[Any] = []
    while len(found) < 9:
        found += place.records(limit)
    assert offsets(found) == list(range(9))
    for _ in range(3):
        with pytest.raises(CorruptionError):
            place.records(limit)
        assert (place.fetched, place.position) == (9, 0)
    place.seek(12)
    assert offsets(drained(place)) == list(range(12, 24))


def test_batches_before_the_damage_are_given_out_too(damaged: Partition) -> None:
    place = place_in(damaged)
    assert rows_of(place.batches(1 << 20)) == list(range(9))
    for _ in range(3):
        with pytest.raises(CorruptionError):
            place.batches(1 << 20)
    place.seek(12)
    assert rows_of(place.batches(1 << 20)) == list(range(12, 24))


@pytest.mark.parametrize("failure", [OSError(errno.EMFILE, "Too many open files"), KeyboardInterrupt()])
@pytest.mark.parametrize("limit", [3, 1000])
def test_a_read_that_failed_or_was_interrupted_is_made_again(
    small: Partition, monkeypatch: pytest.MonkeyPatch, failure: BaseException, limit: int
) -> None:
    """What is wrong for a moment must not look like the end of the range."""
    fill(small, 40)
    fails_once(monkeypatch, small.segments[1].base_offset, failure)
    place = place_in(small)
    seen: list[Any] = [*place.records(2)]
    with pytest.raises(type(failure)):
        while place.fetched < 40:
            seen += place.records(limit)
    seen += drained(place)
    assert offsets(seen) == list(range(40))


def fails_once(monkeypatch: pytest.MonkeyPatch, base_offset: int, failure: BaseException) -> None:
    """Let the next read of a segment fail."""
    left = [failure]
    for name in ("record_runs", "combined_batches"):
        real: Callable[..., Iterator[Any]] = getattr(Segment, name)

        def failing(self: Segment, *bounds: Any, real: Any = real, **more: Any) -> Iterator[Any]:
            if self.base_offset == base_offset and left:
                raise left.pop()
            return real(self, *bounds, **more)

        monkeypatch.setattr(Segment, name, failing)


# --- batches


def test_batches_are_given_up_to_the_limit_or_just_above(partition: Partition) -> None:
    for _ in range(10):
        partition.append_many([b"v" * 100] * 5)
    size = next(partition.batches()).size_bytes
    for limit, count in ((1, 1), (size, 1), (size + 1, 2), (2 * size, 2), (100 * size, 10)):
        place = place_in(partition)
        assert rows_of(place.batches(limit)) == list(range(5 * count))
        assert place.fetched == 5 * count
        assert rows_of(all_batches(place, limit)) == list(range(5 * count, 50))


def test_single_records_are_put_together_in_batches(partition: Partition) -> None:
    fill(partition, 60)
    batches = all_batches(place_in(partition))
    assert rows_of(batches) == list(range(60))
    assert len(batches) < 30


def test_a_batch_is_cut_where_the_place_stands(partition: Partition) -> None:
    partition.append_many([b"v"] * 10)
    place = place_in(partition)
    place.records(4)
    assert rows_of(place.batches(1)) == list(range(4, 10))
    place.seek(7)
    assert rows_of(place.batches(1)) == [7, 8, 9]
    assert place.batches(1) == []


def test_batches_pass_over_gaps(compacted: Partition) -> None:
    place = place_in(compacted)
    assert rows_of(all_batches(place, 1)) == [3, 8, 9, 10]
    assert (place.fetched, place.position) == (12, 12)


# --- the fetcher: turns


@pytest.fixture
def three(log: CommitLog) -> list[Place]:
    """Three partitions with 10 records each."""
    topic = log.create_topic("three", partitions=3)
    for partition in topic.partitions:
        fill(partition, 10)
    return [
        place_in(partition, name=TopicPartition("three", number))
        for number, partition in enumerate(topic.partitions)
    ]


def numbers(found: dict[TopicPartition, list[Any]]) -> dict[int, list[int]]:
    return {name.partition: offsets(records) for name, records in found.items()}


def test_records_know_where_they_came_from(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    partition.append(b"v", key=b"k", timestamp=5, headers=[("h", b"1")])
    partition.append(None, timestamp=6)
    found = fetcher_of(place_in(partition)).records(10)
    assert found == {
        T: [
            ConsumerRecord("t", 0, 0, 5, b"k", b"v", (("h", b"1"),)),
            ConsumerRecord("t", 0, 1, 6, None, None, ()),
        ]
    }
    assert all(type(record) is ConsumerRecord for record in found[T])


def test_the_limit_is_for_all_partitions_together_and_they_take_turns(three: list[Place]) -> None:
    fetcher = fetcher_of(*three)
    assert numbers(fetcher.records(4)) == {0: [0, 1, 2, 3]}
    assert numbers(fetcher.records(4)) == {1: [0, 1, 2, 3]}
    assert numbers(fetcher.records(12)) == {2: list(range(10)), 0: [4, 5]}
    assert numbers(fetcher.records(100)) == {1: [4, 5, 6, 7, 8, 9], 0: [6, 7, 8, 9]}
    assert fetcher.records(100) == {}


def test_a_partition_that_always_has_more_does_not_starve_the_others(three: list[Place]) -> None:
    fetcher = fetcher_of(*three)
    busy = three[0].partition
    seen: dict[int, int] = {}
    for _ in range(60):
        assert isinstance(busy, Partition)
        fill(busy, 5)
        for name, records in fetcher.records(2).items():
            seen[name.partition] = seen.get(name.partition, 0) + len(records)
    assert (seen[1], seen[2]) == (10, 10)


def test_batches_take_turns_too(three: list[Place]) -> None:
    fetcher = fetcher_of(*three)
    order = [list(fetcher.batches(1)) for _ in range(4)]
    assert order == [[("three", 0)], [("three", 1)], [("three", 2)], [("three", 0)]]
    for place in three:
        place.seek(0)
    assert len(fetcher.batches(1 << 20)) == 3


def test_what_is_paused_is_passed_over(three: list[Place]) -> None:
    three[0].paused = True
    fetcher = fetcher_of(*three)
    assert list(numbers(fetcher.records(100))) == [1, 2]
    assert fetcher.batches(100) == {}
    three[0].paused = False
    assert numbers(fetcher.records(100)) == {0: list(range(10))}


def test_only_what_is_assigned_has_a_place(three: list[Place]) -> None:
    fetcher = fetcher_of(*three)
    assert fetcher.place(TopicPartition("three", 1)) is three[1]
    with pytest.raises(NotAssignedError, match="three-7 is not assigned"):
        fetcher.place(TopicPartition("three", 7))
    fetcher.drop([TopicPartition("three", 1), TopicPartition("three", 7)])
    with pytest.raises(NotAssignedError):
        fetcher.place(TopicPartition("three", 1))


# --- the fetcher: errors


@pytest.mark.parametrize("read", ["records", "batches"])
def test_an_error_comes_once_the_records_of_the_others_are_handed_out(
    three: list[Place], damaged: Partition, read: str
) -> None:
    bad = place_in(damaged, 9, name=TopicPartition("d", 0))
    fetcher = fetcher_of(three[0], bad, three[1])
    fetch = getattr(fetcher, read)
    assert list(fetch(1 << 20)) == [three[0].name]
    for _ in range(2):
        with pytest.raises(CorruptionError):
            fetch(1 << 20)
    bad.paused = True
    assert list(fetch(1 << 20)) == [three[1].name]
    bad.paused = False
    bad.seek(12)
    assert list(fetch(1 << 20)) == [bad.name]


def test_a_partition_without_an_offset_does_not_take_the_records_of_the_others(three: list[Place]) -> None:
    lost = place_in(three[2].partition, NOWHERE, "none", three[2].name)
    fetcher = fetcher_of(three[0], lost, three[1])
    assert list(fetcher.records(100)) == [three[0].name]
    with pytest.raises(NoOffsetError):
        fetcher.records(100)
    lost.seek(0)
    assert set(fetcher.records(100)) == {lost.name, three[1].name}


# --- the fetcher: deserializers


def picky(raw: bytes | None) -> str:
    if raw is None or b"7" in raw:
        raise ValueError("not that one")
    return raw.decode()


def test_a_record_that_cannot_be_made_is_named_once_those_before_it_were_given(partition: Partition) -> None:
    partition.append_many([b"%d" % number for number in range(10)], keys=[b"k"] * 10)
    place = place_in(partition)
    fetcher = fetcher_of(place, value=picky)
    assert [one.value for one in fetcher.records(100)[T]] == ["0", "1", "2", "3", "4", "5", "6"]
    assert (place.position, place.fetched) == (0, 7), "nothing was handed out yet"
    for _ in range(2):
        with pytest.raises(DeserializationError, match="t-0, offset 7: ValueError"):
            fetcher.records(100)
    place.seek(8)
    assert [(one.key, one.value) for one in fetcher.records(100)[T]] == [(b"k", "8"), (b"k", "9")]


def test_keys_are_deserialized_and_nulls_are_given_to_the_deserializer(partition: Partition) -> None:
    partition.append(b"v", key=b"key")
    partition.append(None, key=None)
    fetcher = fetcher_of(place_in(partition), key=lambda raw: raw and raw.decode(), value=lambda raw: raw)
    assert [(one.key, one.value) for one in fetcher.records(10)[T]] == [("key", b"v"), (None, None)]


def test_the_cause_of_a_refusal_is_kept(partition: Partition) -> None:
    partition.append(b"7")
    fetcher = fetcher_of(place_in(partition), key=picky)
    with pytest.raises(DeserializationError) as caught:
        fetcher.records(1)
    assert caught.value.args[:3] == ("t", 0, 0)
    assert isinstance(caught.value.__cause__, ValueError)


# --- the fetcher: positions


def test_what_was_fetched_and_not_handed_out_comes_again_after_a_rewind(three: list[Place]) -> None:
    fetcher = fetcher_of(*three)
    fetcher.records(15)
    three[0].position = 4
    fetcher.rewind()
    assert fetcher.positions() == {three[0].name: 4, three[1].name: 0, three[2].name: 0}
    found = numbers(fetcher.records(100))
    assert {number: records[0] for number, records in found.items()} == {0: 4, 1: 0, 2: 0}


def test_a_place_without_a_position_has_none_to_commit(three: list[Place]) -> None:
    lost = place_in(three[2].partition, NOWHERE, "none", three[2].name)
    assert fetcher_of(three[0], lost).positions() == {three[0].name: 0}


# --- the fetcher: waiting


def test_a_wait_ends_by_an_append(three: list[Place], log_path: Path) -> None:
    fetcher = fetcher_of(*three)
    fetcher.records(100)
    waiting = threading.Thread(target=fetcher.wait, args=(60, lambda: False))
    waiting.start()
    assert isinstance(three[1].partition, Partition)
    three[1].partition.append(b"v")
    waiting.join(30)
    assert not waiting.is_alive()
    assert three[1].partition._state.waiters.count == 0, "nobody watches any more"


def test_a_wait_ends_by_an_append_of_another_process(three: list[Place], log_path: Path) -> None:
    with commitlog.open(log_path, mode="r") as reading:
        place = place_in(reading.topic("three").partition(2), 10)
        fetcher = fetcher_of(place)
        waiting = threading.Thread(target=fetcher.wait, args=(60, lambda: False))
        waiting.start()
        assert isinstance(three[2].partition, Partition)
        three[2].partition.append(b"v")
        waiting.join(30)
        assert not waiting.is_alive()
        assert offsets(place.records(1)) == [10]


def test_a_wait_does_not_begin_where_there_is_something_to_read(three: list[Place]) -> None:
    fetcher_of(*three).wait(1_000_000, lambda: False)


def test_a_wait_is_not_ended_by_what_is_paused(three: list[Place]) -> None:
    for place in three:
        place.paused = True
    asked: list[int] = []

    def ended() -> bool:
        asked.append(1)
        return len(asked) == 3

    fetcher_of(*three).wait(1_000_000, ended)
    assert len(asked) == 3


def test_the_records_of_a_batch_are_in_memory_once_one_was_read(partition: Partition) -> None:
    for _ in range(2):
        partition.append_many([b"v" * 1_000] * 100)  # too large to be joined
    place = place_in(partition)
    assert not place.has_in_memory(1)
    place.records(10)
    assert place.has_in_memory(90)
    place.records(85)
    assert place.has_in_memory(5)
    assert not place.has_in_memory(6)
    place.seek(20)
    assert not place.has_in_memory(1)
