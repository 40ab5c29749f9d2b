"""How a log opens the partitions of its topics: to read, to write alone, or to write with other processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal

from commitlog.catalog import Catalog, TopicEntry, typed
from commitlog.config import LogConfig, TopicConfig
from commitlog.handles import HandleCache
from commitlog.lock import writer_is_ready
from commitlog.partition import Partition
from commitlog.read_only import ReadOnlyPartition
from commitlog.reader import PartitionReader
from commitlog.shared import SharedPartition


class Opener:
    """Opens the partitions of one log; `clean` says whether the log was closed when it was last written."""

    def __init__(
        self,
        path: str,
        config: LogConfig,
        catalog: Catalog,
        mode: Literal["r", "w", "shared"],
        wake_flusher: Callable[[], None],
    ) -> None:
        self._path = path
        self._config = config
        self._catalog = catalog
        self._mode = mode
        self._wake_flusher = wake_flusher
        self._cache = HandleCache(config.max_open_segments)
        self.clean = False

    def open(self, entry: TopicEntry, config: TopicConfig, first: int = 0) -> list[PartitionReader]:
        """Open partitions [first, entry.partitions) of a topic, all or none."""
        opened: list[PartitionReader] = []
        try:
            for number in range(first, entry.partitions):
                opened.append(self._open(f"{entry.name}-{number}", config))
        except BaseException as error:
            abandon(opened)
            raise typed(error, self._path) if isinstance(error, OSError) else error from error
        return opened

    def _open(self, name: str, config: TopicConfig) -> PartitionReader:
        path = os.path.join(self._path, name)
        if self._mode == "r":
            return ReadOnlyPartition.open(
                path, name, config, self._cache,
                writer=partial(writer_is_ready, self._path), clean=self._catalog.has_clean_marker,
            )  # fmt: skip
        if self._mode == "shared":
            partition: Partition = SharedPartition.join(path, name, config, self._config, self._cache)
        else:
            partition = Partition.open(path, name, config, self._config, self._cache, clean=self.clean)
        partition.wake_flusher_with(self._wake_flusher)
        return partition

    def forked(self) -> None:
        """In a forked child: what another thread of the parent had locked is free."""
        self._cache.renew_lock()


def abandon(partitions: Iterable[PartitionReader]) -> None:
    """Let partitions go that nobody may write any more, without closing them."""
    for partition in partitions:
        if isinstance(partition, Partition):
            partition.abandon()
