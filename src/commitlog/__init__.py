"""An embeddable commit log: Kafka's storage engine as a library.

import commitlog

with commitlog.open("data") as log:
    orders = log.create_topic("orders", partitions=2)
    orders.append(b"three apples", key=b"alice")
    for partition in orders.partitions:
        for record in partition.records():
            print(record.offset, record.key, record.value)
"""

from __future__ import annotations

import os
from typing import Literal

from commitlog.batch import RecordBatch
from commitlog.compaction import CompactionReport
from commitlog.config import LogConfig, ProducerConfig, TopicConfig
from commitlog.delivery import RecordFuture, RecordMetadata
from commitlog.errors import (
    BatchTooLargeError,
    BufferFullError,
    ClosedError,
    CommitLogError,
    ConfigError,
    CorruptionError,
    DeliveryTimeoutError,
    DiskFullError,
    ForkedError,
    InvalidRecordError,
    InvalidTopicError,
    LogLockedError,
    MissingDependencyError,
    NotALogError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionFailedError,
    ProducerFencedError,
    ReadOnlyError,
    RecordTooLargeError,
    TopicExistsError,
    TornTailError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedFormatError,
)
from commitlog.housekeeping import Health
from commitlog.index import Index, IndexEntry, OffsetIndex, TimeIndex
from commitlog.latest import Latest
from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.partitioner import Partitioner, register_partitioner
from commitlog.producer import Producer
from commitlog.quota import Quota
from commitlog.record import Record, TopicPartition
from commitlog.recovery import RecoveryReport
from commitlog.repair import Damage, RepairReport, Salvage, VerifyReport
from commitlog.segment import Segment
from commitlog.topic import Topic

__version__ = "0.1.0"


def open(
    path: str | os.PathLike[str],
    *,
    mode: Literal["r", "w"] = "w",
    config: LogConfig | None = None,
    shared: bool = False,
) -> CommitLog:
    """Open a directory of topics.

    In mode "w" the directory is created if need be and locked: one process writes, LogLockedError tells
    the second which. In mode "r" nothing is ever written, but for what quotas count, and any number of
    processes may read along.

    With `shared`, any number of processes that say so write the same log, each append under a file lock.
    """
    return CommitLog.open(path, mode, config, shared=shared)


__all__ = [
    "BatchTooLargeError",
    "BufferFullError",
    "ClosedError",
    "CommitLog",
    "CommitLogError",
    "CompactionReport",
    "ConfigError",
    "CorruptionError",
    "Damage",
    "DeliveryTimeoutError",
    "DiskFullError",
    "ForkedError",
    "Health",
    "Index",
    "IndexEntry",
    "InvalidRecordError",
    "InvalidTopicError",
    "Latest",
    "LogConfig",
    "LogLockedError",
    "MissingDependencyError",
    "NotALogError",
    "OffsetIndex",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "Partition",
    "PartitionFailedError",
    "Partitioner",
    "Producer",
    "ProducerConfig",
    "ProducerFencedError",
    "Quota",
    "ReadOnlyError",
    "Record",
    "RecordBatch",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "RecoveryReport",
    "RepairReport",
    "Salvage",
    "Segment",
    "TimeIndex",
    "Topic",
    "TopicConfig",
    "TopicExistsError",
    "TopicPartition",
    "TornTailError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnsupportedFormatError",
    "VerifyReport",
    "open",
    "register_partitioner",
]
