"""The row of producers: records sent one by one, against what the others make of lists of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from time import time_ns
from typing import ClassVar
from zlib import crc32

import peers
from bench import Bench, best_of
from compare import WRITTEN, checked_load
from data import Batch, Seen
from engine import TOPIC, Commitlog
from engine import WRITTEN as WRITTEN_ONLY
from report import Group, versus_best
from store import Store

import commitlog

TARGET = 1.5


class Produced(Commitlog):
    """A producer that is given each record on its own."""

    partitions: ClassVar[int] = 1
    settings: ClassVar[dict[str, object]] = {}

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._log = commitlog.open(path, mode="r" if readonly else "w")
        if not readonly:
            self._log.create_topic(TOPIC, partitions=self.partitions, config=WRITTEN_ONLY)
            self._producer = self._log.producer(**self.settings)

    def append_batch(self, batch: Batch, *, stamp: bool) -> None:
        assert stamp, "a producer stamps its records"
        send = self._producer.send
        for key, value in zip(batch.keys, batch.values, strict=True):
            send(TOPIC, value, key)

    def flush(self) -> None:
        self._producer.flush()

    def scan_records(self) -> Seen:
        records = size = 0
        for partition in self._log.topic(TOPIC).partitions:
            self._partition = partition
            seen = super().scan_records()
            records, size = records + seen.records, size + seen.value_bytes
        return Seen(records, size, None)


class FourPartitions(Produced):
    name = "commitlog, 4 partitions"
    partitions = 4


class Synced(Produced):
    """Every record is durable at the end: no peer here does that."""

    name = 'commitlog, acks="all"'
    settings: ClassVar[dict[str, object]] = {"acks": "all"}


class PlainFile:
    """What one writes for want of a log: a file with a buffer, and a checksum for each record."""

    name = "buffered file, a CRC each"
    version = ""
    _head = struct.Struct("<IqqHI")  # checksum, offset, timestamp, lengths of key and value
    _checked = struct.Struct("<qqHI")

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        path.mkdir(exist_ok=True)
        self._file = (path / "plain").open("rb" if readonly else "wb", buffering=1 << 20)

    def append_batch(self, batch: Batch, *, stamp: bool) -> None:
        write, pack, pack_crc = self._file.write, self._checked.pack, struct.Struct("<I").pack
        for offset, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True), batch.base_offset):
            content = pack(offset, time_ns() // 1_000_000, len(key), len(value)) + key + value
            write(pack_crc(crc32(content)) + content)
        self._file.flush()

    def scan_records(self) -> Seen:
        data, position, records, size = self._file.read(), 0, 0, 0
        while position < len(data):
            crc, _, _, key_size, value_size = self._head.unpack_from(data, position)
            end = position + self._head.size + key_size + value_size
            if crc32(data[position + 4 : end]) != crc:
                raise AssertionError(f"a checksum is wrong at byte {position}")
            records, size, position = records + 1, size + value_size, end
        return Seen(records, size, None)

    def close(self) -> None:
        self._file.close()


def producer(bench: Bench) -> Iterator[Group]:
    """One record a call and a flush at the end, against lists of 10,000 and one call each."""
    dataset = bench.fixed()
    expected = (dataset.records, dataset.value_bytes)

    def append(store: Store) -> None:
        for batch in dataset.batches:
            store.append_batch(batch, stamp=True)
        if isinstance(store, Produced):
            store.flush()

    stores: list[type[Store]] = [Produced, FourPartitions, Synced, PlainFile, *peers.available()]
    contenders = {
        store.name: lambda store=store: checked_load(bench, store, append, expected) for store in stores
    }
    seconds = best_of(bench.repeats, contenders)
    lines = versus_best(seconds, dataset.records, "rec/s", TARGET)
    title = f"producer.send() one by one, the peers 10k a batch: {dataset.name}, keyed"
    yield Group("producer", title, lines, WRITTEN)
