"""Background maintenance of a log: syncs, retention and compaction, each in its own thread."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commitlog.config import LogConfig
from commitlog.errors import ClosedError, CommitLogError
from commitlog.partition import Partition
from commitlog.tasks import Task, TaskHealth

_logger = logging.getLogger("commitlog.compaction")

_IDLE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a log: its background tasks, and the partitions with problems, each with the reason.

    A disk error stopped the failed ones, compaction has set aside the uncleanable ones, and damage keeps
    retention from removing segments of the damaged ones.
    """

    tasks: tuple[TaskHealth, ...]
    failed_partitions: tuple[tuple[str, str], ...]
    uncleanable_partitions: tuple[tuple[str, str], ...] = ()
    damaged_partitions: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        well = all(task.alive and task.error is None for task in self.tasks)
        return well and not (self.failed_partitions or self.uncleanable_partitions or self.damaged_partitions)


class Maintenance:
    """Syncs, trims and compacts the partitions of a log according to their settings."""

    def __init__(
        self,
        partitions: Callable[[], list[Partition]],
        config: LogConfig,
        sweep: Callable[[], float] = lambda: _IDLE_SECONDS,
    ) -> None:
        """`sweep` ends transactions that timed out, and returns the seconds until it is due again."""
        self._partitions = partitions
        self._config = config
        self._synced_at: dict[str, float] = {}
        self._retained_at = time.monotonic()
        self._started = self._stopping = False
        self._flusher = Task("flusher", self.sync_due)
        self._sweeper = Task("transactions", sweep)
        cleaner = (Task("cleaner", self.clean),) if config.cleaner_enable else ()
        self._tasks = (self._flusher, Task("retention", self.tidy), self._sweeper, *cleaner)

    def start(self) -> None:
        """Start the threads."""
        self._started = True
        for task in self._tasks:
            task.start()

    def wake(self) -> None:
        """Run the flusher now: a sync is due, or settings have changed."""
        self._flusher.wake()

    def wake_sweeper(self) -> None:
        """Look after transactions now: one has begun, or its time is over."""
        if self._started:
            self._sweeper.wake()

    def stop(self) -> None:
        """Stop the threads; a running compaction pass is cancelled."""
        self._stopping = True
        for partition in self._partitions():
            partition.end_compaction()
        for task in self._tasks:
            task.stop()

    def health(self) -> tuple[TaskHealth, ...]:
        """Return the health of the threads, nothing before they are started."""
        return tuple(task.health() for task in self._tasks) if self._started else ()

    def sync_due(self) -> float:
        """Sync partitions that flush_ms or flush_messages make due; returns the seconds to the next run."""
        pause = _IDLE_SECONDS
        for partition in self._partitions():
            config, now = partition.config, time.monotonic()
            waiting = partition.next_offset - partition.durable_offset
            due_in = _IDLE_SECONDS
            if config.flush_ms != -1:
                due_in = self._synced_at.get(partition.name, 0.0) + config.flush_ms / 1000 - now
            if due_in <= 0 or 0 < config.flush_messages <= waiting:
                self._synced_at[partition.name] = now
                due_in = config.flush_ms / 1000 if config.flush_ms != -1 else _IDLE_SECONDS
                if waiting and partition.failure is None:
                    with contextlib.suppress(ClosedError):  # the topic was deleted meanwhile
                        partition.sync()
            pause = min(pause, due_in)
        return pause

    def tidy(self) -> float:
        """Unlink removed files, check active segments, apply retention; returns seconds to the next run."""
        now, every = time.monotonic(), self._config.retention_check_ms / 1000
        for partition in self._partitions():
            partition.empty_trash(now)
            if partition.failure is None:
                with contextlib.suppress(CommitLogError):  # the check stops the partition, or it is closed
                    partition.check_linked()
        if now - self._retained_at >= every:
            self._retained_at = now
            self.apply_retention(time.time_ns() // 1_000_000)
        return min(1.0, every)

    def apply_retention(self, now_ms: int) -> int:
        """Remove the segments that have expired; returns how many."""
        removed = 0
        for partition in self._partitions():
            if partition.failure is None:
                with contextlib.suppress(ClosedError):  # the topic was deleted meanwhile
                    removed += partition.apply_retention(now_ms)
        return removed

    def clean(self) -> float:
        """Compact the partitions that are due; returns the seconds to the next run."""
        now_ms = time.time_ns() // 1_000_000
        again = clean_what_is_due(self._partitions, now_ms, lambda: self._stopping)
        return 0.0 if again else self._config.cleaner_backoff_ms / 1000


def dirtiest(partitions: Sequence[Partition], now_ms: int) -> Partition | None:
    """Return the partition with the highest dirty ratio among those that are due; None if none is.

    A partition whose last pass failed (other than for a full disk) is set aside until a manual pass succeeds
    or the log is reopened.
    """
    found: tuple[float, Partition] | None = None
    for partition in partitions:
        if not partition.config.compacts or partition.is_set_aside or partition.failure:
            continue
        ratio = _ratio_if_due(partition, now_ms)
        if ratio is not None and (found is None or ratio > found[0]):
            found = ratio, partition
    return None if found is None else found[1]


def _ratio_if_due(partition: Partition, now_ms: int) -> float | None:
    try:
        work = partition.cleanable(now_ms)
        return work.dirty_ratio if work.is_due(partition.config, now_ms) else None
    except FileNotFoundError:  # trimmed meanwhile, or lost: a pass finds out
        return 1.0
    except Exception as problem:
        _logger.exception("%s cannot be compacted; it is set aside", partition.name)
        partition.set_aside(problem)
        return None


def clean_what_is_due(
    partitions: Callable[[], Sequence[Partition]], now_ms: int, stopping: Callable[[], bool]
) -> bool:
    """Run one pass over each partition that is due, dirtiest first; returns whether one is due again."""
    passed: set[Partition] = set()
    while not stopping():
        due = dirtiest([one for one in partitions() if one not in passed], now_ms)
        if due is None:
            again = [one for one in partitions() if one in passed and one.compaction_error is None]
            return dirtiest(again, now_ms) is not None
        passed.add(due)
        try:
            due.compact(now_ms)
        except ClosedError:  # the topic was deleted meanwhile, or the log is closing
            continue
        except Exception:  # also in the partition's compaction_error
            _logger.exception("compaction of %s failed; it is set aside", due.name)
    return False
