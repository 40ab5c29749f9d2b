"""A writer that shares its log with others dies; the next one puts right what it left."""

from __future__ import annotations

import random
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from soak import SEED, SOAK, count

import commitlog
from commitlog.partitions.counters import Counters
from commitlog.partitions.state import LogState
from commitlog.segment import segment_path
from commitlog.segment_writer import SegmentWriter

from . import zygote
from .logs import QUIET, append_to, check_records, open_partition, segment_files, values

CONFIG = {**QUIET, "segment_bytes": 1024, "index_interval_bytes": 100}


def keep_mark(writer: Any) -> None:
    """It dies before it lets go: the note that it holds the partition stays."""
    writer._state.lock.skip_leaving()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.mark.parametrize("published", ["nothing", "end_position"])
@pytest.mark.parametrize("same_segment", [True, False])
def test_an_append_that_its_writer_did_not_finish_is_cut_by_the_next(
    path: Path, published: str, same_segment: bool
) -> None:
    """crash: bytes, or an end_position, that no next_offset covers -> cut by the next writer"""
    with commitlog.open(path, mode="shared") as dying, commitlog.open(path, mode="shared") as living:
        one = dying.create_topic("t", config=CONFIG).partition(0)
        other = open_partition(living)
        append_to(one, 12)
        if same_segment:
            append_to(other, 13)
        end = one.next_offset
        page, active = one._state.page, segment_files(path)[-1]
        size = active.stat().st_size
        page.hold()
        with active.open("ab") as file:  # two batches, as append_arrow writes them
            file.write(active.read_bytes()[:88] + b"half of another")
        if published == "end_position":
            page.publish_append(page.next_offset, active.stat().st_size)
        append_to(other, end + 1)
        assert active.stat().st_size > size
        check_records(other, 0, end + 1)
        check_records(one, 0, end + 1)
        append_to(one, end + 30)
        assert one.verify().damage == ()
    with commitlog.open(path) as log:
        check_records(open_partition(log), 0, end + 30)


def test_an_append_that_readers_were_told_of_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with commitlog.open(path, mode="shared") as dying, commitlog.open(path, mode="shared") as living:
        one = dying.create_topic("t", config=CONFIG).partition(0)
        other = open_partition(living)
        append_to(one, 5)
        with monkeypatch.context() as patch:
            patch.setattr(Counters, "batched", lambda *_: keep_mark(one))  # it dies before it lets go
            one.append_many(values(5, 6))
        assert one._state.page.left_by_the_dead is not None
        append_to(other, 8)
        check_records(one, 0, 8)


def test_a_roll_that_its_writer_did_not_finish_is_recovered_by_the_next(path: Path) -> None:
    """crash: segments half changed -> recovered by the next writer"""
    with commitlog.open(path, mode="shared") as dying, commitlog.open(path, mode="shared") as living:
        one = dying.create_topic("t", config=CONFIG).partition(0)
        other = open_partition(living)
        append_to(one, 7)
        one._state.page.hold()
        one._state.page.begin_change()
        Path(segment_path(one.path, 7)).touch()
        append_to(other, 20)
        check_records(other, 0, 20)
        append_to(one, 30)
        check_records(one, 0, 30)
        assert one.verify().damage == ()


def test_a_writer_that_dies_between_a_roll_and_its_append_keeps_nobody_from_going_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(path, mode="shared") as dying, commitlog.open(path, mode="shared") as living:
        one = dying.create_topic("t", config=CONFIG).partition(0)
        other = open_partition(living)

        def die(_: LogState) -> None:
            keep_mark(one)  # its mark stays
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LogState, "save_producers", die)
            append_to(one, 100)
        end = one.next_offset
        assert len(segment_files(path)) == 2
        append_to(other, end + 30)
        check_records(other, 0, end + 30)
        check_records(one, 0, end + 30)
        assert other.verify().damage == ()


def test_bytes_that_a_dead_writer_left_are_cut_even_if_the_next_one_dies_over_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a whole batch among them would follow, after a crash, those that were appended since."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with ExitStack() as opened:
        logs = [opened.enter_context(commitlog.open(path, mode="shared")) for _ in range(3)]
        logs[0].create_topic("t", config=CONFIG)
        one, two, three = map(open_partition, logs)
        with monkeypatch.context() as patch:
            patch.setattr(one._state, "words", {})  # nothing is published
            patch.setattr(Counters, "batched", lambda *_: keep_mark(one))  # it dies
            one.append_encoded((*one.encode([b"a"]), *one.encode([b"b"])))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SegmentWriter, "open", die)
            two.append_many([b"c"])
        three.append_many([b"d"])
        shutil.copytree(path, path.with_name("crashed"))
    with commitlog.open(path.with_name("crashed")) as log:
        assert [record.value for record in open_partition(log).records()] == [b"d"]


def test_the_first_to_open_again_recovers_what_dead_writers_left(path: Path) -> None:
    with commitlog.open(path, mode="shared") as log:
        one = log.create_topic("t", config=CONFIG).partition(0)
        append_to(one, 7)
        one._state.page.hold()
        with segment_files(path)[-1].open("ab") as file:
            file.write(b"half of a batch")
        one._state.page.publish_append(7, one._state.page.end_position + 8)
        shutil.copytree(path, path.with_name("crashed"))
    with commitlog.open(path.with_name("crashed"), mode="shared") as log:
        check_records(open_partition(log), 0, 7)
        append_to(open_partition(log), 9)
        check_records(open_partition(log), 0, 9)


@pytest.mark.parametrize("number", range(20 if SOAK else 1))
def test_writers_killed_at_random_lose_nothing_they_were_promised(path: Path, number: int) -> None:
    """Each says what it was promised; offsets stay dense, and no promise is broken or given twice."""
    chance = random.Random(f"{SEED} {number}")
    with commitlog.open(path, mode="shared") as log:
        log.create_topic("t", config={**CONFIG, "flush_ms": 50, "file_delete_delay_ms": 0})
    living: list[zygote.Child] = []
    promised: dict[int, bytes] = {}
    for life in range(100 if SOAK else 12):
        living.append(zygote.start("sharers.append_for_ever", path, life))
        while len(living) > 3 or (living and life % 5 == 4):
            promised.update(kill(living.pop(chance.randrange(len(living))), chance))
    for child in living:
        promised.update(kill(child, chance))
    assert len(promised) > 100
    with commitlog.open(path, mode="shared") as log:
        partition = open_partition(log)
        found = {record.offset: record.value for record in partition.records()}
        assert list(found) == list(range(partition.start_offset, partition.next_offset))
        kept = {offset: value for offset, value in promised.items() if offset >= partition.start_offset}
        assert {offset: found[offset] for offset in kept} == kept
        assert len(set(found.values())) == len(found), "a record that was not promised shows at most once"
        assert partition.verify().damage == ()


def kill(child: zygote.Child, chance: random.Random) -> dict[int, bytes]:
    """Kill a writer after it was promised some records; returns all that it was promised, by offset."""
    lines = [child.stdout.readline() for _ in range(chance.randint(1, 300))]
    assert all(lines), f"a writer ended by itself, with {child.wait()}"
    child.kill()
    rest = child.stdout.read()
    child.wait()
    count("processes killed")
    whole = ("".join(lines) + rest).split("\n")[:-1]  # the last line may be half of one
    return {int(offset): value.encode() for offset, value in (line.split() for line in whole)}


def test_records_appended_after_an_interrupted_roll_are_found_by_the_next_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: SegmentWriter, next_offset: int) -> None:
        raise KeyboardInterrupt

    with commitlog.open(path, mode="shared") as one, commitlog.open(path, mode="shared") as two:
        partition = one.create_topic("t", config=QUIET).partition(0)
        append_to(partition, 5)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(SegmentWriter, "seal", interrupted)
            partition.roll()
        assert len(segment_files(path)) == 1, "it is undone"
        other = open_partition(two)
        append_to(other, 8)
        other.roll()
        append_to(other, 10)
        assert [file.stem for file in segment_files(path)] == [f"{0:020d}", f"{8:020d}"]
    with commitlog.open(path) as log:
        check_records(open_partition(log), 0, 10)
        assert open_partition(log).verify().ok
