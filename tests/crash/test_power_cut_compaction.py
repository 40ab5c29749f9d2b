"""The power goes at every call that a pass of compaction makes, and between passes, appends and syncs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from soak import SEED, SOAK, count

import commitlog
from commitlog import CommitLog, LogConfig, Partition, Record

from .disk import write_image
from .power import Moment, moments, release_lock

VARIANTS = 8 if SOAK else 4
SAMPLE = 500 if SOAK else 80
CONFIG = {
    "cleanup_policy": "compact",
    "segment_bytes": 512,
    "index_interval_bytes": 100,
    "flush_ms": -1,
    "file_delete_delay_ms": 0,
    "delete_retention_ms": 100,
}
FOREVER = 1 << 50
GONE = (b"", b"gone")  # what a pass removed, once nothing can bring it back

pytestmark = pytest.mark.usefixtures("quick_disk")
Pair = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Promise:
    """`timeline` is every record that can be there, by offset. The log ends somewhere in it, not below
    `durable`, and whatever a pass removed of it, each key has the value that the timeline tells.
    """

    timeline: tuple[Pair, ...] = ()
    durable: int = 0
    start: int = 0
    start_asked: int = 0
    created: bool = False


class Writer:
    """Does what a story tells it, and keeps the promise that goes with it."""

    def __init__(self, path: Path, promise: Promise, config: Mapping[str, Any], room: int = 1 << 16) -> None:
        self._path = path
        self._config = {**CONFIG, **config}
        self._room = room
        self.promise = promise
        self.partition: Partition | None = None
        self.log: CommitLog

    def open(self) -> None:
        self.log = commitlog.open(self._path, config=LogConfig(cleaner_dedupe_buffer_bytes=self._room))
        if "t" in self.log.topics():
            self.partition = self.log.topic("t").partition(0)

    def create(self) -> None:
        self.partition = self.log.create_topic("t", config=self._config).partition(0)
        self._promise(created=True)

    def kill(self) -> None:
        release_lock(self._path)
        self.partition = None

    def close(self) -> None:
        self.log.close()
        self.partition = None
        self._promise(durable=len(self.promise.timeline))

    def append(self, keys: str, *, batch: bool = False, sync: bool = False) -> None:
        """Append a record for each letter, which is its key; a capital one deletes it."""
        new = [self._next(letter) for letter in keys]
        for share in [new] if batch else [[one] for one in new]:
            self._promise(timeline=(*self.promise.timeline, *share))
            self._open.append_many(
                [value for _, value in share], keys=[key for key, _ in share], timestamps=[1] * len(share)
            )
        if sync:
            self.sync()

    def _next(self, letter: str) -> Pair:
        number = next(_numbers)
        value = None if letter.isupper() else b"%s %d " % (letter.encode(), number) * (1 + number % 6)
        return letter.lower().encode(), value

    def sync(self) -> None:
        self._open.sync()
        self._promise(durable=len(self.promise.timeline))

    def roll(self) -> None:
        self._open.roll()

    def compact(self, now: int = 1_000) -> None:
        self._open.compact(now)

    def trim(self, offset: int) -> None:
        self._promise(start_asked=max(offset, self.promise.start_asked))
        self._open.trim_before(offset)
        self._promise(start=max(offset, self.promise.start))

    def truncate(self, offset: int) -> None:
        """What a pass removed for the sake of a record that is truncated now is gone for good."""
        there = {record.offset for record in self._open.records()}
        timeline = tuple(
            pair if place in there or place < self._open.start_offset else GONE
            for place, pair in enumerate(self.promise.timeline)
        )
        self._promise(timeline=timeline, durable=min(offset, self.promise.durable))
        self._open.truncate_from(offset)
        self._promise(timeline=timeline[:offset])

    @property
    def _open(self) -> Partition:
        assert self.partition is not None
        return self.partition

    def now(self) -> Promise:
        """What is promised now; what the partition itself says counts too."""
        if self.partition is None:
            return self.promise
        return replace(self.promise, durable=max(self.promise.durable, self.partition.durable_offset))

    def _promise(self, **changes: Any) -> None:
        self.promise = replace(self.promise, **changes)


_numbers = iter(range(1 << 62))


# --- stories


def passes_between_appends(writer: Writer) -> None:
    writer.append("abcabc", sync=True)
    writer.roll()
    writer.append("abd")
    writer.compact()
    writer.append("aab")
    writer.roll()
    writer.compact()
    writer.append("cc", sync=True)
    writer.append("a")


def deletions(writer: Writer) -> None:
    writer.append("abcABd", batch=True)
    writer.roll()
    writer.compact(1_000)
    writer.append("Cab")
    writer.roll()
    writer.compact(1_200)
    writer.append("d")
    writer.roll()
    writer.compact(2_000)
    writer.compact(FOREVER)
    writer.append("A", sync=True)


def small_maps(writer: Writer) -> None:
    writer.append("ababcab")
    writer.roll()
    for _ in range(4):
        writer.compact()
    writer.append("bc", sync=True)
    writer.roll()
    writer.compact()
    writer.compact()


def trims_and_passes(writer: Writer) -> None:
    writer.append("abcdabcaab")
    writer.roll()
    writer.trim(3)
    writer.compact()
    writer.append("ab")
    writer.trim(9)
    writer.roll()
    writer.compact()
    writer.append("c", sync=True)


def truncations_and_passes(writer: Writer) -> None:
    writer.append("abcabc")
    writer.roll()
    writer.append("abcabc", batch=True)
    writer.roll()
    writer.compact()
    writer.truncate(9)
    writer.append("ad", sync=True)
    writer.roll()
    writer.compact()
    writer.truncate(4)
    writer.append("eea")
    writer.roll()
    writer.compact()


def kills_and_restarts(writer: Writer) -> None:
    writer.append("abcab")
    writer.roll()
    writer.compact()
    writer.append("ab")
    writer.kill()
    writer.open()
    writer.roll()
    writer.compact()
    writer.close()
    writer.open()
    writer.append("cA")
    writer.roll()
    writer.kill()
    writer.open()
    writer.compact()


STORIES: list[tuple[Callable[[Writer], None], Mapping[str, Any], int]] = [
    (passes_between_appends, {}, 1 << 16),
    (deletions, {"compression_type": "zstd"}, 1 << 16),
    (small_maps, {"segment_bytes": 2_000}, 1),
    (trims_and_passes, {}, 1 << 16),
    (truncations_and_passes, {}, 24 * 3),
    (kills_and_restarts, {"preallocate": True}, 1 << 16),
]
NAMES = [story.__name__ for story, _, _ in STORIES]


def told(index: int, root: Path) -> list[Moment]:
    """Run a story from the creation of the log on; returns the moments at which the power may go."""
    story, config, room = STORIES[index]

    def whole(writer: Any) -> None:
        writer.open()
        writer.create()
        story(writer)

    root.mkdir()
    writer: Any = Writer(root / "log", Promise(), config, room)
    return moments(root, whole, writer, random.Random(f"{SEED} {story.__name__}"), VARIANTS)


def sampled(found: list[Moment], chance: random.Random, count: int) -> list[Moment]:
    return found if count >= len(found) else chance.sample(found, count)


@pytest.mark.parametrize("index", range(len(STORIES)), ids=NAMES)
def test_a_power_cut_around_a_pass_leaves_each_key_its_latest_synced_value(
    index: int, tmp_path: Path
) -> None:
    found = told(index, tmp_path / "live")
    check_all(sampled(found, random.Random(f"{SEED} {index}"), SAMPLE), tmp_path)


def in_a_swap(moment: Moment) -> bool:
    log: Any = moment.image.get("log", {})
    return any(name.endswith(".swap") for name in log.get("t-0", {}))


@pytest.mark.parametrize("index", range(len(STORIES)), ids=NAMES)
def test_a_second_power_cut_while_a_swap_is_finished_loses_nothing_more(index: int, tmp_path: Path) -> None:
    def go_on(writer: Any) -> None:
        writer.open()
        if writer.partition is not None:
            end = writer.partition.next_offset
            writer.promise = replace(writer.promise, timeline=writer.promise.timeline[:end])
            writer.append("a", sync=True)
            writer.roll()
            writer.compact()

    chance = random.Random(f"{SEED} {index}")
    found = told(index, tmp_path / "live")
    swapping = [one for one in found if in_a_swap(one)]
    assert swapping
    for number, moment in enumerate(sampled(swapping, chance, 10 if SOAK else 2)):
        root = tmp_path / f"again-{number}"
        write_image(moment.image, root)
        promise: Any = moment.promise
        writer: Any = Writer(root / "log", promise, {}, STORIES[index][2])
        check_all(sampled(moments(root, go_on, writer, chance, VARIANTS), chance, 40), tmp_path)


# --- looking at what is left


def check_all(found: Iterable[Moment], folder: Path) -> None:
    for number, moment in enumerate(found):
        left = folder / f"left-{number}"
        write_image(moment.image, left)
        promise: Any = moment.promise
        try:
            check(promise, left / "log")
        except BaseException as problem:
            problem.add_note(f"the power went {moment.label}; the log is in {left}\n{promise}")
            raise
        count("power-cut images opened")
        shutil.rmtree(left)


def check(promise: Promise, path: Path) -> None:
    """Open what a power cut left: every key has the value it must have, and the log goes on."""
    seen = seen_by_a_reader(path)
    with commitlog.open(path) as log:
        if "t" not in log.topics():
            assert not promise.created
            return
        partition = log.topic("t").partition(0)
        records = list(partition.records())
        assert seen in (None, records), "a reader sees what the writer will find"
        check_records(partition, promise, records)
        state = dict(partition.latest())
        partition.append(b"new", key=b"new", sync=True)
        partition.roll()
        for _ in range(3):
            partition.compact(1_000)
        assert partition.latest() == {**state, b"new": b"new"}
    with commitlog.open(path) as log:
        partition = log.topic("t").partition(0)
        assert partition.recovery.clean
        assert partition.latest() == {**state, b"new": b"new"}
        assert partition.verify().damage == ()


def seen_by_a_reader(path: Path) -> list[Record] | None:
    try:
        with commitlog.open(path, mode="r") as log:
            return list(log.topic("t").partition(0).records())
    except (commitlog.errors.NotALogError, commitlog.UnknownTopicError):
        return None


def check_records(partition: Partition, promise: Promise, records: list[Record]) -> None:
    start, end = partition.start_offset, partition.next_offset
    assert promise.durable <= end <= len(promise.timeline), "what was synced is there, and nothing else"
    assert start <= promise.start_asked
    assert start >= promise.start or end < promise.start, "what was trimmed stays away"
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert [(one.key, one.value) for one in records] == [promise.timeline[offset] for offset in offsets]
    expected = dict(pair for pair in promise.timeline[start:end] if pair != GONE)
    assert state_of([(one.key, one.value) for one in records]) == state_of(expected.items())
    clean = [one.key for one in records if one.offset < partition.clean_offset]
    assert len(clean) == len(set(clean)), "more counts as clean than was cleaned"


def state_of(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes]:
    return {key: value for key, value in dict(pairs).items() if value is not None}
