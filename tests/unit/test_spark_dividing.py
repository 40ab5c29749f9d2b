from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from helpers import flip

import commitlog
from commitlog import CommitLog, TopicPartition
from commitlog.repair import VerifiedPart, VerifyReport
from commitlog.spark.dividing import LEAST_BYTES, Part, divided, joined, task_count

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_small_logs_take_one_task_and_large_ones_a_few_for_each_slot() -> None:
    assert [task_count(size, 2) for size in (0, 1, LEAST_BYTES, 3 * LEAST_BYTES, 1 << 50)] == [1, 1, 1, 3, 8]


def test_segments_are_divided_evenly_by_bytes() -> None:
    sizes = {A: [(0, 10), (5, 10), (9, 10), (30, 10)], B: [(0, 40)]}
    assert divided(sizes, 1) == [[Part(A), Part(B)]]
    assert divided(sizes, 4) == [[Part(A, 0, 9)], [Part(A, 9)], [Part(B)]]
    assert divided(sizes, 3) == [[Part(A, 0, 30)], [Part(A, 30), Part(B)]]
    assert divided({A: [(0, 0)], B: [(0, 0)]}, 4) == [[Part(A), Part(B)]]
    assert divided({}, 4) == []


@pytest.fixture
def path(log: CommitLog, log_path: Path) -> Path:
    """A log of one partition with many segments; somebody has it open, or readers would refuse its holes."""
    partition = log.create_topic("t", config={"segment_bytes": 1024}).partition(0)
    for number in range(50):
        partition.append_many([b"%d" % one for one in range(number)] + [bytes(100)])
    return log_path


def segment(path: Path, number: int, suffix: str = ".log") -> Path:
    return sorted(path.glob(f"t-0/*{suffix}"))[number]


def rot(path: Path) -> None:
    found = segment(path, 4)
    flip(found, found.stat().st_size // 2)


def lose_offsets_at_a_border(path: Path) -> None:
    """Give a segment a hole to the next one, as if it had been cut."""
    found = segment(path, 3)
    with commitlog.open(path, mode="r") as log:
        last = list(log.topic("t").partition(0).segments[3].headers(0))[-1]
    found.write_bytes(found.read_bytes()[: last[0]])


def lose_a_segment(path: Path) -> None:
    segment(path, 5).unlink()


def lose_an_index(path: Path) -> None:
    segment(path, 4, ".index").unlink()


def spoil_several(path: Path) -> None:
    rot(path)
    lose_offsets_at_a_border(path)
    segment(path, 4, ".timeindex").unlink()


@pytest.mark.parametrize(
    "harm",
    [lambda path: None, rot, lose_offsets_at_a_border, lose_a_segment, lose_an_index, spoil_several],
    ids=["nothing", "rot", "a hole at a border", "a lost segment", "a lost index", "several"],
)
def test_parts_together_find_what_one_pass_finds(path: Path, harm: Callable[[Path], None]) -> None:
    harm(path)
    with commitlog.open(path, mode="r") as log:
        partition = log.topic("t").partition(0)
        expected = partition.verify()
        assert expected.segments >= 8
        sizes = {A: [(one.base_offset, one.size_bytes) for one in partition.segments]}
        for tasks in range(1, 12):
            parts = [part for group in divided(sizes, tasks) for part in group]
            found = [partition.verify_part(part.start, part.end) for part in parts]
            assert joined(found) == expected
    assert bool(expected.damage) == (harm.__name__ != "<lambda>")


def test_segments_that_change_places_between_tasks_are_noticed(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"cleanup_policy": "compact,delete"}).partition(0)
    for number in range(20):
        partition.append_many([bytes(100)] * 2, keys=[b"a", b"%d" % number])
        partition.roll()
    bases = [one.base_offset for one in partition.segments]
    cuts = [0, bases[len(bases) // 3], bases[len(bases) // 2]]

    def parts(change: Callable[[], object]) -> list[VerifiedPart]:
        found = [partition.verify_part(cuts[0], cuts[1])]
        change()
        return [*found, partition.verify_part(cuts[1], cuts[2]), partition.verify_part(cuts[2], None)]

    assert joined(parts(partition.roll)) is not None
    assert joined(parts(lambda: partition.append(bytes(100), key=b"k"))) is not None
    assert joined(parts(partition.compact)) is None  # which merges small segments
    assert joined(parts(lambda: partition.trim_before(partition.next_offset))) is None


def test_parts_without_segments_tell_of_what_follows() -> None:
    empty = VerifyReport(0, 0, 0, 0, ())

    def parts(*borders: tuple[int | None, int | None]) -> Sequence[VerifiedPart]:
        return [VerifiedPart(empty, first, following) for first, following in borders]

    assert joined(parts((0, 7), (7, 7), (7, None))) == empty
    assert joined(parts((0, 7), (9, 9), (9, None))) is None
    assert joined(parts((0, None), (None, None))) == empty
