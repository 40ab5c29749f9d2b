"""LogMetrics: the state and the counters of a log, as plain numbers."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from commitlog.errors import ClosedError, UnknownTopicError
from commitlog.groups.admin import GroupDescription, Groups
from commitlog.maintenance import Health
from commitlog.partitions.counters import PartitionMetrics
from commitlog.partitions.reader import LogReader
from commitlog.partitions.recovery import RecoveryReport
from commitlog.topics.topic_set import Mode, TopicSet
from commitlog.transactions.coordinator import Coordinator, TransactionMetrics

_logger = logging.getLogger("commitlog.groups")


@dataclass(frozen=True, slots=True)
class RecoveryMetrics:
    """What recovery found and did when the log was opened, summed over its partitions."""

    segments_checked: int
    bytes_checked: int
    bytes_cut: int
    segments_dropped: int
    indexes_rebuilt: int
    salvaged: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """A log at one moment. Counters start when this process opens the log, and cover this process only."""

    path: str
    mode: Mode
    partitions: tuple[PartitionMetrics, ...]
    groups: tuple[GroupDescription, ...]
    transactions: TransactionMetrics
    segments_mapped: int
    recovery: RecoveryMetrics
    health: Health

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics as dictionaries, tuples, numbers and strings, for example for json.dumps()."""
        return asdict(self)


def gathered(
    path: str, mode: Mode, topics: TopicSet, groups: Groups, coordinator: Coordinator, health: Health
) -> LogMetrics:
    """Collect the metrics of a log from its parts."""
    return LogMetrics(
        path=path,
        mode=mode,
        partitions=_partition_metrics(topics.readers()),
        groups=_described(groups),
        transactions=coordinator.metrics(),
        segments_mapped=topics.segments_mapped,
        recovery=_recovery_metrics([partition.recovery for partition in topics.partitions()]),
        health=health,
    )


def _described(groups: Groups) -> tuple[GroupDescription, ...]:
    """Return all groups; none if this process has no write access and so cannot take their locks."""
    try:
        return tuple(groups.describe_all())
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            _logger.debug("groups cannot be described without write access: %s", error)
            return ()
        raise


def _partition_metrics(partitions: Iterable[LogReader]) -> tuple[PartitionMetrics, ...]:
    """Return the metrics of all partitions, except where the topic is deleted meanwhile."""
    found = []
    for partition in partitions:
        with suppress(ClosedError, UnknownTopicError):
            found.append(partition.metrics())
    return tuple(found)


def _recovery_metrics(reports: Sequence[RecoveryReport]) -> RecoveryMetrics:
    """Add up recovery reports."""
    return RecoveryMetrics(
        segments_checked=sum(one.segments_checked for one in reports),
        bytes_checked=sum(one.bytes_checked for one in reports),
        bytes_cut=sum(one.bytes_cut for one in reports),
        segments_dropped=sum(one.segments_dropped for one in reports),
        indexes_rebuilt=sum(one.indexes_rebuilt for one in reports),
        salvaged=sum(len(one.salvaged) for one in reports),
        seconds=sum(one.seconds for one in reports),
    )
