"""The power goes while transactions run: a synced one is there as a whole, an aborted one never is."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from soak import SEED, SOAK, count

import commitlog
from commitlog import CommitLog, LogConfig, TopicPartition
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.transactions.coordinator import Owner
from commitlog.transactions.transaction import Transaction

from .disk import FakeDisk, Image, write_image
from .logs import QUIET
from .power import Moment, moments, release_lock

pytestmark = pytest.mark.usefixtures("quick_disk")

VARIANTS = 8 if SOAK else 3
SAMPLE = 800 if SOAK else 40
PARTITIONS = 3
ALL = range(PARTITIONS)
SMALL = {**QUIET, "segment_bytes": 512, "index_interval_bytes": 100}
GROUP = GroupMetadata("g", -1, "")
INPUT = "input"  # transaction N commits offset N of its partition N
OFFSETS = -1  # stands for the offsets where partitions are numbered
OTHER = b"other"  # the value of records outside of transactions


Part = tuple[int, bytes]  # of a transaction: a record of a partition, or offsets of the group


@dataclass(frozen=True)
class Promise:
    """What a log must show, and what it may show, if the power goes now.

    `parts` are the parts of each transaction. Those in `whole`, whose commit is synced, show with all of them
    or with none. `must` are those of them whose commit has returned, `may` all whose commit was called.
    """

    must: frozenset[int] = frozenset()
    may: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    parts: Mapping[int, frozenset[Part]] = field(default_factory=dict)


class Writer:
    """Runs the transactions of a story, and keeps the promise that goes with it."""

    def __init__(self, path: Path, promise: Promise) -> None:
        self._path = path
        self.promise = promise
        self.log: CommitLog
        self._owners: dict[str, Owner] = {}
        self._numbers: dict[Transaction, int] = {}

    def open(self) -> None:
        self.log = commitlog.open(self._path, config=LogConfig(cleaner_enable=False))
        self._owners = {}

    def kill(self) -> None:
        """Forget everything in memory; the files stay as they are."""
        release_lock(self._path)

    def close(self) -> None:
        self.log.close()

    def own(self, name: str) -> None:
        """Let another owner take an id over."""
        self._owners[name] = self.log._coordinator.own(name, 60_000)

    def begin(self, name: str | None = None, partitions: range = ALL, *, offsets: bool = True) -> Transaction:
        """Begin a transaction of an id, or of none; its records are held."""
        if name is not None and name not in self._owners:
            self.own(name)
        transaction = self.log.transaction() if name is None else self._owners[name].begin()
        number = self._numbers[transaction] = len(self.promise.parts)
        self._promise(parts={**self.promise.parts, number: frozenset[Part]()})
        if offsets:
            self._add(number, OFFSETS, b"%d" % number)
            place = TopicPartition(INPUT, number)
            transaction.send_offsets({place: OffsetAndMetadata(number)}, GROUP)
        self.send(transaction, partitions)
        return transaction

    def send(self, transaction: Transaction, partitions: range = ALL) -> None:
        """Append a record to each of these partitions."""
        number = self._numbers[transaction]
        for partition in partitions:
            value = b"%d.%d" % (number, len(self.promise.parts[number]))
            self._add(number, partition, value)
            transaction.append("t", value, key=value, partition=partition)

    def run(
        self,
        name: str | None = None,
        partitions: range = ALL,
        *,
        sync: bool = True,
        flushed: bool = False,
        offsets: bool = True,
    ) -> None:
        """Commit a transaction; with `flushed` some of its records are appended before."""
        transaction = self.begin(name, partitions, offsets=offsets)
        if flushed:
            transaction.flush()
            self.send(transaction, partitions)
        self.commit(transaction, sync=sync)

    def commit(self, transaction: Transaction, *, sync: bool = True) -> None:
        number = self._numbers[transaction]
        with transaction:
            whole = self.promise.whole | {number} if sync else self.promise.whole
            self._promise(may=self.promise.may | {number}, whole=whole)
            transaction.commit(sync=sync)
        if sync:
            self._promise(must=self.promise.must | {number})

    def abort(self, name: str | None = None, partitions: range = ALL, *, offsets: bool = True) -> None:
        """Abort a transaction whose records are all in the files."""
        with self.begin(name, partitions, offsets=offsets) as transaction:
            transaction.flush()
            transaction.abort()

    def _add(self, number: int, place: int, value: bytes) -> None:
        parts = self.promise.parts[number] | {(place, value)}
        self._promise(parts={**self.promise.parts, number: parts})

    def _promise(self, **changes: Any) -> None:
        self.promise = replace(self.promise, **changes)

    def decided_as(self, shown: frozenset[int]) -> None:
        """What recovery has aborted must not come back."""
        self._promise(may=shown)

    def append(self, *, sync: bool = False) -> None:
        """Append a record outside of transactions to every partition."""
        for partition in self.log.topic("t").partitions:
            partition.append(OTHER, sync=sync)

    def sync(self) -> None:
        for partition in self.log.topic("t").partitions:
            partition.sync()

    def roll(self) -> None:
        for partition in self.log.topic("t").partitions:
            partition.roll()

    def now(self) -> Promise:
        return self.promise


Story = Callable[[Writer], None]


def one_transaction(writer: Writer) -> None:
    writer.run()


def one_with_records_before_the_commit(writer: Writer) -> None:
    writer.run("a", flushed=True)


def two_of_an_id(writer: Writer) -> None:
    writer.run("a")
    writer.run("a")


def an_unsynced_one_after_a_synced_one(writer: Writer) -> None:
    writer.run("a")
    writer.run("a", sync=False)
    writer.append()
    writer.run("a")


def an_unsynced_one_in_other_partitions_after_a_synced_one(writer: Writer) -> None:
    writer.run("a", range(2), offsets=False)
    writer.run("a", range(1, 3), sync=False, offsets=False)
    writer.run("a", range(2), offsets=False)


def one_partition(writer: Writer) -> None:
    writer.run("a", range(1), offsets=False)
    writer.run("a", range(1), offsets=False, flushed=True)
    writer.run(None, range(1, 2), offsets=False)
    writer.abort(None, range(1), offsets=False)
    writer.run("a", range(1), offsets=False)


def one_partition_between_several(writer: Writer) -> None:
    writer.run("a")
    writer.run("a", range(1), offsets=False)
    writer.run("a")
    writer.abort("a", range(1), offsets=False)


def other_owners(writer: Writer) -> None:
    writer.run("a")
    writer.own("a")
    writer.run("a", sync=False)
    writer.own("a")
    writer.begin("a").flush()
    writer.own("a")
    writer.run("a")


def aborts(writer: Writer) -> None:
    writer.abort("a")
    writer.run("a")
    writer.abort("a")
    writer.abort()
    writer.run("b")
    writer.abort("b")


def aborts_in_many_segments(writer: Writer) -> None:
    for _ in range(3):
        writer.abort("a", offsets=False)
        writer.append(sync=True)
        writer.run("a")
        writer.roll()
    writer.abort("a", offsets=False)
    writer.sync()


def overlapping(writer: Writer) -> None:
    first = writer.begin("a")
    second = writer.begin("b")
    first.flush()
    second.flush()
    writer.append(sync=True)
    writer.roll()
    writer.commit(first)
    writer.run("c")
    second.abort()
    writer.append(sync=True)


def kills(writer: Writer) -> None:
    writer.run("a")
    writer.begin("a").flush()
    writer.kill()
    writer.open()
    writer.run("a")
    writer.begin().flush()
    writer.roll()
    writer.kill()
    writer.open()
    writer.append(sync=True)
    writer.run("a", sync=False)


def restarts(writer: Writer) -> None:
    writer.run()
    writer.abort()
    writer.close()
    writer.open()
    writer.run("a")
    writer.begin("a").flush()
    writer.close()
    writer.open()
    writer.run()


STORIES: list[tuple[Story, Mapping[str, Any]]] = [
    (one_transaction, {}),
    (one_with_records_before_the_commit, {}),
    (two_of_an_id, {}),
    (an_unsynced_one_after_a_synced_one, {}),
    (an_unsynced_one_in_other_partitions_after_a_synced_one, {}),
    (one_partition, {}),
    (one_partition_between_several, {}),
    (other_owners, {}),
    (aborts, {}),
    (aborts_in_many_segments, SMALL),
    (overlapping, SMALL),
    (kills, SMALL),
    (restarts, SMALL),
]
NAMES = [story.__name__ for story, _ in STORIES]


def told(story: Story, config: Mapping[str, Any], root: Path) -> list[Moment]:
    """Run a story in a log with its topic; returns (a sample of) the moments to check."""
    chance = random.Random(f"{SEED} {story.__name__}")
    root.mkdir()
    with commitlog.open(root / "log") as log:
        log.create_topic("t", PARTITIONS, {**QUIET, **config})
    return _moments(root, Writer(root / "log", Promise()), story, chance)


def _moments(root: Path, writer: Writer, story: Story, chance: random.Random) -> list[Moment]:
    def whole(_: object) -> None:
        writer.open()
        story(writer)

    found = moments(root, whole, writer, chance, VARIANTS)  # type: ignore[arg-type]
    return chance.sample(found, min(len(found), SAMPLE))


# --- looking at what is left


def seen_in(log: CommitLog) -> frozenset[Part]:
    """What shows of transactions in the partitions, nothing of it twice."""
    found = [
        (number, record.value)
        for number, partition in enumerate(log.topic("t").partitions)
        for record in partition.records()
        if record.value != OTHER
    ]
    assert len(found) == len(set(found))
    return frozenset(found)


def offsets_in(log: CommitLog) -> frozenset[Part]:
    if not log._topics.counts(["__consumer_offsets"]):
        return frozenset()
    committed = log._groups.offsets().stable("g", 0)
    assert all(place.partition == one.offset for place, one in committed.items())
    return frozenset((OFFSETS, b"%d" % one.offset) for one in committed.values())


def number_of(part: Part) -> int:
    return int(part[1].split(b".")[0])


def check(moment: Moment, root: Path) -> None:
    """Open what a power cut left: the promise is kept, nothing is open, and it goes on."""
    promise: Any = moment.promise
    write_image(moment.image, root)
    path = root / "log"
    with commitlog.open(path, mode="r") as log:
        by_readers = seen_in(log)
    with commitlog.open(path, config=LogConfig(cleaner_enable=False)) as log:
        assert [one for one in log.transactions() if one.state in ("Ongoing", "PrepareCommit")] == []
        for partition in log.topic("t").partitions:
            assert partition.open_transactions() == []
            assert partition.last_stable_offset == partition.high_watermark
        seen = seen_in(log)
        assert by_readers <= seen, "what a reader saw stays"
        seen |= offsets_in(log)
        shown = frozenset(map(number_of, seen))
        assert shown <= promise.may, "nothing shows that was aborted, or not committed"
        assert promise.must <= shown, "what was synced is there"
        for number in promise.whole & shown:
            assert frozenset(one for one in seen if number_of(one) == number) == promise.parts[number]
        writer = Writer(path, promise)
        writer.log = log
        writer.run("a", sync=False)
        writer.abort("b")
        new = writer.promise.parts[len(promise.parts)]
        assert seen_in(log) | offsets_in(log) == seen | new
    with commitlog.open(path) as log:
        assert seen_in(log) | offsets_in(log) == seen | new
        assert all(partition.verify().ok for partition in log.topic("t").partitions)


def check_all(found: Iterable[Moment], folder: Path) -> None:
    """Check every moment, and keep what the first bad one left."""
    for number, moment in enumerate(found):
        left = folder / f"left-{number}"
        try:
            check(moment, left)
        except BaseException as problem:
            problem.add_note(f"the power went {moment.label}; the log is in {left}\n{moment.promise}")
            raise
        count("power-cut images opened")
        shutil.rmtree(left)


@pytest.mark.parametrize(("story", "config"), STORIES, ids=NAMES)
def test_a_power_cut_leaves_all_of_a_synced_transaction_or_nothing(
    story: Story, config: Mapping[str, Any], tmp_path: Path
) -> None:
    check_all(told(story, config, tmp_path / "live"), tmp_path)


@pytest.mark.parametrize(("story", "config"), STORIES, ids=NAMES)
def test_a_second_power_cut_while_the_first_is_recovered_from_changes_no_outcome(
    story: Story, config: Mapping[str, Any], tmp_path: Path
) -> None:
    def go_on(writer: Writer) -> None:
        shown = frozenset(map(number_of, seen_in(writer.log) | offsets_in(writer.log)))
        writer.decided_as(shown)
        writer.append(sync=True)
        writer.run("a")
        writer.abort("b")
        writer.append(sync=True)

    first = told(story, config, tmp_path / "live")
    chance = random.Random(f"{SEED} {story.__name__}")
    for number, moment in enumerate(chance.sample(first, min(len(first), 40 if SOAK else 3))):
        root, promise = tmp_path / f"again-{number}", moment.promise
        write_image(moment.image, root)
        again = _moments(root, Writer(root / "log", promise), go_on, chance)  # type: ignore[arg-type]
        check_all(chance.sample(again, min(len(again), 40 if SOAK else 12)), tmp_path)


# --- derived files that the cut took, or left from before


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("hurt", [Path.unlink, torn, zeroed])
@pytest.mark.parametrize("suffixes", [(".txnindex",), (".snapshot",), (".txnindex", ".snapshot")])
@pytest.mark.parametrize("story", [aborts_in_many_segments, overlapping])
def test_without_lists_or_snapshots_nothing_shows_that_was_aborted(
    story: Story, suffixes: tuple[str, ...], hurt: Callable[[Path], None], tmp_path: Path
) -> None:
    root = tmp_path / "live"
    root.mkdir()
    writer = Writer(root / "log", Promise())
    with commitlog.open(root / "log") as log:
        log.create_topic("t", PARTITIONS, SMALL)
    writer.open()
    story(writer)
    left = tmp_path / "left"
    shutil.copytree(root, left)
    writer.close()
    hurt_ones = [one for suffix in suffixes for one in left.rglob(f"t-*/*{suffix}")]
    assert hurt_ones
    for one in hurt_ones:
        hurt(one)
    promise = writer.promise
    with commitlog.open(left / "log", mode="r") as log:
        assert frozenset(map(number_of, seen_in(log))) == promise.may
    with commitlog.open(left / "log") as log:
        assert frozenset(map(number_of, seen_in(log))) == promise.may
        assert all(partition.verify().ok for partition in log.topic("t").partitions)


@pytest.mark.parametrize("rolled", [False, True])
def test_a_list_of_a_segment_that_was_cut_since_is_not_believed_if_it_comes_back(
    rolled: bool, tmp_path: Path
) -> None:
    """A cut loses the marker of a commit; the abort marker in its place makes a segment of the same size.

    The list from before the cut comes back with a second cut, unless its removal is durable by then.
    """
    root = tmp_path / "live"
    root.mkdir()
    with commitlog.open(root / "log") as log:
        partition = log.create_topic("t", config=QUIET).partition(0)
        with log.transaction() as transaction:
            transaction.append("t", b"1.0", partition=0)
        partition.roll()  # the list is complete: nothing is aborted
        shutil.copytree(root, tmp_path / "first")
    path = tmp_path / "first" / "log" / "t-0"
    end = next(
        position
        for position, one in commitlog.Segment.open(path / f"{0:020d}.log").headers()
        if one.is_marker
    )
    os.truncate(path / f"{0:020d}.log", end)  # the cut: the marker and all that came after it are gone
    (path / f"{2:020d}.log").unlink()
    found = list[Image]()
    disk = FakeDisk(tmp_path / "first", lambda _: found.extend([disk.contents_only(), disk.lost()]))
    with disk.watching(), commitlog.open(tmp_path / "first" / "log") as log:
        assert list(log.topic("t").partition(0).records()) == []
        if rolled:
            log.topic("t").partition(0).roll()
    for number, image in enumerate(found):
        left = tmp_path / f"left-{number}"
        write_image(image, left)
        for mode in ("r", "w"):
            with commitlog.open(left / "log", mode=mode) as log:
                assert list(log.topic("t").partition(0).records()) == []
        shutil.rmtree(left)
