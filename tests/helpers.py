"""What several tests need and pytest cannot inject."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

from commitlog import (
    CommitLog,
    DiskFullError,
    Partition,
    Record,
    RecordBatch,
    StagedFile,
    TopicConfig,
    files,
    segment_writer,
)
from commitlog.batches.columns import CONSTANT, DTYPES, U32, IntColumn, narrow, pack_bytes
from commitlog.batches.encode import NO_STRINGS, Columns, EncodedBatch, Rules, assemble, encode
from commitlog.config import CompressionType
from commitlog.partitions import adopter
from commitlog.segment import segment_path

CODECS: tuple[CompressionType, ...] = ("none", "zstd", "gzip", "lz4", "snappy")


def contents(partition: Any) -> list[Record]:
    """Everything that can be read."""
    return list(partition.records())


def tree(directory: str | os.PathLike[str]) -> dict[str, int]:
    """Every file below a directory and its size: what "leaves nothing behind" is measured by."""
    found = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, directory)] = os.path.getsize(path)
    return found


def names(directory: str | os.PathLike[str], suffix: str = "") -> list[str]:
    """The sorted names in a directory."""
    return sorted(name for name in os.listdir(directory) if name.endswith(suffix))


def copy_as_if_killed(log: CommitLog, target: str | os.PathLike[str]) -> Path:
    """Copy the files of an open log: what a process killed at this moment would leave behind."""
    copy_linked(log.path, target)
    return Path(target)


def copy_linked(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy a directory; a file with two names in it is one file in the copy, too."""
    copies: dict[int, str] = {}

    def copy(one: str, other: str) -> None:
        known = copies.setdefault(os.stat(one).st_ino, other)
        if known == other:
            shutil.copy2(one, other)
        else:
            os.link(known, other)

    shutil.copytree(source, target, copy_function=copy)


@contextmanager
def full_after(count: int, error: BaseException | None = None) -> Iterator[None]:
    """Let the disk be full, or something else happen, after so many steps of publications: files adopted,
    and chunks of others.
    """
    left, real_append, real_adopt = iter(range(count)), Partition.append_published, Partition.adopt

    def step(partition: Partition) -> None:
        if next(left, None) is None:
            raise error or DiskFullError(partition.path, "no room")

    def append(self: Partition, batches: Any) -> range:
        step(self)
        return real_append(self, batches)

    def adopt(self: Partition, path: str, size_bytes: int, batches: Any) -> range | None:
        if adopter._is_worth_it(size_bytes, batches, self.config):
            step(self)
        return real_adopt(self, path, size_bytes, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Partition, "append_published", append)
        patch.setattr(Partition, "adopt", adopt)
        yield


def wait_until(condition: Callable[[], Any], seconds: float = 30.0, every: float = 0.001) -> None:
    """Wait for a condition, checking it every few moments; fail if it does not come true."""
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, "waited in vain"
        sleep(every)


def map_tails(patch: pytest.MonkeyPatch, least_bytes: int = 64 * 1024) -> None:
    """Store single records into a mapped tail soon, wherever the tests run."""
    patch.setattr(segment_writer, "_SINGLES", 1)
    patch.setattr(segment_writer, "_LEAST_TAIL_BYTES", least_bytes)
    patch.setattr(files, "_file_system", lambda device: "ext4")
    patch.setattr(files, "_IN_ORDER", {os.uname().machine})


# --- batches and segments without a partition ----------------------------------------------------


def encoded(
    values: Sequence[Any],
    *,
    keys: Sequence[Any] | None = None,
    headers: Sequence[Any] | None = None,
    timestamps: Iterable[int] | None = None,
    config: TopicConfig | None = None,
    now_ms: int = 1_000,
) -> EncodedBatch:
    """Encode one batch."""
    (batch,) = encode(values, keys, headers, timestamps, Rules(config or TopicConfig()), now_ms)
    return batch


def gappy(deltas: Sequence[int], span: int, timestamps: Any = 1_000) -> EncodedBatch:
    """Encode a batch as compaction leaves it: records at some of the offsets it spans."""
    offsets = narrow(np.array(deltas, np.int64))
    if offsets.form == CONSTANT and any(deltas):  # constant would mean contiguous
        offsets = IntColumn(U32, 0, np.array(deltas, DTYPES[U32]).tobytes())
    values = pack_bytes([b"%d" % delta for delta in deltas], "value")
    return assemble(Columns(NO_STRINGS, values, offsets=offsets), len(deltas), timestamps, 0, span)


def stored(batch: EncodedBatch, base_offset: int = 0, leader_epoch: int = 0) -> bytes:
    """The bytes of a batch on disk."""
    return b"".join(bytes(piece) for piece in batch.stamped(base_offset, leader_epoch))


def decoded(batch: EncodedBatch, base_offset: int = 0) -> RecordBatch:
    """A batch as it is read back."""
    return RecordBatch.decode(stored(batch, base_offset))


def write_segment(directory: Path, batches: Sequence[EncodedBatch], base_offset: int = 0) -> str:
    """Write a .log file without indexes; returns its path."""
    path = segment_path(str(directory), base_offset)
    with open(path, "wb") as file:
        for batch in batches:
            file.write(stored(batch, base_offset))
            base_offset += batch.span
    return path


def flip(path: str | os.PathLike[str], position: int, mask: int = 0xFF) -> None:
    """Damage one byte of a file."""
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def fill(partition: Partition, count: int, size: int = 20) -> list[Record]:
    """Append `count` single records with growing timestamps; returns them."""
    first = partition.next_offset
    for number in range(first, first + count):
        partition.append(b"%0*d" % (size, number), key=b"k%d" % (number % 3), timestamp=1_000 + number)
    return list(partition.records(first))


def stage(
    log: CommitLog,
    topic: str,
    partition: int,
    values: Sequence[bytes],
    claim: tuple[str, int] | None = None,
    **columns: Any,
) -> StagedFile:
    """Stage one batch, for an epoch if `claim` names it; pyarrow is an extra, so it is imported here."""
    import pyarrow as pa

    given = {} if claim is None else {"txn_id": claim[0], "epoch": claim[1]}
    with log.stage(topic, partition, **given) as writer:  # type: ignore[arg-type]
        writer.append(pa.table({"value": pa.array(values, pa.binary()), **columns}))
        return writer.finish()


class Clock:
    """A clock of nanoseconds that stands still unless it is moved."""

    START = 10**15  # it has run for a while

    def __init__(self) -> None:
        self.now = self.START

    def __call__(self) -> int:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += math.ceil(seconds * 1e9)
