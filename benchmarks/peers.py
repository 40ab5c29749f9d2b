"""SQLite, LMDB and RocksDB as logs, each used the way someone who knows it would.

All of them keep and give back offset, timestamp, key and value, and all acknowledge at the same level,
*written*: the record survives a kill of the process, not a power cut. Loops stand inside the adapters, so
that no engine pays for a call or a generator of ours. What was tried and was slower is noted beside each.
"""

from __future__ import annotations

import sqlite3
from importlib import metadata
from pathlib import Path
from time import time_ns
from typing import Any, ClassVar

from data import Batch, Seen
from store import HEAD, OFFSET, Store, offsets_of, packed, stamps_of, unpack_records, unpack_values

try:
    import lmdb
except ImportError:
    lmdb = None
try:
    import rocksdict
except ImportError:
    rocksdict = None

MAP_BYTES = 8 << 30


class SQLite:
    """A rowid table in WAL mode: one transaction a batch, one statement a record otherwise.

    Measured and no faster: 1, 16 and 64 KiB pages, a larger cache, rarer checkpoints. The exclusive lock
    keeps other processes out, which is generous: it is worth 40 % of single inserts.
    """

    name = "SQLite WAL"
    version = sqlite3.sqlite_version
    settings: ClassVar[list[str]] = ["locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=OFF"]

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        path.mkdir(exist_ok=True)
        self._db = sqlite3.connect(path / "log.db", isolation_level=None)
        for setting in [f"mmap_size={1 << 30}"] if readonly else self.settings:
            self._db.execute(f"PRAGMA {setting}")
        if not readonly:
            columns = "offset INTEGER PRIMARY KEY, timestamp INTEGER, key BLOB, value BLOB"
            self._db.execute(f"CREATE TABLE IF NOT EXISTS log ({columns})")

    def append_batch(self, batch: Batch, *, stamp: bool) -> None:
        rows = zip(offsets_of(batch), stamps_of(batch, stamp), batch.keys, batch.values, strict=True)
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows)
        self._db.execute("COMMIT")

    def append_each(self, batch: Batch) -> None:
        execute, statement = self._db.execute, "INSERT INTO log VALUES (?, ?, ?, ?)"
        for offset, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True), batch.base_offset):
            execute(statement, (offset, time_ns() // 1_000_000, key, value))

    def next_offset(self) -> int:
        (last,) = self._db.execute("SELECT max(offset) FROM log").fetchone()
        return 0 if last is None else int(last) + 1

    def scan_records(self) -> Seen:
        records = size = 0
        offset = timestamp = key = value = None
        rows = self._db.execute("SELECT offset, timestamp, key, value FROM log ORDER BY offset")
        for offset, timestamp, key, value in rows:  # noqa: B007 - the last ones are checked
            records += 1
            size += len(value)
        return Seen(records, size, (offset, timestamp, key, value))

    def scan_values(self) -> Seen:
        records = size = 0
        value = None
        for (value,) in self._db.execute("SELECT value FROM log ORDER BY offset"):
            records += 1
            size += len(value)
        return Seen(records, size, value)

    def close(self) -> None:
        self._db.close()


class LMDB:
    """Big-endian offsets as keys, appended; no sync. A commit goes through write()."""

    name = "LMDB"
    version = f"{'.'.join(map(str, lmdb.version()))}, py-lmdb {metadata.version('lmdb')}" if lmdb else ""
    writemap = False
    sync = False

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        mapped = self.writemap and not readonly
        self._env: Any = lmdb.open(
            str(path), map_size=MAP_BYTES, sync=self.sync, writemap=mapped, readonly=readonly
        )

    def append_batch(self, batch: Batch, *, stamp: bool) -> None:
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(packed(batch, stamp), append=True)

    def append_each(self, batch: Batch) -> None:
        begin, pack, pack_head = self._env.begin, OFFSET.pack, HEAD.pack
        for offset, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True), batch.base_offset):
            content = pack_head(time_ns() // 1_000_000, len(key)) + key + value
            transaction = begin(write=True)  # measured: 10 % faster than a with statement
            transaction.put(pack(offset), content, append=True)
            transaction.commit()

    def next_offset(self) -> int:
        with self._env.begin() as transaction:
            cursor = transaction.cursor()
            return OFFSET.unpack(cursor.key())[0] + 1 if cursor.last() else 0

    def scan_records(self) -> Seen:
        with self._env.begin() as transaction:  # measured: buffers=True is slower once bytes are made
            return unpack_records(transaction.cursor().iternext())

    def scan_values(self) -> Seen:
        with self._env.begin() as transaction:
            return unpack_values(transaction.cursor().iternext(keys=False))

    def close(self) -> None:
        self._env.close()


class MappedLMDB(LMDB):
    """LMDB that stores into a writable map: a commit makes no system call at all.

    It survives a kill like the others. What it gives up besides: a full disk is a SIGBUS, and a power cut
    may leave no readable database, where the others lose only the end.
    """

    name = "LMDB writemap"
    writemap = True


class RocksDB:
    """Raw bytes, write batches, WAL on and not synced, no compression (the data has nothing to give).

    Measured and no faster: a vector memtable, pipelined or unordered writes, mapped WAL writes, larger
    buffers. Mapped reads and readahead do help the scan.
    """

    name = "RocksDB"
    version = f"rocksdict {metadata.version('rocksdict')}" if rocksdict else ""

    codec = "none"

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        access = rocksdict.AccessType.read_only() if readonly else rocksdict.AccessType.read_write()
        self._db: Any = rocksdict.Rdict(str(path), self._options(), access_type=access)
        self._readonly = readonly

    def _options(self) -> Any:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_compression_type(getattr(rocksdict.DBCompressionType, self.codec)())
        options.set_allow_mmap_reads(True)
        return options

    def append_batch(self, batch: Batch, *, stamp: bool) -> None:
        writes = rocksdict.WriteBatch(raw_mode=True)
        for name, content in packed(batch, stamp):
            writes[name] = content  # measured: a little faster than put()
        self._db.write(writes)

    def append_each(self, batch: Batch) -> None:
        put, pack, pack_head = self._db.put, OFFSET.pack, HEAD.pack
        for offset, (key, value) in enumerate(zip(batch.keys, batch.values, strict=True), batch.base_offset):
            put(pack(offset), pack_head(time_ns() // 1_000_000, len(key)) + key + value)

    def next_offset(self) -> int:
        last = self._db.iter()
        last.seek_to_last()
        return OFFSET.unpack(last.key())[0] + 1 if last.valid() else 0

    def _read_options(self) -> Any:
        options = rocksdict.ReadOptions()
        options.set_readahead_size(4 << 20)
        return options

    def scan_records(self) -> Seen:
        return unpack_records(self._db.items(read_opt=self._read_options()))

    def scan_values(self) -> Seen:
        return unpack_values(self._db.values(read_opt=self._read_options()))

    def close(self) -> None:
        if not self._readonly:
            self._db.flush()
        self._db.close()


def available() -> list[type[Store]]:
    """Return the peers that are installed."""
    return [SQLite, *([LMDB, MappedLMDB] if lmdb else []), *([RocksDB] if rocksdict else [])]
