"""commitlog behind the same adapter as its peers, and the partitions that other rows need."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import ClassVar

from data import Batch, Seen

import commitlog

TOPIC = "bench"
# "written" and no more, as for the peers; by default a background thread would also sync every second
WRITTEN = {"flush_ms": -1}


def create(path: Path, **settings: object) -> tuple[commitlog.CommitLog, commitlog.Partition]:
    log = commitlog.open(path)
    topic = log.create_topic(TOPIC, config=commitlog.TopicConfig(**settings))
    return log, topic.partition(0)


def reopen(path: Path, mode: str = "w") -> tuple[commitlog.CommitLog, commitlog.Partition]:
    log = commitlog.open(path, mode=mode)
    return log, log.topic(TOPIC).partition(0)


def log_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.log"))


def log_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in log_files(path))


def fill(path: Path, batches: Iterable[Batch], size_bytes: int, **settings: object) -> int:
    """Write batches over and over until the log has `size_bytes`, close it, and return its records."""
    log, partition = create(path, **(WRITTEN | settings))
    with log:
        written = 0
        for batch in cycle(batches):
            if written >= size_bytes:
                break
            partition.append_many(batch.values, keys=batch.keys, timestamps=batch.timestamps)
            written += sum(map(len, batch.values)) + sum(map(len, batch.keys))
        return partition.next_offset


class Commitlog:
    """One topic of one partition."""

    name = "commitlog"
    version = commitlog.__version__
    settings: ClassVar[dict[str, object]] = WRITTEN

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        if readonly or path.exists():
            self._log, self._partition = reopen(path, "r" if readonly else "w")
        else:
            self._log, self._partition = create(path, **self.settings)

    def append_batch(self, batch: Batch, *, stamp: bool) -> None:
        timestamps = None if stamp else batch.timestamps
        self._partition.append_many(batch.values, keys=batch.keys, timestamps=timestamps)

    def append_each(self, batch: Batch) -> None:
        append = self._partition.append
        for key, value in zip(batch.keys, batch.values, strict=True):
            append(value, key=key)

    def next_offset(self) -> int:
        return self._partition.next_offset

    def scan_records(self) -> Seen:
        records = size = 0
        offset = timestamp = key = value = None
        for offset, timestamp, key, value, _ in self._partition.records():  # noqa: B007 - the last ones are checked
            records += 1
            size += len(value)
        return Seen(records, size, (offset, timestamp, key, value))

    def scan_values(self) -> Seen:
        records = size = 0
        value = None
        for batch in self._partition.batches():
            for value in batch.values():
                records += 1
                size += len(value)
        return Seen(records, size, value)

    def close(self) -> None:
        self._log.close()


class DefaultCommitlog(Commitlog):
    """commitlog as it comes: it also syncs every second in the background, which no peer here does."""

    name = "commitlog, flush_ms=1000"
    settings: ClassVar[dict[str, object]] = {}
