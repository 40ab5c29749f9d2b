"""A replica on a disk that loses power, and what it was promised when the power went."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import commitlog
from commitlog import CommitLog, Partition, RecordBatch

from .disk import write_image
from .power import TOPIC, Moment, release_lock

CONFIG = {"flush_ms": -1, "segment_bytes": 600, "index_interval_bytes": 100}


@dataclass(frozen=True)
class Row:
    """A record, and the leader epoch of its batch."""

    offset: int
    epoch: int
    value: bytes | None


@dataclass(frozen=True)
class Held:
    """The log begins at `start` and has the first of `rows`: all below its end, which is `least` or more."""

    start: int
    rows: tuple[Row, ...]
    least: int


@dataclass(frozen=True)
class ReplicaPromise:
    """The log is one of `held`, its high watermark at least `mark`, if there are so many records, and at most
    `most`, the highest one that was ever told.
    """

    held: tuple[Held, ...] = (Held(0, (), 0),)
    mark: int = 0
    most: int = 0
    created: bool = False


class Replica:
    """A replica that does what a story tells it, and keeps the promise that goes with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.promise = ReplicaPromise()
        self.log: CommitLog
        self.partition: Partition | None = None

    def now(self) -> ReplicaPromise:
        if self.partition is None:
            return self.promise
        durable = self.partition.durable_offset
        held = tuple(
            replace(one, least=max(one.least, min(durable, self._end(one)))) for one in self.promise.held
        )
        return replace(self.promise, held=held if len(held) == 1 else self.promise.held)

    @staticmethod
    def _end(held: Held) -> int:
        return held.rows[-1].offset + 1 if held.rows else held.start

    # --- what it does

    def create(self) -> None:
        self.log = commitlog.open(self._path)
        self.partition = self.log.create_topic(TOPIC, config=CONFIG).partition(0)
        self.partition.follow()
        self.promise = replace(self.promise, created=True)

    def kill_and_open(self) -> None:
        release_lock(self._path)
        self.partition = None
        self.log = commitlog.open(self._path)
        self.partition = self.log.topic(TOPIC).partition(0)
        self.partition.follow()

    def close_and_open(self) -> None:
        self.partition = None
        self.log.close()
        self.kill_and_open()

    def fetch(self, leader: Partition, max_bytes: int, times: int = 1) -> None:
        """Ask a leader, and do what the answer tells."""
        for _ in range(times):
            replica, asked = self._open, self._open.next_offset
            cut = diverging(leader, replica)
            if cut is not None:
                self.truncate(cut)
                continue
            if asked < leader.start_offset:
                self.restart(leader.start_offset)
                continue
            found = leader.read_replica(asked, max_bytes)
            data = found.data.read()
            (held,) = self.promise.held
            new = tuple(row for row in rows_of(bytes(data)) if row.offset >= asked)
            self._hold(replace(held, rows=held.rows + new))
            replica.append_replicated(data, found.segment_base)

    def sync(self) -> None:
        self._open.sync()

    def roll(self) -> None:
        self._open.roll()

    def mark(self, offset: int) -> None:
        self.promise = replace(self.promise, most=max(self.promise.most, offset))
        self._open.set_high_watermark(offset)

    def keep(self) -> None:
        self._open.keep_high_watermark()
        self.promise = replace(self.promise, mark=self._open.high_watermark)

    def truncate(self, offset: int) -> None:
        (held,) = self.promise.held
        self._hold(replace(held, least=min(held.least, offset)))
        self.promise = replace(self.promise, mark=min(self.promise.mark, offset))
        self._open.truncate_from(offset)
        rows = tuple(row for row in held.rows if row.offset < offset)
        self._hold(Held(held.start, rows, offset))
        self.promise = replace(self.promise, most=min(self.promise.most, offset))

    def restart(self, offset: int) -> None:
        (held,) = self.promise.held
        base = self._open.segments[0].base_offset
        gone, at = Held(base, (), base), Held(offset, (), offset)
        self._hold(replace(held, least=base), gone, at)
        self.promise = replace(self.promise, mark=0, most=max(self.promise.most, offset))
        self._open.restart_at(offset)
        self._hold(at)
        self.promise = replace(self.promise, mark=offset, most=offset)

    def trim(self, offset: int) -> None:
        (held,) = self.promise.held
        after = replace(
            held, start=offset, least=offset, rows=tuple(r for r in held.rows if r.offset >= offset)
        )
        self._hold(replace(held, least=max(held.least, 0)), after)
        self._open.trim_before(offset)
        self._hold(after)

    def lead(self, epoch: int, values: list[bytes]) -> None:
        """Be elected, append something, and follow again."""
        replica = self._open
        replica.lead(epoch)
        for value in values:
            (held,) = self.promise.held
            self._hold(replace(held, rows=(*held.rows, Row(replica.next_offset, epoch, value))))
            replica.append(value, timestamp=5)
        replica.follow()

    @property
    def _open(self) -> Partition:
        assert self.partition is not None
        return self.partition

    def _hold(self, *held: Held) -> None:
        self.promise = replace(self.promise, held=held)


def diverging(leader: Partition, replica: Partition) -> int | None:
    """Where a replica has to truncate, None if it has nothing that its leader has not."""
    asked, last = replica.next_offset, replica.epochs.latest
    if last == -1:
        return leader.next_offset if asked > leader.next_offset else None
    epoch, end = leader.epochs.end_of(last, leader.next_offset)
    if epoch == last and end >= asked:
        return None
    return min(end, replica.epochs.end_of(epoch, asked)[1])


def rows_of(data: bytes) -> Iterator[Row]:
    position = 0
    while position < len(data):
        batch = RecordBatch.decode(data, position)
        yield from (Row(one.offset, batch.header.leader_epoch, one.value) for one in batch.records())
        position += batch.size_bytes


def rows_in(partition: Partition) -> tuple[Row, ...]:
    """Everything in a log, whatever its high watermark is."""
    found: list[Row] = []
    offset = partition.start_offset
    while offset < partition.next_offset:
        part = partition.read_replica(offset, 1 << 20)
        found += [row for row in rows_of(bytes(part.data.read())) if row.offset >= offset]
        offset = part.next_offset
    return tuple(found)


# --- looking at what is left -----------------------------------------------------------------------


def check(moment: Moment, root: Path, leader: Partition) -> None:
    """Open what a power cut left: nothing promised is lost, and the leader's log is what becomes of it."""
    write_image(moment.image, root)
    promise: Any = moment.promise
    path = root / "log"
    seen = _seen_by_a_reader(path)
    with commitlog.open(path) as log:
        if TOPIC not in log.topics():
            assert not promise.created
            return
        partition = log.topic(TOPIC).partition(0)
        _check_held(partition, promise)
        if promise.created:
            _check_mark(partition, promise)
            assert seen in (None, (partition.start_offset, partition.high_watermark, partition.next_offset))
        _go_on(partition, leader)
        epochs, rows, mark = partition.epochs, rows_in(partition), partition.high_watermark
    with commitlog.open(path) as log:
        partition = log.topic(TOPIC).partition(0)
        assert partition.recovery.clean
        assert (partition.epochs, rows_in(partition), partition.high_watermark) == (epochs, rows, mark)
        assert partition.verify().damage == ()


def _seen_by_a_reader(path: Path) -> tuple[int, int, int] | None:
    try:
        with commitlog.open(path, mode="r") as opened:
            partition = opened.topic(TOPIC).partition(0)
            records = [one.offset for one in partition.records()]
            assert records == list(range(partition.start_offset, partition.high_watermark))
            return partition.start_offset, partition.high_watermark, partition.next_offset
    except (commitlog.errors.NotALogError, commitlog.UnknownTopicError):
        return None


def _check_held(partition: Partition, promise: ReplicaPromise) -> None:
    rows, start, end = rows_in(partition), partition.start_offset, partition.next_offset
    assert any(
        rows == tuple(row for row in held.rows if start <= row.offset < end)
        and start == min(held.start, end)
        and held.least <= end <= Replica._end(held)
        for held in promise.held
    ), f"[{start}, {end}) is not what was promised"
    for row in rows:
        assert partition.epochs.epoch_of(row.offset) == row.epoch, "the history is that of the batches"
    assert all(one.start_offset <= end for one in partition.epochs.starts)


def _check_mark(partition: Partition, promise: ReplicaPromise) -> None:
    start, mark, end = partition.start_offset, partition.high_watermark, partition.next_offset
    assert start <= mark <= end
    assert mark == start or mark <= promise.most, "nobody reads what may disappear"
    assert mark >= min(promise.mark, end), "what was kept is known"


def _go_on(partition: Partition, leader: Partition) -> None:
    partition.follow()
    for _ in range(1_000):
        cut = diverging(leader, partition)
        if cut is not None and cut >= partition.start_offset:
            partition.truncate_from(cut)
        elif cut is not None or partition.next_offset < leader.start_offset:
            partition.restart_at(leader.start_offset if cut is None else cut)
        elif partition.next_offset == leader.next_offset:
            break
        else:
            found = leader.read_replica(partition.next_offset, 300)
            partition.append_replicated(found.data.read(), found.segment_base)
    partition.set_high_watermark(leader.next_offset)
    theirs = tuple(row for row in rows_in(leader) if row.offset >= partition.start_offset)
    assert rows_in(partition) == theirs
    assert partition.next_offset == leader.next_offset
