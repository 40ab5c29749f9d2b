"""The row of compaction as a curve: one record for each key, by how many records share their key."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import engine
import peers
from bench import Bench, timed
from compaction import SETTINGS, check
from curves import RECORDS, joined, rounds
from data import Batch, batches_of
from report import Curve
from store import now_ms, offsets_of

SHARES = {"0 %": 1.0, "50 %": 0.5, "90 %": 0.1, "99 %": 0.01}
HEAD = struct.Struct("<Qq")  # offset and timestamp; then the value


@dataclass(frozen=True, slots=True)
class Work:
    """Records of which only the last of each key is wanted."""

    batches: list[Batch]
    records: int
    keys: int


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of the appends, and of the pass after them where there is one."""

    appends: float
    upkeep: float = 0.0


def make_work(records: int, distinct: float) -> Work:
    chance = random.Random(1)
    keys = max(int(records * distinct), 1)
    numbers = [number % keys for number in range(records)]
    chance.shuffle(numbers)
    pool = chance.randbytes(1 << 20)
    values = (pool[(at := chance.randrange((1 << 20) - 90)) : at + 90] for _ in range(records))
    return Work(batches_of((b"%010d" % number for number in numbers), values, records), records, keys)


def commitlog_pass(path: Path, work: Work) -> Taken:
    """Append and compact: it reads all, and writes what stays, in order, with offsets and checksums."""
    log, partition = engine.create(path, **engine.WRITTEN, **SETTINGS)
    with log:
        start = perf_counter()
        for batch in work.batches:
            partition.append_many(batch.values, keys=batch.keys)
        appends = perf_counter() - start
        upkeep = timed(lambda: (partition.roll(), partition.sync(), partition.compact()))
        check(partition)
        expect("commitlog", sum(1 for _ in partition.records()), work.keys)
    return Taken(appends, upkeep)


def rocksdb_pass(path: Path, work: Work) -> Taken:
    """Put by key, flush and compact everything into one level, sorted by key."""
    database = peers.RocksDB(path)._db
    start = perf_counter()
    for batch in work.batches:
        writes = peers.rocksdict.WriteBatch(raw_mode=True)
        for key, content in latest(batch):
            writes[key] = content
        database.write(writes)
    appends = perf_counter() - start
    upkeep = timed(lambda: (database.flush(), database.compact_range(None, None, forced())))
    expect("RocksDB", sum(1 for _ in database.keys()), work.keys)  # noqa: SIM118 - no dictionary
    database.close()
    return Taken(appends, upkeep)


def forced() -> Any:
    """Make RocksDB read and write again even what it could just move to another level."""
    options = peers.rocksdict.CompactOptions()
    options.set_bottommost_level_compaction(peers.rocksdict.BottommostLevelCompaction.force())
    return options


def lmdb_upserts(path: Path, work: Work, writemap: bool = False) -> Taken:
    """Put by key: the old record is replaced at once."""
    environment = peers.lmdb.open(str(path), map_size=peers.MAP_BYTES, sync=False, writemap=writemap)
    start = perf_counter()
    for batch in work.batches:
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(latest(batch))
    appends = perf_counter() - start
    expect("LMDB", environment.stat()["entries"], work.keys)
    environment.close()
    return Taken(appends)


def sqlite_upserts(path: Path, work: Work) -> Taken:
    """Replace by key: the old record is gone at once."""
    database = peers.SQLite(path)._db
    columns = "key BLOB PRIMARY KEY, offset INTEGER, timestamp INTEGER, value BLOB"
    database.execute(f"CREATE TABLE latest ({columns}) WITHOUT ROWID")
    start = perf_counter()
    for batch in work.batches:
        now = now_ms()
        rows = [
            (key, offset, now, value)
            for offset, key, value in zip(offsets_of(batch), batch.keys, batch.values, strict=True)
        ]
        database.execute("BEGIN")
        database.executemany("REPLACE INTO latest VALUES (?, ?, ?, ?)", rows)
        database.execute("COMMIT")
    appends = perf_counter() - start
    expect("SQLite", database.execute("SELECT count(*) FROM latest").fetchone()[0], work.keys)
    database.close()
    return Taken(appends)


def latest(batch: Batch) -> Iterator[tuple[bytes, bytes]]:
    """Pack a batch into pairs by key."""
    now, pack = now_ms(), HEAD.pack
    for offset, key, value in zip(offsets_of(batch), batch.keys, batch.values, strict=True):
        yield key, pack(offset, now) + value


def expect(name: str, found: int, keys: int) -> None:
    if found != keys:
        raise AssertionError(f"{name} kept {found} records of {keys} keys")


def contenders() -> dict[str, Callable[[Path, Work], Taken]]:
    found: dict[str, Callable[[Path, Work], Taken]] = {
        "commitlog": commitlog_pass,
        "SQLite WAL": sqlite_upserts,
    }
    if peers.lmdb:
        found["LMDB"] = lmdb_upserts
        found["LMDB writemap"] = lambda path, work: lmdb_upserts(path, work, writemap=True)
    if peers.rocksdict:
        found["RocksDB"] = rocksdb_pass
    return found


def compaction_curve(bench: Bench) -> Iterator[Curve]:
    """Compact logs with many and with few keys, beside engines that keep only the last record anyway."""
    records = bench.pick(300_000, 60_000)
    passes, sums = [], []
    for distinct in SHARES.values():
        taken = measured(bench, make_work(records, distinct))
        sums.append({name: records / (one.appends + one.upkeep) for name, one in taken.items()})
        passes.append({name: records / one.upkeep for name, one in taken.items() if one.upkeep})
    about = f"{records:,} records of 100 bytes, 10,000 a batch."
    yield curve(
        "one pass of compaction", passes,
        f"{about} commitlog: roll, sync and compact. RocksDB: flush and compact_range; what it overwrites "
        "within a memtable it has dropped before, and it sorts by key where commitlog keeps the order.",
    )  # fmt: skip
    yield curve(
        "append and compact", sums,
        f"{about} Until one record a key is left. SQLite and LMDB replace by key at once, so they have no "
        "pass; only commitlog can still be read in the order of its offsets.",
    )  # fmt: skip


def curve(title: str, points: list[dict[str, float]], note: str) -> Curve:
    label = "share of records that a later one replaces"
    return Curve(
        "compaction_curve", title, label, RECORDS, list(SHARES), joined(points), x_scale="even", note=note
    )


def measured(bench: Bench, work: Work) -> dict[str, Taken]:
    """Take the best of each part, over interleaved rounds."""
    best: dict[str, Taken] = {}
    for _ in range(rounds(bench) - 1 or 1):
        for name, run in contenders().items():
            with bench.scratch("upkeep") as path:
                new = run(path, work)
            old = best.get(name, new)
            best[name] = Taken(min(old.appends, new.appends), min(old.upkeep, new.upkeep))
    return best
