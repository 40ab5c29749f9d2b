"""A leader and a follower against one another: whatever happened, in the end their files are the same."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import copy_as_if_killed
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import commitlog
from commitlog import CommitLog, Partition, files, tasks
from commitlog.partitions.epochs import NAME, EpochHistory

from .strategies import columns

sizes = st.sampled_from([0, 1, 200, 700, 5_000, 1 << 20])


def partition_of(log: CommitLog) -> Partition:
    partition: Partition = log.topic("t").partition(0)
    return partition


def log_files(path: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in (path / "t-0").glob("*.log")}


def producers_of(partition: Partition) -> dict[int, Any]:
    """What is known of producers, but for when they were heard of."""
    known = partition._state.producers._known
    return {key: (one.epoch, [batch[:3] for batch in one.batches]) for key, one in known.items()}


class ReplicaMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name in ("fsync", "fdatasync"):  # nobody loses power here
            self.patch.setattr(os, name, lambda fd: None)
        self.patch.setattr(files, "sync_map", lambda view: None)
        self.patch.setattr(tasks.Task, "start", lambda self: None)
        self.home = Path(tempfile.mkdtemp(prefix="replicas"))
        self.paths = [self.home / "0", self.home / "1"]
        self.logs: list[CommitLog] = []
        self.leader, self.epoch, self.copies = 0, 0, 0

    @initialize(
        segment_bytes=st.sampled_from([512, 2_000, 1 << 20]), interval=st.sampled_from([0, 300, 4096])
    )
    def create(self, segment_bytes: int, interval: int) -> None:
        config = {
            "flush_ms": -1, "segment_bytes": segment_bytes, "index_interval_bytes": interval,
            "retention_ms": -1,
        }  # fmt: skip
        for path in self.paths:
            self.logs.append(commitlog.open(path))
            self.logs[-1].create_topic("t", config=config)
        self.take_roles()

    def take_roles(self) -> None:
        self.one.lead(self.epoch)
        self.other.follow()

    @property
    def one(self) -> Partition:
        return partition_of(self.logs[self.leader])

    @property
    def other(self) -> Partition:
        return partition_of(self.logs[1 - self.leader])

    # --- appending

    @rule(count=st.integers(1, 8), size=st.integers(0, 300))
    def append(self, count: int, size: int) -> None:
        for number in range(count):
            self.one.append(b"v" * size, key=b"%d" % number, timestamp=1_000 + self.one.next_offset)

    @rule(given=columns(most=6))
    def append_many(self, given: dict[str, Any]) -> None:
        with contextlib.suppress(commitlog.errors.BatchTooLargeError):
            self.one.append_many(**given)

    @rule(chunks=st.lists(st.lists(st.binary(max_size=9), max_size=4), min_size=1, max_size=3))
    def append_arrow(self, chunks: list[list[bytes]]) -> None:
        tables = [pa.table({"value": pa.array(values, pa.binary())}) for values in chunks]
        self.one.append_arrow(pa.concat_tables(tables))

    @rule(producer=st.integers(1, 2), count=st.integers(1, 4))
    def append_as_producer(self, producer: int, count: int) -> None:
        known = self.one._state.producers._known.get(producer)
        sequence = 0 if known is None else known.next_sequence
        numbered = (producer, 0, sequence)
        offsets = self.one.append_many([b"p"] * count, producer=numbered)
        assert self.one.append_many([b"p"] * count, producer=numbered) == offsets

    @rule(codec=st.sampled_from(["none", "zstd", "gzip"]))
    def compress(self, codec: str) -> None:
        for log in self.logs:
            log.topic("t").alter_config(compression_type=codec)

    @rule()
    def roll(self) -> None:
        self.one.roll()

    @rule(which=st.integers(0, 1))
    def sync(self, which: int) -> None:
        partition_of(self.logs[which]).sync()

    # --- replicating

    @rule(max_bytes=sizes)
    def fetch(self, max_bytes: int) -> None:
        self.fetched(max_bytes)

    def fetched(self, max_bytes: int) -> bool:
        """Ask the leader once, and do what the answer tells; False if there was nothing to do."""
        one, other = self.one, self.other
        asked, last = other.next_offset, other.epochs.latest
        if last != -1:
            epoch, end = one.epochs.end_of(last, one.next_offset)
            if epoch != last or end < asked:
                cut = min(end, other.epochs.end_of(epoch, asked)[1])
                other.truncate_from(cut)
                assert other.next_offset == cut
                return True
        elif asked > one.next_offset:
            other.truncate_from(one.next_offset)
            return True
        found = one.read_replica(asked, max_bytes)
        data = found.data.read()
        assert len(data) == found.data.size and (len(data) <= max_bytes or max_bytes < 1_300)
        assert other.append_replicated(data, found.segment_base) == found.next_offset
        return bool(data)

    @rule()
    def catch_up(self) -> None:
        while self.fetched(700):
            pass

    @rule(lost=st.integers(0, 2), new=st.integers(0, 2))
    def lose_a_roll(self, lost: int, new: int) -> None:
        """The leader rolls, and is followed by one that has not heard of it."""
        self.catch_up()
        self.roll()
        self.append(lost, 10)
        self.change_places(1)
        self.append(new, 20)

    @rule(behind=st.integers(0, 3))
    def move_the_high_watermark(self, behind: int) -> None:
        mark = max(min(self.one.next_offset, self.other.next_offset) - behind, 0)
        for partition in (self.one, self.other):
            before = partition.high_watermark
            partition.set_high_watermark(mark)
            assert partition.high_watermark == max(before, min(mark, partition.next_offset))

    @rule(skipped=st.integers(1, 3))
    def change_places(self, skipped: int) -> None:
        """The follower is elected, whatever it has: what it lacks, the old leader truncates."""
        self.epoch += skipped
        self.leader = 1 - self.leader
        self.other.follow()
        self.one.lead(self.epoch)

    @rule()
    def elect_again(self) -> None:
        self.epoch += 1
        self.one.lead(self.epoch)

    # --- closing and dying

    @rule(which=st.integers(0, 1), forget=st.booleans())
    def reopen(self, which: int, forget: bool) -> None:
        epochs = self.known_epochs(which)
        self.logs[which].close()
        self.open_again(which, forget, epochs)

    @rule(which=st.integers(0, 1), forget=st.booleans())
    def kill_and_reopen(self, which: int, forget: bool) -> None:
        self.copies += 1
        epochs = self.known_epochs(which)
        copy = copy_as_if_killed(self.logs[which], self.home / f"copy{self.copies}")
        self.logs[which].close()
        shutil.rmtree(self.paths[which])
        self.paths[which] = copy
        self.open_again(which, forget, epochs)

    def known_epochs(self, which: int) -> EpochHistory:
        return partition_of(self.logs[which]).epochs

    def open_again(self, which: int, forget: bool, epochs: EpochHistory) -> None:
        if forget:
            os.unlink(self.paths[which] / "t-0" / NAME)
        self.logs[which] = commitlog.open(self.paths[which])
        partition = partition_of(self.logs[which])
        with_records = epochs.truncated_from(partition.next_offset)
        assert partition.epochs == (with_records if forget else epochs)
        with pytest.raises(commitlog.NotLeaderError):
            partition.append(b"nobody leads yet")
        self.take_roles()

    # --- what must be true

    @invariant()
    def bounds_hold(self) -> None:
        for log in self.logs:
            partition = partition_of(log)
            assert partition.start_offset <= partition.high_watermark <= partition.next_offset
            assert len(list(partition.records())) == partition.high_watermark

    def teardown(self) -> None:
        try:
            if self.logs:
                while self.fetched(1 << 20):
                    pass
                self.check_the_same()
        finally:
            for log in self.logs:
                log.close()
            shutil.rmtree(self.home)
            self.patch.undo()

    def check_the_same(self) -> None:
        end = self.one.next_offset
        assert self.other.next_offset == end
        assert self.other.epochs.truncated_from(end) == self.one.epochs.truncated_from(end)
        assert producers_of(self.other) == producers_of(self.one)
        for log in self.logs:
            assert partition_of(log).verify().ok
            partition_of(log).set_high_watermark(end)
        assert list(self.other.records()) == list(self.one.records())
        for log in self.logs:
            log.close()
        leaders, followers = (log_files(self.paths[which]) for which in (self.leader, 1 - self.leader))
        if leaders.get(f"{end:020d}.log") == b"":  # a roll that the follower has not heard of
            followers.setdefault(f"{end:020d}.log", b"")
        if followers.get(f"{end:020d}.log") == b"":  # and one that is not undone before more comes
            leaders.setdefault(f"{end:020d}.log", b"")
        assert followers == leaders


TestReplicas = ReplicaMachine.TestCase
TestReplicas.settings = settings(settings(), stateful_step_count=40)
