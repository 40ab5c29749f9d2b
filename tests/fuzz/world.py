"""The log that is damaged: what stands at an offset is a function of the offset.

So however batches are cut, moved, or mixed from several files, every record that is served can be told to be
the right one or not. The partition has the offsets [0, 100) in three segments, of 40, 40 and 20.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from helpers import CODECS

import commitlog
from commitlog import CommitLog, CommitLogError, LogConfig, Record, TopicConfig
from commitlog.batches.columns import narrow, pack_bytes
from commitlog.batches.encode import Columns, Rules, assemble, encode, encode_empty, numbered, pack_headers
from commitlog.config import CompressionType
from commitlog.segment import segment_path
from fuzz.harness import WrongAnswer

TOPIC, PARTITION = "t", "t-0"
BASES, END = (0, 40, 80), 100
LOW, HIGH = 40, 80  # the segment that is damaged
GAPS = frozenset((45, 46, 51, 52, 53, 54, 60))  # offsets that a seed lacks, as after a compaction
CONFIG = {"index_interval_bytes": 256, "flush_ms": -1, "retention_ms": -1, "segment_bytes": 1 << 20}
_NOW = 1_700_000_000_000
MODES: tuple[dict[str, Any], ...] = (
    {"mode": "r"},
    {"mode": "w"},
    {"mode": "shared"},
    {"mode": "w", "config": LogConfig(recovery_mode="salvage")},
    {"mode": "w", "config": LogConfig(recovery_mode="absolute")},
)


def record(offset: int) -> Record:
    """What stands at an offset. Timestamps go back now and then."""
    key = None if offset % 7 == 3 else b"key-%d" % (offset % 5)
    value = None if offset % 11 == 4 else b"%d." % offset * (1 + offset * 37 % 23)
    headers = (("name", b"%d" % offset), ("none", None)) if offset % 9 == 5 else ()
    return Record(offset, timestamp(offset), key, value, headers)


def timestamp(offset: int) -> int:
    """When the record at an offset was made."""
    return _NOW + 10 * offset - offset * 7919 % 131


def epoch(offset: int) -> int:
    """The leader epoch at an offset."""
    return offset // 32


RECORDS = [record(offset) for offset in range(END)]


def batch(
    first: int, end: int, codec: CompressionType = "none", producer: tuple[int, int, int] | None = None
) -> bytes:
    """A batch of the records [first, end)."""
    of_batch = RECORDS[first:end]
    rules = Rules(TopicConfig(compression_type=codec))
    columns = zip(*of_batch, strict=True)
    _, times, keys, values, headers = columns
    (found,) = encode(values, keys, headers if any(headers) else None, times, rules, 0)
    if producer is not None:
        found = numbered(found, producer)
    return b"".join(found.stamped(first, epoch(first)))


def gappy_batch(first: int, end: int) -> bytes:
    """A batch of [first, end) without GAPS, as compaction leaves it."""
    of_batch = [one for one in RECORDS[first:end] if one.offset not in GAPS]
    if not of_batch:
        return b"".join(encode_empty(end - first, timestamp(first)).stamped(first, epoch(first)))
    columns = Columns(
        keys=pack_bytes([one.key for one in of_batch], "key"),
        values=pack_bytes([one.value for one in of_batch], "value"),
        offsets=narrow(np.array([one.offset - first for one in of_batch])),
        headers=pack_headers([one.headers for one in of_batch]),
    )
    times = np.array([one.timestamp for one in of_batch])
    found = assemble(columns, len(of_batch), times, 0, end - first, delete_horizon=_NOW)
    return b"".join(found.stamped(first, epoch(first)))


def segment_seeds() -> list[bytes]:
    """The segment [LOW, HIGH) in many forms."""
    cuts = list(range(LOW, HIGH + 1, 8))
    pairs = list(itertools.pairwise(cuts))
    singles = [batch(offset, offset + 1) for offset in range(LOW, HIGH)]
    seeds = [b"".join(singles)]
    seeds += [b"".join(batch(*pair, codec) for pair in pairs) for codec in CODECS]
    seeds.append(batch(LOW, HIGH))
    seeds.append(batch(LOW, HIGH, "zstd"))
    seeds.append(
        b"".join(
            (*singles[:4], gappy_batch(44, 51), gappy_batch(51, 55), gappy_batch(55, 64), batch(64, HIGH))
        )
    )
    seeds.append(b"".join(batch(*pair, producer=(77, 1, pair[0] - LOW)) for pair in pairs))
    seeds.append(b"".join(singles[:20]) + batch(60, 70) + b"".join(singles[30:]))
    seeds.append(seeds[0] + bytes(4096))  # with reserved blocks
    return seeds


def check_run(records: Iterable[Record], start: int, end: int) -> None:
    """Raise WrongAnswer unless these are the records [start, end), but for GAPS."""
    expected = start
    for one in records:
        if not start <= one.offset < end or one != RECORDS[one.offset]:
            raise WrongAnswer("another record is served at an offset", one)
        check_missing(expected, one.offset)
        expected = one.offset + 1
    check_missing(expected, end)


def check_missing(start: int, end: int) -> None:
    """Raise WrongAnswer unless the offsets [start, end) may be missing."""
    if not GAPS.issuperset(range(start, end)):
        raise WrongAnswer("offsets are passed over", f"[{start}, {end})")


# --- whole logs --------------------------------------------------------------------------------------


class Logs:
    """Copies of a log, to be damaged and opened: closed cleanly, or killed with so much of it synced."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "log"
        self.templates: list[dict[str, bytes]] = []
        self.durable: list[int] = []
        for synced in (0, 40, 60, END, None):
            template = directory / f"template-{synced}"
            self._build(template, synced)
            self.templates.append(_contents(template))
            self.durable.append(END if synced is None else synced)
            shutil.rmtree(template)
        self._template = -1

    def _build(self, path: Path, synced: int | None) -> None:
        killed = path.with_suffix(".killed")
        with commitlog.open(path) as log:
            partition = log.create_topic(TOPIC, config=CONFIG).partition(0)
            for one in RECORDS:
                if one.offset in BASES[1:]:
                    partition.roll()
                if one.offset == synced:
                    partition.sync()
                partition.append(one.value, key=one.key, headers=one.headers, timestamp=one.timestamp)
            if synced == END:
                partition.sync()
            if synced is not None:
                shutil.copytree(path, killed)
        if synced is not None:
            shutil.rmtree(path)
            os.rename(killed, path)

    def lay_out(self, template: int, name: str, data: bytes) -> Path:
        """Lay out a log, with these bytes in one of its files."""
        shutil.rmtree(self._path, ignore_errors=True)
        for path, contents in (self.templates[template] | {name: data}).items():
            place = self._path / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(contents)
        return self._path


def _contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def segment_name(base_offset: int, suffix: str = ".log") -> str:
    """The path of a segment, or of its index, in a log."""
    return os.path.splitext(segment_path(PARTITION, base_offset))[0] + suffix


def check_log(path: Path, mode: dict[str, Any], durable: int, end: int = END) -> str:
    """Open a log and read everything; what was synced is served as it was, or somebody hears of it."""
    with commitlog.open(path, **mode) as log:
        return _check_partition(log, durable, end)


def _check_partition(log: CommitLog, durable: int, end: int) -> str:
    partition = log.topic(TOPIC).partition(0)
    recovery = getattr(partition, "recovery", None)
    told = {
        offset
        for one in (recovery.salvaged if recovery else ())
        for lost in one.lost
        for offset in range(*lost)
    }
    served, damage = _served(partition.records())
    low, high = partition.start_offset, partition.high_watermark
    for one in served:
        if one.offset >= end or one != RECORDS[one.offset]:
            raise WrongAnswer("another record is served at an offset", one)
    offsets = [one.offset for one in served]
    if offsets != sorted(set(offsets)):
        raise WrongAnswer("records are served twice, or out of order")
    reach = offsets[-1] + 1 if damage and offsets else low if damage else high
    missing = set(range(low, reach)) - set(offsets) - told - GAPS
    if missing:
        raise WrongAnswer("offsets of a log are passed over", sorted(missing))
    lost = set(range(partition.next_offset, durable)) - told
    if low > 0 or lost:
        raise WrongAnswer("synced records are lost", f"[{low}, {partition.next_offset}) of {durable}")
    if damage is None and not told and high == end:
        report = partition.verify()
        if not report.ok and not str(report.damage[0].path):
            raise WrongAnswer("damage that names no file")
    if damage is not None:
        raise damage
    return f"opened, {len(told)} told lost"


def _served(records: Iterator[Record]) -> tuple[list[Record], CommitLogError | None]:
    served: list[Record] = []
    try:
        for one in records:
            served.append(one)
    except CommitLogError as error:
        return served, error
    return served, None
