"""Which partition is compacted next, in the background: the dirtiest that is due."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from commitlog.errors import ClosedError
from commitlog.partitions.partition import Partition

_logger = logging.getLogger("commitlog.compaction")


def dirtiest(partitions: Sequence[Partition], now_ms: int) -> Partition | None:
    """Return the partition with the most to gain, of those that are due; None if none is.

    One whose last pass failed, but for a full disk, is set aside until a pass called by hand succeeds, or the
    log is reopened.
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
    except FileNotFoundError:  # trimmed meanwhile, or lost: a pass will tell
        return 1.0
    except Exception as problem:
        _logger.exception("%s cannot be compacted; it is set aside", partition.name)
        partition.set_aside(problem)
        return None


def clean_what_is_due(
    partitions: Callable[[], Sequence[Partition]], now_ms: int, stopping: Callable[[], bool]
) -> bool:
    """Run one pass over each partition that is due, the dirtiest first; returns whether some is due again."""
    passed: set[Partition] = set()
    while not stopping():
        due = dirtiest([one for one in partitions() if one not in passed], now_ms)
        if due is None:
            again = [one for one in partitions() if one in passed and one.compaction_error is None]
            return dirtiest(again, now_ms) is not None
        passed.add(due)
        try:
            due.compact(now_ms)
        except ClosedError:  # a topic deleted meanwhile, or the log closing
            continue
        except Exception:  # the partition tells it: compaction_error
            _logger.exception("compaction of %s failed; it is set aside", due.name)
    return False
