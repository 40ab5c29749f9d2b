"""A writer on a disk that loses power, and what it was promised when the power went."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers import wait_until
from soak import count

import commitlog
from commitlog import CommitLog, CorruptionError, LogConfig, Partition, Record, Segment
from commitlog.config import RecoveryMode

from .disk import FakeDisk, Image, write_image

TOPIC = "t"
Counts = Mapping[str, int]  # partitions by topic


@dataclass(frozen=True)
class Promise:
    """What a log must hold, and what it may hold, if the power goes now.

    `timeline` is every record that can be in partition 0 of TOPIC, the one in flight included: the log is
    some prefix of it, `durable` records or more, from an offset in [start, start_asked] on; those at the
    offsets in `hurt` may be missing. Other partitions hold one record if they are in `marked`.
    """

    timeline: tuple[bytes, ...] = ()
    durable: int = 0
    start: int = 0
    start_asked: int = 0
    hurt: frozenset[int] = frozenset()  # somebody damaged the files that hold these
    topics: Counts = field(default_factory=dict)  # must be there
    topics_asked: Counts = field(default_factory=dict)  # may be there
    marked: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class Moment:
    """A point at which the power may go."""

    label: str
    image: Image
    promise: Promise


class Writer:
    """Does what a story tells it, and keeps the promise that goes with it."""

    def __init__(self, path: Path, promise: Promise, config: Mapping[str, Any]) -> None:
        self._path = path
        self._config = {"flush_ms": -1, **config}
        self.promise = promise
        self.log: CommitLog
        self.partition: Partition | None = None

    # --- the log and its topics

    def open(self, recovery_mode: RecoveryMode = "cut") -> None:
        self.log = commitlog.open(self._path, config=LogConfig(recovery_mode=recovery_mode))
        if TOPIC in self.promise.topics:
            self.partition = self.log.topic(TOPIC).partition(0)

    def create(self, name: str = TOPIC, partitions: int = 1) -> None:
        self._ask(name, partitions)
        topic = self.log.create_topic(name, partitions, self._config)
        self._promise(topics={**self.promise.topics, name: partitions})
        if name == TOPIC:
            self.partition = topic.partition(0)

    def grow(self, name: str, partitions: int) -> None:
        self._ask(name, partitions)
        self.log.topic(name).add_partitions(partitions)
        self._promise(topics={**self.promise.topics, name: partitions})

    def mark(self, name: str, partition: int) -> None:
        self.log.topic(name).partition(partition).append(_mark(name, partition), sync=True)
        self._promise(marked=self.promise.marked | {(name, partition)})

    def delete(self, name: str) -> None:
        self._promise(
            topics=_without(self.promise.topics, name),
            marked=frozenset(one for one in self.promise.marked if one[0] != name),
        )
        self.log.delete_topic(name)
        self._promise(topics_asked=_without(self.promise.topics_asked, name))

    def close(self) -> None:
        self.log.close()
        self.partition = None
        self._written(True)

    def kill(self) -> None:
        """Forget everything in memory, as a kill does: the files stay as they are."""
        release_lock(self._path)
        self.partition = None

    # --- the partition that the timeline tells of

    def append(self, count: int = 1, *, sync: bool = False) -> None:
        for _ in range(count):
            value = self._next_values(1)[0]
            offset = self._open.append(value, key=b"key", timestamp=timestamp_of(value), sync=sync)
            assert offset == len(self.promise.timeline) - 1
            self._written(sync)

    def append_many(self, count: int, *, sync: bool = False) -> None:
        values = self._next_values(count)
        offsets = self._open.append_many(values, timestamps=map(timestamp_of, values), sync=sync)
        end = len(self.promise.timeline)
        assert offsets == range(end - count, end)
        self._written(sync)

    def sync(self) -> None:
        self._open.sync()
        self._written(True)

    def roll(self) -> None:
        self._open.roll()

    def rest(self) -> None:
        wait_until(self._open._state.rest)  # a background task may have the lock for a moment

    def trim(self, offset: int) -> None:
        self._promise(start_asked=max(offset, self.promise.start_asked))
        self._open.trim_before(offset)
        self._promise(start=max(offset, self.promise.start))

    def truncate(self, offset: int) -> None:
        self._promise(durable=min(offset, self.promise.durable))
        self._open.truncate_from(offset)
        self.truncated(offset)

    def truncated(self, offset: int) -> None:
        """What comes after is gone, and must not come back."""
        self._promise(timeline=self.promise.timeline[:offset])

    # --- damage, which is on the disk at once

    def rot(self, offset: int) -> None:
        """Flip a bit in the batch of a record; its segment must be synced."""
        segment, position, lost, _ = self._find(offset)
        self._hurt(lost)
        with open(segment, "r+b", buffering=0) as file:
            file.seek(position + 70)
            os.pwrite(file.fileno(), bytes([file.read(1)[0] ^ 1]), position + 70)
            os.fsync(file.fileno())

    def lose_segment(self, offset: int) -> None:
        """Delete the segment of a record; the directory must be synced."""
        segment, _, _, lost = self._find(offset)
        self._hurt(lost)
        os.unlink(segment)
        directory = os.open(segment.parent, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def note_lost(self) -> None:
        """What was not synced, a salvage may leave out."""
        partition, promise = self._open, self.promise
        for offset in range(partition.start_offset, partition.next_offset):
            try:
                found = partition.get(offset) is not None
            except CorruptionError:  # left to a repair
                continue
            if not found and offset not in promise.hurt:
                assert offset >= promise.durable
                self._hurt(range(offset, offset + 1))

    def repair(self) -> None:
        self._open.repair()

    def _find(self, offset: int) -> tuple[Path, int, range, range]:
        """Return segment, position and offsets of the batch of a record, and the offsets of the segment."""
        for path in sorted((self._path / f"{TOPIC}-0").glob("*.log")):
            headers = list(Segment.open(path).headers())
            for position, one in headers:
                if one.base_offset <= offset < one.next_offset:
                    whole = range(headers[0][1].base_offset, headers[-1][1].next_offset)
                    return path, position, range(one.base_offset, one.next_offset), whole
        raise AssertionError(f"no batch holds offset {offset}")

    def _hurt(self, offsets: range) -> None:
        self._promise(hurt=self.promise.hurt.union(offsets))

    @property
    def _open(self) -> Partition:
        assert self.partition is not None
        return self.partition

    # --- the promise

    def now(self) -> Promise:
        """What is promised now; what the partition itself says counts too."""
        if self.partition is None:
            return self.promise
        return replace(self.promise, durable=max(self.promise.durable, self.partition.durable_offset))

    def _next_values(self, count: int) -> tuple[bytes, ...]:
        """Make values that no other record has, of many sizes, and put them on the timeline."""
        first, when = len(self.promise.timeline), next(_numbers)
        new = tuple(b"%d.%d " % (number, when) * (1 + number % 7) for number in range(first, first + count))
        self._promise(timeline=(*self.promise.timeline, *new))
        return new

    def _ask(self, name: str, partitions: int) -> None:
        self._promise(topics_asked={**self.promise.topics_asked, name: partitions})

    def _written(self, synced: bool) -> None:
        if synced:
            self._promise(durable=len(self.promise.timeline))

    def _promise(self, **changes: Any) -> None:
        self.promise = replace(self.promise, **changes)


_numbers = iter(range(1 << 62))


def timestamp_of(value: bytes) -> int:
    """Return when a record was made: neither in order nor at random."""
    number = int(value.split(b".")[0])
    return 1_000_000 + (number * 7919) % 1009 * 10


def _mark(name: str, partition: int) -> bytes:
    return f"{name} {partition}".encode()


def _without(counts: Counts, name: str) -> Counts:
    return {one: count for one, count in counts.items() if one != name}


def release_lock(path: Path) -> None:
    """Let go of a log's lock, as the kernel does when a process dies."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor that listed the directory
            continue
        if target == os.path.join(path, ".lock"):
            fcntl.flock(int(name), fcntl.LOCK_UN)


# --- cutting the power ---------------------------------------------------------------------------


def moments(
    root: Path, story: Callable[[Writer], None], writer: Writer, chance: random.Random, variants: int
) -> list[Moment]:
    """Run a story once and return what is left if the power goes at any point of it."""
    found: dict[object, Moment] = {}

    def take(label: str) -> None:
        images = {"lost": disk.lost(), "kept": disk.kept()}
        images["names only"], images["contents only"] = disk.names_only(), disk.contents_only()
        images |= {f"some of it ({number})": disk.some(chance) for number in range(variants)}
        for kind, image in images.items():
            moment = Moment(f"{label}, {kind}", image, writer.now())
            found.setdefault((_frozen(image), repr(moment.promise)), moment)

    disk = FakeDisk(root, take)
    with disk.watching():
        story(writer)
        take("the end")
    return list(found.values())


def _frozen(image: bytes | Image) -> object:
    if isinstance(image, bytes):
        return image
    return tuple(sorted((name, _frozen(below)) for name, below in image.items()))


def check_all(found: Iterable[Moment], folder: Path, log: str = "log") -> None:
    """Check every moment, and keep what the first bad one left."""
    for number, moment in enumerate(found):
        left = folder / f"left-{number}"
        try:
            check(moment, left, log)
        except BaseException as problem:
            problem.add_note(f"the power went {moment.label}; the log is in {left / log}\n{moment.promise}")
            raise
        count("power-cut images opened")
        shutil.rmtree(left)


# --- looking at what is left ---------------------------------------------------------------------


def check(moment: Moment, root: Path, log: str = "log") -> None:
    """Open what a power cut left: nothing promised is lost, nothing else is there, and it goes on."""
    write_image(moment.image, root)
    path, promise = root / log, moment.promise
    seen = _seen_by_a_reader(path, promise)
    with _opened(path, promise) as opened:
        _check_topics(opened, promise)
        if TOPIC not in opened.topics():
            return
        partition = opened.topic(TOPIC).partition(0)
        if promise.hurt and not partition.verify().ok:
            partition.repair()
        records = list(partition.records())
        assert seen is None or seen == (partition.start_offset, partition.next_offset, records), (
            "a reader sees what the writer will find"
        )
        _check_records(partition, promise, records)
        end = partition.next_offset
        for number in range(3):
            assert partition.append(b"%d.new" % number, sync=True) == end + number
    with commitlog.open(path) as opened:
        partition = opened.topic(TOPIC).partition(0)
        assert partition.recovery.clean
        after = list(partition.records())
        assert after[:-3] == records
        assert [one.value for one in after[-3:]] == [b"0.new", b"1.new", b"2.new"]
        assert partition.verify().damage == ()


def _opened(path: Path, promise: Promise) -> CommitLog:
    try:
        return commitlog.open(path)
    except CorruptionError:
        assert promise.hurt, "a power cut is no damage"
        return commitlog.open(path, config=LogConfig(recovery_mode="salvage"))


def _seen_by_a_reader(path: Path, promise: Promise) -> tuple[int, int, list[Record]] | None:
    """What a reader sees of a log that no writer has recovered; None if it sees no log, or damage."""
    try:
        with commitlog.open(path, mode="r") as opened:
            partition = opened.topic(TOPIC).partition(0)
            return partition.start_offset, partition.next_offset, list(partition.records())
    except (commitlog.errors.NotALogError, commitlog.UnknownTopicError):
        return None
    except CorruptionError:
        assert promise.hurt, "a power cut is no damage"
        return None


def _check_topics(opened: CommitLog, promise: Promise) -> None:
    found = {name: len(opened.topic(name).partitions) for name in opened.topics()}
    for name, least in promise.topics.items():
        assert found.get(name, 0) >= least, f"topic {name!r} was created"
    for name, number in found.items():
        assert number <= promise.topics_asked.get(name, 0), f"topic {name!r} was deleted, or never asked for"
    for name, number in promise.marked:
        partition = opened.topic(name).partition(number)
        assert [record.value for record in partition.records()] == [_mark(name, number)]
    for name in promise.topics_asked.keys() - found.keys():
        for partition in opened.create_topic(name, 2).partitions:
            assert (partition.start_offset, partition.next_offset) == (0, 0), "nothing of the old one is left"
        opened.delete_topic(name)


def _check_records(partition: Partition, promise: Promise, records: list[Record]) -> None:
    start, end, timeline = partition.start_offset, partition.next_offset, promise.timeline
    assert promise.durable <= end <= len(timeline), "what was promised is there, and nothing else"
    assert start <= partition.durable_offset <= end
    assert promise.hurt.issuperset(range(promise.start_asked, start))
    assert start >= promise.start or end < promise.start, "what was trimmed stays away"
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets)), "nothing is served twice"
    may_lack = promise.hurt.union(range(promise.durable, end) if promise.hurt else ())
    assert set(range(start, end)) - set(offsets) <= may_lack, "nothing sound is missing"
    assert set(offsets) <= set(range(start, end))
    assert [record.value for record in records] == [timeline[offset] for offset in offsets]
    times = [timestamp_of(record.value) for record in records]
    for timestamp in {*times, *(time + 5 for time in times)}:
        late = next((offset for offset, time in zip(offsets, times, strict=True) if time >= timestamp), None)
        assert partition.offset_for_timestamp(timestamp) == late
