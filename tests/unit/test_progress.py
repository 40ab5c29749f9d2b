"""Who wants to know how far verify, repair, compact and recovery are is told."""

from __future__ import annotations

import shutil
from pathlib import Path

from helpers import copy_as_if_killed

import commitlog
from commitlog import TopicConfig, progress
from commitlog.progress import STEP_BYTES, Steps

MB = 1 << 20


class Told:
    """What progress was told, checked as it comes."""

    def __init__(self) -> None:
        self.reports: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        assert 0 <= done <= total
        assert not self.reports or done >= self.reports[-1][0]
        self.reports.append((done, total))

    @property
    def complete(self) -> bool:
        """Whether it began, went on, and ended with everything done."""
        return (
            len(self.reports) > 2 and self.reports[0][0] == 0 and self.reports[-1][0] == self.reports[-1][1]
        )


def filled(path: Path, policy: str = "delete") -> None:
    """Make a log of 20 MB in some segments, whose keys come again."""
    lag = 3_600_000  # so that the cleaner in the background leaves it alone
    config = TopicConfig(segment_bytes=6 * MB, cleanup_policy=policy, min_compaction_lag_ms=lag)  # type: ignore[arg-type]
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=config).partition(0)
        for number in range(200):
            keys = [b"%d" % (key % 500) for key in range(1000)]
            partition.append_many([b"%d" % number * 33] * 1000, keys=keys)


def test_steps_are_told_every_few_megabytes_and_at_the_end() -> None:
    told = Told()
    counted = Steps(told, 3 * STEP_BYTES)
    for _ in range(3 * 1024):
        counted.add(STEP_BYTES // 1024)
    counted.finish()
    assert [done for done, _ in told.reports] == [0, STEP_BYTES, 2 * STEP_BYTES, 3 * STEP_BYTES]


def test_a_part_counts_for_what_it_is_whatever_is_counted_within() -> None:
    told = Told()
    counted = Steps(told, 30)
    with counted.part(10):
        counted.add(1000)
    with counted.part(10):
        pass
    counted.expect(5)
    assert told.reports == [(0, 30), (10, 30), (20, 30), (20, 35)]


def test_without_a_listener_nothing_happens() -> None:
    counted = Steps(None)
    counted.expect(10)
    counted.add(STEP_BYTES)
    counted.finish()


def test_verify_tells_how_far_it_is(log_path: Path) -> None:
    filled(log_path)
    told = Told()
    with commitlog.open(log_path, mode="r") as log:
        partition = log.topic("t").partition(0)
        assert partition.verify(told).ok
        assert told.reports[-1][1] == partition.size_bytes
    assert told.complete


def test_repair_tells_how_far_it_is(log_path: Path) -> None:
    filled(log_path)
    first = sorted((log_path / "t-0").glob("*.log"))[0]
    raw = bytearray(first.read_bytes())
    raw[len(raw) // 2] ^= 1
    first.write_bytes(raw)
    told = Told()
    with commitlog.open(log_path) as log:
        assert len(log.topic("t").partition(0).repair(progress=told).salvaged) == 1
    assert told.complete


def test_compaction_tells_how_far_it_is(log_path: Path) -> None:
    filled(log_path, "compact")
    told = Told()
    with commitlog.open(log_path) as log:
        partition = log.topic("t").partition(0)
        partition.roll()
        later = partition.segments[0].max_timestamp + 7_200_000
        assert partition.compact(later, told).records_after <= 1000
    assert told.complete


def test_recovery_tells_how_far_it_is_whoever_opens_the_log(log_path: Path, tmp_path: Path) -> None:
    filled(log_path)
    with commitlog.open(log_path) as log:
        copy_as_if_killed(log, tmp_path / "killed")
    (tmp_path / "killed" / "t-0" / "state").unlink()  # so that everything is to be checked
    shutil.copytree(tmp_path / "killed", tmp_path / "shared")
    read, written, shared = Told(), Told(), Told()
    with commitlog.open(tmp_path / "killed", mode="r", progress=read) as log:
        log.topic("t")
    with commitlog.open(tmp_path / "killed", progress=written):
        pass
    with commitlog.open(tmp_path / "shared", mode="shared", progress=shared):
        pass
    assert read.complete
    assert read.reports[-1] == written.reports[-1] == shared.reports[-1]
    assert read.reports[-1][1] > progress.STEP_BYTES


def test_a_log_that_was_closed_has_nothing_to_tell(log_path: Path) -> None:
    filled(log_path)
    told = Told()
    with commitlog.open(log_path, progress=told) as log:
        log.topic("t")
    assert told.reports == []
