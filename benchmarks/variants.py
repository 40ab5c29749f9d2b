"""The same engines in other settings: synced, compressed, and with nothing checkpointed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import peers
from data import Batch
from engine import WRITTEN, Commitlog
from peers import LMDB, MappedLMDB, RocksDB, SQLite
from store import Store

ENGINES: list[type[Store]] = [Commitlog, *peers.available()]

# --- every append survives a power cut -----------------------------------------------------------


class SyncedCommitlog(Commitlog):
    """Every append waits for fdatasync."""

    def append_each(self, batch: Batch) -> None:
        append = self._partition.append
        for key, value in zip(batch.keys, batch.values, strict=True):
            append(value, key=key, sync=True)


class SyncedSQLite(SQLite):
    """Every commit syncs the WAL."""

    settings: ClassVar[list[str]] = ["locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"]


class SyncedLMDB(LMDB):
    """Every commit syncs the pages, then writes the meta page through."""

    sync = True


class SyncedMappedLMDB(MappedLMDB):
    """Every commit is an msync."""

    sync = True


class SyncedRocksDB(RocksDB):
    """Every put syncs the WAL."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        super().__init__(path, readonly=readonly)
        options = peers.rocksdict.WriteOptions()
        options.sync = True
        self._db.set_write_options(options)


_SYNCED: dict[str, type[Store]] = {
    one.name: one for one in (SyncedCommitlog, SyncedSQLite, SyncedLMDB, SyncedMappedLMDB, SyncedRocksDB)
}
SYNCED: list[type[Store]] = [_SYNCED[engine.name] for engine in ENGINES]

# --- everything is still in the log that a crash makes them replay -------------------------------


class UncheckpointedSQLite(SQLite):
    """The WAL is never copied into the database, as under a reader that stays."""

    name = "SQLite WAL, no checkpoints"
    settings: ClassVar[list[str]] = [*SQLite.settings, "wal_autocheckpoint=0"]


class UnflushedRocksDB(RocksDB):
    """One memtable takes everything."""

    name = "RocksDB, one memtable"

    def _options(self) -> Any:
        options = super()._options()
        options.set_write_buffer_size(4 << 30)
        return options


_REPLAYING: dict[str, type[Store]] = {"SQLite WAL": UncheckpointedSQLite, "RocksDB": UnflushedRocksDB}
RECOVERING: list[type[Store]] = [
    *ENGINES, *(_REPLAYING[engine.name] for engine in ENGINES if engine.name in _REPLAYING)
]  # fmt: skip
BY_NAME = {engine.name: engine for engine in RECOVERING}

# --- compressed ----------------------------------------------------------------------------------

CODECS = ["none", "lz4", "snappy", "zstd", "gzip"]


def compressed(codec: str) -> list[type[Store]]:
    """Return the engines that can compress with this codec; all of them for "none".

    RocksDB has no gzip here: with its zlib, this build leaves everything as it was, and says nothing.
    """
    if codec == "none":
        return [engine for engine in ENGINES if engine is not MappedLMDB]  # which leaves the same file

    class CompressedCommitlog(Commitlog):
        settings: ClassVar[dict[str, object]] = WRITTEN | {"compression_type": codec}

    class CompressedRocksDB(RocksDB):
        pass

    CompressedRocksDB.codec = codec
    return [CompressedCommitlog, *([CompressedRocksDB] if peers.rocksdict and codec != "gzip" else [])]
