from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import contents, copy_as_if_killed, fill, names, tree, wait_until

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    CorruptionError,
    OffsetOutOfRangeError,
    Partition,
    ReadOnlyError,
    Segment,
    UnknownTopicError,
)
from commitlog.locks import LogLock
from commitlog.segment_files import Trash, list_segments

CONFIG = {"segment_bytes": 1_000, "index_interval_bytes": 200, "flush_ms": -1}


@pytest.fixture
def writer(log: CommitLog) -> Partition:
    return log.create_topic("t", config=CONFIG).partition(0)


@pytest.fixture
def reader(writer: Partition, log_path: Path) -> Iterator[Any]:
    with commitlog.open(log_path, mode="r") as log:
        yield log.topic("t").partition(0)


def agrees(reader: Any, writer: Partition) -> None:
    assert reader.start_offset == writer.start_offset
    assert reader.next_offset == writer.next_offset
    assert reader.high_watermark == writer.high_watermark
    assert reader.durable_offset == writer.durable_offset
    assert contents(reader) == contents(writer)
    assert [segment.base_offset for segment in reader.segments] == [
        one.base_offset for one in writer.segments
    ]
    assert reader.size_bytes == writer.size_bytes


def test_a_reader_sees_every_append_roll_trim_truncation_and_sync_as_it_happens(
    reader: Any, writer: Partition
) -> None:
    agrees(reader, writer)
    for step in (
        lambda: fill(writer, 3),
        lambda: writer.append_many([b"a", b"b"]),
        lambda: fill(writer, 40),
        writer.roll,
        writer.sync,
        lambda: writer.trim_before(1),
        lambda: writer.trim_before(25),
        lambda: writer.truncate_from(37),
        lambda: fill(writer, 20),
        lambda: writer.truncate_from(30),
        lambda: writer.trim_before(30),
        lambda: fill(writer, 5),
        lambda: writer.truncate_from(30),
    ):
        step()
        agrees(reader, writer)


def test_a_reader_finds_records_by_offset_and_by_time(reader: Any, writer: Partition) -> None:
    whole = fill(writer, 30)
    assert [reader.get(offset) for offset in range(30)] == whole
    assert [reader.offset_for_timestamp(one.timestamp) for one in whole] == list(range(30))
    assert reader.offset_for_timestamp(10**15) is None
    assert reader.verify().ok


def test_a_reader_that_opens_later_sees_the_same(writer: Partition, log_path: Path) -> None:
    fill(writer, 30)
    writer.trim_before(11)
    with commitlog.open(log_path, mode="r") as log:
        agrees(log.topic("t").partition(0), writer)


def test_a_closed_log_is_read(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        writer = log.create_topic("t", config=CONFIG).partition(0)
        whole = fill(writer, 30)
        writer.trim_before(5)
    with commitlog.open(log_path, mode="r") as log:
        reader = log.topic("t").partition(0)
        assert contents(reader) == whole[5:]
        assert (reader.start_offset, reader.next_offset, reader.durable_offset) == (5, 30, 30)


def test_reading_a_log_writes_nothing(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t", config=CONFIG).partition(0), 30)
    before = {path: path.read_bytes() for path in sorted(log_path.rglob("*")) if path.is_file()}
    with commitlog.open(log_path, mode="r") as log:
        reader = log.topic("t").partition(0)
        contents(reader)
        reader.offset_for_timestamp(1_010)
        reader.verify()
    assert {path: path.read_bytes() for path in sorted(log_path.rglob("*")) if path.is_file()} == before


@pytest.mark.parametrize("derived", [["state"], ["index"], ["state", "index"]])
def test_a_reader_of_an_unclean_log_sees_what_the_next_writer_will_see_and_writes_nothing(
    writer: Partition, log: CommitLog, tmp_path: Path, derived: list[str]
) -> None:
    whole = fill(writer, 30)
    killed = copy_as_if_killed(log, tmp_path / "killed")
    with open(killed / "t-0" / names(killed / "t-0", ".log")[-1], "ab") as file:
        file.write(b"torn tail")
    for suffix in derived:
        for name in names(killed / "t-0", suffix):
            (killed / "t-0" / name).unlink()
    before = tree(killed)
    with commitlog.open(killed, mode="r") as again:
        reader = again.topic("t").partition(0)
        assert contents(reader) == whole
        assert reader.next_offset == 30
        assert [reader.offset_for_timestamp(one.timestamp) for one in whole] == list(range(30))
    assert tree(killed) == before


def test_a_reader_of_an_unclean_log_goes_on_when_a_writer_takes_it_up(
    writer: Partition, log: CommitLog, tmp_path: Path
) -> None:
    whole = fill(writer, 15)
    killed = copy_as_if_killed(log, tmp_path / "killed")
    with commitlog.open(killed, mode="r") as reading:
        reader = reading.topic("t").partition(0)
        assert contents(reader) == whole
        with commitlog.open(killed) as writing:
            second = writing.topic("t").partition(0)
            fill(second, 10)
            agrees(reader, second)
        assert reader.next_offset == 25


def test_a_reader_goes_on_across_writers(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t", config=CONFIG).partition(0), 10)
    with commitlog.open(log_path, mode="r") as reading:
        reader = reading.topic("t").partition(0)
        for _ in range(3):
            with commitlog.open(log_path) as log:
                writer = log.topic("t").partition(0)
                fill(writer, 10)
                agrees(reader, writer)
            assert reader.next_offset == writer.next_offset
            assert len(contents(reader)) == writer.next_offset


def test_a_reader_refuses_to_write(reader: Any, writer: Partition, log_path: Path) -> None:
    fill(writer, 3)
    before = tree(log_path)
    for call in (
        lambda: reader.append(b"x"),
        lambda: reader.append_many([b"x"]),
        lambda: reader.append_arrow(None),
        reader.sync,
        reader.roll,
        lambda: reader.trim_before(1),
        lambda: reader.truncate_from(1),
        reader.repair,
    ):
        with pytest.raises(ReadOnlyError, match="mode='r'"):
            call()
    assert tree(log_path) == before
    assert writer.next_offset == 3


def test_a_readers_log_refuses_to_change_topics(writer: Partition, log_path: Path) -> None:
    before = tree(log_path)
    with commitlog.open(log_path, mode="r") as log:
        topic = log.topic("t")
        for call in (
            lambda: log.create_topic("new"),
            lambda: log.delete_topic("t"),
            lambda: log.apply_retention(now_ms=0),
            lambda: topic.append(b"x"),
            lambda: topic.append_many([b"x"]),
            lambda: topic.add_partitions(3),
            lambda: topic.alter_config(retention_ms=5),
        ):
            with pytest.raises(ReadOnlyError):
                call()
    assert tree(log_path) == before


def test_a_closed_reader_refuses_to_read(writer: Partition, log_path: Path) -> None:
    fill(writer, 3)
    log = commitlog.open(log_path, mode="r")
    reader = log.topic("t").partition(0)
    log.close()
    calls: list[Callable[[], Any]] = [
        lambda: list(reader.records()),
        lambda: reader.get(0),
        lambda: reader.offset_for_timestamp(0),
        reader.verify,
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()


def test_a_reader_below_start_offset_or_above_next_offset_is_out_of_range(
    reader: Any, writer: Partition
) -> None:
    fill(writer, 30)
    writer.trim_before(10)
    for offset in (9, 31):
        with pytest.raises(OffsetOutOfRangeError):
            reader.records(offset)
    assert list(reader.records(30)) == []


def test_a_reader_waits_for_an_append(reader: Any, writer: Partition) -> None:
    assert not reader.wait_for(0, timeout=0)
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(reader.wait_for(2, timeout=30)))
    waiter.start()
    for _ in range(3):
        writer.append(b"x")
    waiter.join()
    assert woken == [True]
    assert reader.wait_for(2, timeout=0)


def test_a_reader_that_tails_sees_every_record_once_while_segments_come_and_go(
    reader: Any, writer: Partition
) -> None:
    found: list[int] = []

    def tail() -> None:
        while len(found) < 500:
            if reader.wait_for(len(found), timeout=30):
                found.extend(record.offset for record in reader.records(len(found)))

    thread = threading.Thread(target=tail)
    thread.start()
    for number in range(500):
        writer.append(b"x" * 50)
        if number % 50 == 49:
            wait_until(lambda: len(found) > writer.next_offset - 50)
            writer.trim_before(len(found))
    thread.join()
    assert found == list(range(500))


def test_a_reader_sees_topics_and_partitions_that_come_and_go(log: CommitLog, log_path: Path) -> None:
    with commitlog.open(log_path, mode="r") as reading:
        assert reading.topics() == []
        with pytest.raises(UnknownTopicError):
            reading.topic("new")
        topic = log.create_topic("new")
        assert reading.topics() == ["new"]
        assert len(reading.topic("new").partitions) == 1
        topic.add_partitions(3)
        topic.partition(2).append(b"x")
        assert contents(reading.topic("new").partition(2))[0].value == b"x"
        log.delete_topic("new")
        assert reading.topics() == []
        with pytest.raises(UnknownTopicError):
            reading.topic("new")


def test_a_log_that_is_truncated_and_grows_again_while_it_is_read_is_not_damaged(
    reader: Any, writer: Partition
) -> None:
    writer.append_many([b"cut"] * 10)
    for one in (reader, writer):
        batches = one.batches()
        writer.truncate_from(0)
        writer.append_many([b"new"] * 3)
        assert len(next(batches)) == 3
        writer.append_many([b"newer"] * 10)
        assert list(batches) == []


@pytest.mark.parametrize("who", ["writer", "reader"])
def test_a_log_that_is_truncated_between_two_looks_of_a_reader_and_grows_again_is_not_damaged(
    reader: Any, writer: Partition, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    writer.append_many([b"old"] * 10)
    source = (writer if who == "writer" else reader)._source
    real = type(source).layout
    truncated: list[bool] = []

    def truncated_first(self: Any) -> Any:  # the reader has just seen that the log ends at 10
        if self is source and not truncated:
            truncated.append(True)
            writer.truncate_from(3)
        return real(self)

    def read(segment: Segment, start: int, end: int, _: object) -> Iterator[tuple[int, int]]:
        for batch in segment.batches_from(0, end):
            if batch.next_offset > start:
                yield batch.base_offset, batch.next_offset
        if writer.next_offset == 3:
            writer.append_many([b"new"] * 10)

    monkeypatch.setattr(type(source), "layout", truncated_first)
    assert list(source.pieces(0, 10, read, committed=True)) == [0, 3]


@pytest.mark.parametrize("who", ["writer", "reader"])
@pytest.mark.parametrize("change", ["trim", "truncate"])
def test_a_time_lookup_survives_a_segment_that_is_removed_under_it(
    writer: Partition, reader: Any, monkeypatch: pytest.MonkeyPatch, who: str, change: str
) -> None:
    fill(writer, 30)
    side = writer if who == "writer" else reader
    real = Segment.position_of_time
    changed: list[bool] = []

    def in_the_middle(self: Segment, timestamp: int) -> int:
        if not changed:
            changed.append(True)
            if change == "trim":
                writer.trim_before(20)
            else:
                writer.truncate_from(2)
            writer.empty_trash(now=float("inf"))
        return real(self, timestamp)

    monkeypatch.setattr(Segment, "position_of_time", in_the_middle)
    found = side.offset_for_timestamp(1_008)
    assert changed
    assert found == (20 if change == "trim" else None)


def test_a_file_that_vanishes_while_segments_are_listed_is_no_deleted_topic(
    writer: Partition, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(writer, 30)
    real = list_segments
    failed: list[bool] = []

    def failing_once(*args: Any) -> Any:
        if not failed:
            failed.append(True)
            raise FileNotFoundError(2, "No such file or directory")
        return real(*args)

    monkeypatch.setattr("commitlog.partitions.sources.list_segments", failing_once)
    assert contents(reader) == contents(writer)
    assert failed


def test_a_reader_that_listed_trimmed_segments_does_not_miss_them(
    writer: Partition, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(writer, 30)
    trimmed = []
    monkeypatch.setattr(Trash, "take", lambda self, segment, due: trimmed.append(segment.path))
    writer.trim_before(20)
    assert reader.offset_for_timestamp(1_000) == 20
    for path in trimmed:
        Path(path).unlink()
    assert reader.offset_for_timestamp(1_005) == 20
    assert [record.offset for record in reader.records()] == list(range(20, 30))


@pytest.mark.parametrize("who", ["writer", "reader"])
def test_verifying_survives_a_segment_that_is_trimmed_under_it(
    writer: Partition, reader: Any, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    fill(writer, 30)
    real = Segment.buffer
    changed: list[bool] = []

    def in_the_middle(self: Segment) -> memoryview:
        if not changed:
            changed.append(True)
            writer.trim_before(20)
            writer.empty_trash(now=float("inf"))
        return real(self)

    monkeypatch.setattr(Segment, "buffer", in_the_middle)
    assert (writer if who == "writer" else reader).verify().ok
    assert changed


def test_a_segment_that_is_gone_without_a_trim_is_damage(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        fill(log.create_topic("t", config=CONFIG).partition(0), 30)
    with commitlog.open(log_path, mode="r") as log:
        reader = log.topic("t").partition(0)
        victim = reader.segments[1]
        shutil.move(victim.path, log_path / "elsewhere")
        with pytest.raises(CorruptionError, match="missing") as caught:
            contents(reader)
        assert caught.value.path == victim.path


def test_a_reader_sees_what_a_writer_appended_that_came_and_went_between_two_looks(log_path: Path) -> None:
    with commitlog.open(log_path) as writer:
        writer.create_topic("t").append(b"first")
    with commitlog.open(log_path, mode="r") as log:
        reader = log.topic("t").partition(0)
        assert reader.high_watermark == 1
        for number in range(2, 5):
            with commitlog.open(log_path) as writer:
                writer.topic("t").append(b"next")
            assert reader.high_watermark == number
            assert len(contents(reader)) == number


def test_a_reader_that_looked_while_a_writer_was_opening_follows_it(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(log_path) as writer:
        writer.create_topic("t").append(b"first")
    with commitlog.open(log_path, mode="r") as log:
        reader, seen, ready = log.topic("t").partition(0), [], LogLock.ready

        def looked_at(lock: LogLock, *, shared: bool) -> None:
            seen.append(len(contents(reader)))
            ready(lock, shared=shared)

        monkeypatch.setattr(LogLock, "ready", looked_at)
        with commitlog.open(log_path) as writer:
            writer.topic("t").append(b"second")
            assert seen == [1]
            assert len(contents(reader)) == 2


@pytest.mark.parametrize("open_meanwhile", [True, False])
def test_a_reader_finds_the_new_topic_under_the_name_of_a_deleted_one(
    log_path: Path, open_meanwhile: bool
) -> None:
    with commitlog.open(log_path) as writer:
        writer.create_topic("t").append_many([b"old"] * 3)
    with commitlog.open(log_path, mode="r") as log:
        assert len(contents(log.topic("t").partition(0))) == 3
        writer = commitlog.open(log_path)
        writer.delete_topic("t")
        writer.create_topic("t").append(b"new")
        if not open_meanwhile:
            writer.close()
        assert [record.value for record in log.topic("t").partition(0).records()] == [b"new"]
        writer.close()


def test_a_reader_keeps_no_map_of_a_segment_that_was_removed(log: CommitLog, log_path: Path) -> None:
    config = {"segment_bytes": 200_000, "file_delete_delay_ms": 0}
    writer = log.create_topic("t", config=config).partition(0)
    for _ in range(10):
        writer.append_many([bytes(1_000)] * 100)
    with commitlog.open(log_path, mode="r") as reading:
        reader = reading.topic("t").partition(0)
        assert len(list(reader.batches())) == 10
        writer.trim_before(800)
        wait_until(lambda: len(names(writer.path, ".log")) < 5)
        assert len(list(reader.batches())) < 5
        mapped = [one for one in Path("/proc/self/maps").read_text().splitlines() if str(log_path) in one]
        assert [one for one in mapped if "deleted" in one] == []


# --- segments that are not what their names say


def ways_to_read(log: CommitLog, partition: Any) -> list[Callable[[], object]]:
    def consumed() -> object:
        with log.consumer(group_id="g", auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            return list(consumer.poll(0.1))

    def timed() -> object:
        with log.consumer(group_id="g") as consumer:
            return consumer.offsets_for_times({commitlog.TopicPartition("t", 0): 1_005})

    return [
        lambda: list(partition.records()),
        lambda: list(partition.records(5)),
        lambda: partition.get(5),
        lambda: list(partition.batches()),
        lambda: list(partition.combined_batches(5)),
        partition.to_arrow,
        partition.latest,
        lambda: partition.offset_for_timestamp(1_005),
        lambda: partition.batch_start(5),
        lambda: partition.bytes_between(5, 15),
        lambda: partition.offset_after_bytes(5, 100),
        consumed,
        timed,
    ]


@pytest.mark.parametrize("mode", ["r", "w"])
def test_no_read_passes_over_a_segment_that_holds_another_ones_batches(log_path: Path, mode: Any) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        for _ in range(3):
            fill(partition, 20)
            partition.roll()
        first, second = (segment.path for segment in partition.segments[:2])
    shutil.copy(second, first)
    with commitlog.open(log_path, mode=mode) as log:
        partition = log.topic("t").partition(0)
        for number, read in enumerate(ways_to_read(log, partition)):
            with pytest.raises(CorruptionError, match="offset 20 where"):
                pytest.fail(f"{number}: {read()}")
        assert [record.offset for record in partition.records(20)] == list(range(20, 60))
        assert [one.path for one in partition.verify().damage if one.path.endswith(".log")][:1] == [first]
        if mode == "w":
            (salvage,) = partition.repair().salvaged
            assert salvage.lost == ((0, 20),)
            assert [record.offset for record in partition.records()] == list(range(20, 60))
            assert partition.verify().ok


def test_a_batch_that_is_there_twice_or_missing_between_others_is_noticed(
    log_path: Path, tmp_path: Path
) -> None:
    with commitlog.open(log_path) as log:
        config = {"flush_ms": -1, "index_interval_bytes": 0, "segment_ms": -1}
        partition = log.create_topic("t", config=config).partition(0)
        fill(partition, 10)
        partition.append_many([b"x"] * 10)
        fill(partition, 10)
        partition.roll()
        path = Path(partition.segments[0].path)
        whole = path.read_bytes()
        positions = [position for position, _ in partition.segments[0].headers()]
    for number, count in ((3, 0), (3, 2), (10, 0), (10, 2), (15, 0), (15, 2)):
        start, end = positions[number], positions[number + 1]
        path.write_bytes(whole[:start] + whole[start:end] * count + whole[end:])
        for index in (".index", ".timeindex"):
            path.with_suffix(index).unlink(missing_ok=True)
        segment = Segment.open(path)
        for read in (segment.record_runs, segment.batches, segment.combined_batches):
            with pytest.raises(CorruptionError, match="was expected"):
                list(read(0, 30))
        with pytest.raises(CorruptionError), commitlog.open(log_path, mode="r") as log:
            log.topic("t")


# --- timestamps


@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("indexes", ["there", "lost"])
def test_a_timestamp_is_never_looked_for_behind_damage(log_path: Path, mode: Any, indexes: str) -> None:
    with commitlog.open(log_path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        fill(partition, 20)
        partition.roll()
        fill(partition, 20)
        first = Path(partition.segments[0].path)
        whole, position = first.read_bytes(), partition.segments[0].position_of(10)
        last = partition.segments[0].position_of(19)
    zeroed = whole[:position] + bytes(len(whole) - position)
    older = bytearray(whole)
    older[last + 45] ^= 1  # in max_timestamp
    for contents_now in (zeroed, bytes(older)):
        first.write_bytes(contents_now)
        if indexes == "lost":
            for index in (".index", ".timeindex"):
                first.with_suffix(index).unlink(missing_ok=True)
        try:
            log = commitlog.open(log_path, mode=mode)
            partition = log.topic("t").partition(0)
        except CorruptionError:  # without an index, open looks at the batches
            continue
        with log:
            assert partition.offset_for_timestamp(1_001) == 1, "it lies before the damage"
            for timestamp in (1_010, 1_019) if contents_now is zeroed else (1_019,):
                with pytest.raises(CorruptionError) as caught:
                    partition.offset_for_timestamp(timestamp)
                assert caught.value.path == str(first)
