"""The row of many partitions: batches in turn to each, in one log or one database."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import cycle, repeat
from pathlib import Path
from typing import Any, Protocol

import data
import engine
import peers
from bench import Bench, best_of, timed
from curves import RECORDS, STAMPED, joined, rounds
from data import Batch
from report import Curve
from store import contents_of, offsets_of, packed, stamps_of

import commitlog

PARTITIONS = [1, 4, 16, 64]
BATCH_RECORDS = 1_000
NAME = struct.Struct(">HQ")  # partition, offset


class Partitions(Protocol):
    """An engine with several partitions."""

    def append(self, partition: int, batch: Batch) -> None: ...

    def records(self) -> int: ...

    def close(self) -> None: ...


class Commitlog:
    """A topic."""

    def __init__(self, path: Path, partitions: int) -> None:
        self._log = commitlog.open(path)
        config = commitlog.TopicConfig(**engine.WRITTEN)
        topic = self._log.create_topic(engine.TOPIC, partitions, config)
        self._partitions = [topic.partition(number) for number in range(partitions)]

    def append(self, partition: int, batch: Batch) -> None:
        self._partitions[partition].append_many(batch.values, keys=batch.keys)

    def records(self) -> int:
        return sum(sum(1 for _ in partition.records()) for partition in self._partitions)

    def close(self) -> None:
        self._log.close()


class SQLite(peers.SQLite):
    """A table each in one database, which has one WAL."""

    def __init__(self, path: Path, partitions: int) -> None:
        super().__init__(path)
        self._partitions = partitions
        columns = "offset INTEGER PRIMARY KEY, timestamp INTEGER, key BLOB, value BLOB"
        for number in range(partitions):
            self._db.execute(f"CREATE TABLE log{number} ({columns})")

    def append(self, partition: int, batch: Batch) -> None:
        rows = zip(offsets_of(batch), stamps_of(batch, True), batch.keys, batch.values, strict=True)
        self._db.execute("BEGIN")
        self._db.executemany(f"INSERT INTO log{partition} VALUES (?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def records(self) -> int:
        counts = [f"SELECT count(value) FROM log{number}" for number in range(self._partitions)]
        return sum(self._db.execute(count).fetchone()[0] for count in counts)


class LMDB:
    """A named database each in one environment."""

    writemap = False

    def __init__(self, path: Path, partitions: int) -> None:
        self._env: Any = peers.lmdb.open(
            str(path), map_size=peers.MAP_BYTES, sync=False, writemap=self.writemap, max_dbs=partitions
        )
        self._databases = [self._env.open_db(b"%d" % number) for number in range(partitions)]

    def append(self, partition: int, batch: Batch) -> None:
        database = self._databases[partition]
        with self._env.begin(write=True, db=database) as transaction:
            transaction.cursor().putmulti(packed(batch, True), append=True)

    def records(self) -> int:
        with self._env.begin() as transaction:
            return sum(sum(1 for _ in transaction.cursor(database)) for database in self._databases)

    def close(self) -> None:
        self._env.close()


class MappedLMDB(LMDB):
    """The same with a writable map."""

    writemap = True


class RocksDB(peers.RocksDB):
    """The partition before the offset in each key: one memtable, where column families have one each."""

    def __init__(self, path: Path, partitions: int) -> None:
        super().__init__(path)

    def append(self, partition: int, batch: Batch) -> None:
        writes = peers.rocksdict.WriteBatch(raw_mode=True)
        names = map(NAME.pack, repeat(partition), offsets_of(batch))
        for name, content in zip(names, contents_of(batch, True), strict=True):
            writes[name] = content
        self._db.write(writes)

    def records(self) -> int:
        return sum(1 for _ in self._db.keys())  # noqa: SIM118 - no dictionary


ENGINES: dict[str, type[Partitions]] = {
    "commitlog": Commitlog,
    "SQLite WAL": SQLite,
    **({"LMDB": LMDB, "LMDB writemap": MappedLMDB} if peers.lmdb else {}),
    **({"RocksDB": RocksDB} if peers.rocksdict else {}),
}


def by_partitions(bench: Bench) -> Iterator[Curve]:
    """Append batches of 1,000 records to one partition after another."""
    dataset = data.make("partitions", bench.pick(300_000, 64_000), 90, 90, batch_records=BATCH_RECORDS)
    points = []
    for partitions in PARTITIONS:
        batches = [
            batch._replace(base_offset=number // partitions * BATCH_RECORDS)
            for number, batch in enumerate(dataset.batches)
        ]
        contenders = {
            name: lambda one=one, partitions=partitions, batches=batches: append_in_turn(
                bench, one, partitions, batches
            )
            for name, one in ENGINES.items()
        }
        seconds = best_of(rounds(bench), contenders)
        points.append({name: dataset.records / taken for name, taken in seconds.items()})
    note = (
        f"90-byte values, 1,000 a batch, {STAMPED} SQLite has a table for each partition, LMDB a named "
        "database, RocksDB a prefix of the key."
    )
    title = "append to many partitions in turn"
    yield Curve("by_partitions", title, "partitions", RECORDS, PARTITIONS, joined(points), note=note)


def append_in_turn(bench: Bench, opening: type[Partitions], partitions: int, batches: list[Batch]) -> float:
    """Time the appends and count the records afterwards."""
    with bench.scratch("partitions") as path:
        opened = opening(path, partitions)
        work = list(zip(cycle(range(partitions)), batches, strict=False))

        def append() -> None:
            for partition, batch in work:
                opened.append(partition, batch)

        seconds = timed(append)
        found, expected = opened.records(), sum(len(batch.values) for batch in batches)
        opened.close()
    if found != expected:
        raise AssertionError(f"{opening.__name__} kept {found} of {expected} records")
    return seconds
