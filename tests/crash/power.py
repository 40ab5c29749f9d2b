"""A writer on a disk that loses power, and what it was promised when the power went."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import commitlog
from commitlog import CommitLog, Partition, UnknownTopicError

from .disk import FakeDisk, Image, write_image

TOPIC = "t"


@dataclass(frozen=True)
class Promise:
    """What a log must hold, and what it may hold, if the power goes now.

    `timeline` is every record that can be there, the one in flight included: the log is some prefix of it,
    `durable` records or more, from an offset in [start, start_asked] on.
    """

    timeline: tuple[bytes, ...] = ()
    durable: int = 0
    start: int = 0
    start_asked: int = 0
    topics: frozenset[str] = frozenset()  # must be there
    topics_asked: frozenset[str] = frozenset()  # may be there


@dataclass(frozen=True)
class Moment:
    """A point at which the power may go."""

    label: str
    image: Image
    promise: Promise


class Writer:
    """Does what a story tells it, and keeps the promise that goes with it."""

    def __init__(self, path: Path, promise: Promise, config: dict[str, object] | None = None) -> None:
        self._path = path
        self._config = {"flush_ms": -1, **(config or {})}
        self._number = len(promise.timeline)
        self.promise = promise
        self.log: CommitLog | None = None
        self.partition: Partition | None = None

    def open(self) -> None:
        self.log = commitlog.open(self._path)
        if TOPIC in self.promise.topics:
            self.partition = self.log.topic(TOPIC).partition(0)

    def create(self, name: str = TOPIC, partitions: int = 1) -> None:
        self._promise(topics_asked=self.promise.topics_asked | {name})
        topic = self._open_log.create_topic(name, partitions, self._config)
        self._promise(topics=self.promise.topics | {name})
        if name == TOPIC:
            self.partition = topic.partition(0)

    def delete(self, name: str) -> None:
        self._promise(topics=self.promise.topics - {name})
        self._open_log.delete_topic(name)
        self._promise(topics_asked=self.promise.topics_asked - {name})

    def append(self, count: int = 1, *, sync: bool = False) -> None:
        for _ in range(count):
            value = self._values(1)[0]
            offset = self._open_partition.append(value, sync=sync)
            assert offset == len(self.promise.timeline) - 1
            self._written(sync)

    def append_many(self, count: int, *, sync: bool = False) -> None:
        values = self._values(count)
        end = len(self.promise.timeline)
        assert self._open_partition.append_many(values, sync=sync) == range(end - count, end)
        self._written(sync)

    def sync(self) -> None:
        self._open_partition.sync()
        self._written(True)

    def roll(self) -> None:
        self._open_partition.roll()

    def trim(self, offset: int) -> None:
        self._promise(start_asked=max(offset, self.promise.start_asked))
        self._open_partition.trim_before(offset)
        self._promise(start=max(offset, self.promise.start))

    def truncate(self, offset: int) -> None:
        self._promise(durable=min(offset, self.promise.durable))
        self._open_partition.truncate_from(offset)
        self._promise(timeline=self.promise.timeline[:offset])

    def close(self) -> None:
        self._open_log.close()
        self.partition = None
        self._written(True)

    def kill(self) -> None:
        """Forget everything in memory, as a kill does: the files stay as they are."""
        release_lock(self._path)
        self.log = self.partition = None

    def now(self) -> Promise:
        """What is promised now: also what the partition itself says."""
        if self.partition is None:
            return self.promise
        return replace(self.promise, durable=max(self.promise.durable, self.partition.durable_offset))

    def _values(self, count: int) -> tuple[bytes, ...]:
        """Make values that no other record has, of many sizes, and put them on the timeline."""
        new = []
        for _ in range(count):
            new.append(b"value %d " % self._number * (1 + self._number % 7))
            self._number += 1
        self._promise(timeline=(*self.promise.timeline, *new))
        return tuple(new)

    def _written(self, synced: bool) -> None:
        if synced:
            self._promise(durable=len(self.promise.timeline))

    def _promise(self, **changes: object) -> None:
        self.promise = replace(self.promise, **changes)  # type: ignore[arg-type]

    @property
    def _open_log(self) -> CommitLog:
        assert self.log is not None
        return self.log

    @property
    def _open_partition(self) -> Partition:
        assert self.partition is not None
        return self.partition


def release_lock(path: Path) -> None:
    """Let go of a log's lock, as the kernel does when a process dies."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor that listed the directory
            continue
        if target == os.path.join(path, ".lock"):
            fcntl.flock(int(name), fcntl.LOCK_UN)


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
            found.setdefault((_frozen(image), moment.promise), moment)

    disk = FakeDisk(root, take)
    with disk.watching():
        story(writer)
        take("the end")
    release_lock(root / "log")
    return list(found.values())


def _frozen(image: bytes | Image) -> object:
    if isinstance(image, bytes):
        return image
    return tuple(sorted((name, _frozen(below)) for name, below in image.items()))


def check(moment: Moment, root: Path, log: str = "log") -> tuple[bytes, ...]:
    """Open what a power cut left: nothing promised is lost, nothing else is there, and it goes on from here.

    Returns the records found from offset 0 on, those trimmed included.
    """
    write_image(moment.image, root)
    path, promise = root / log, moment.promise
    seen = _read_only(path)
    with commitlog.open(path) as opened:
        names = set(opened.topics())
        assert promise.topics <= names <= promise.topics_asked, moment.label
        if TOPIC not in names:
            assert not promise.timeline
            return ()
        partition = opened.topic(TOPIC).partition(0)
        start, end = partition.start_offset, partition.next_offset
        records = list(partition.records())
        assert seen is None or seen == (start, end, records), "a reader sees what the writer will find"
        _check_records(partition, promise, records)
        more = [b"after the power cut %d" % number for number in range(3)]
        offsets = [partition.append(value, sync=True) for value in more]
        assert offsets == list(range(end, end + 3))
    with commitlog.open(path) as opened:
        partition = opened.topic(TOPIC).partition(0)
        assert partition.recovery.clean
        assert [(one.offset, one.value) for one in partition.records()] == [
            *((one.offset, one.value) for one in records),
            *zip(offsets, more, strict=True),
        ]
        assert partition.verify().damage == ()
    return promise.timeline[:end]


def _read_only(path: Path) -> tuple[int, int, list[commitlog.Record]] | None:
    """What a reader sees of a log that no writer has recovered."""
    try:
        with commitlog.open(path, mode="r") as opened:
            partition = opened.topic(TOPIC).partition(0)
            return partition.start_offset, partition.next_offset, list(partition.records())
    except (commitlog.NotALogError, UnknownTopicError):
        return None


def _check_records(partition: Partition, promise: Promise, records: list[commitlog.Record]) -> None:
    start, end = partition.start_offset, partition.next_offset
    assert promise.durable <= end <= len(promise.timeline), "what was promised is there, and nothing else"
    assert start <= partition.durable_offset <= end
    assert start <= promise.start_asked
    assert start >= promise.start or end < promise.start, "what was trimmed stays away"
    assert [record.offset for record in records] == list(range(start, end))
    assert [record.value for record in records] == list(promise.timeline[start:end])
