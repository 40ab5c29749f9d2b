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
from commitlog.config import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from commitlog.consumer import Consumer
from commitlog.delivery import RecordFuture, RecordMetadata
from commitlog.errors import (
    AssignmentError,
    BatchTooLargeError,
    BufferFullError,
    ClosedError,
    CommitFailedError,
    CommitLogError,
    ConfigError,
    CorruptionError,
    DataLossError,
    DeliveryTimeoutError,
    DeserializationError,
    DiskFullError,
    FencedMemberError,
    ForkedError,
    GroupNotEmptyError,
    InconsistentGroupError,
    InvalidRecordError,
    InvalidTopicError,
    LogLockedError,
    MissingDependencyError,
    NoOffsetError,
    NotALogError,
    NotAssignedError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionFailedError,
    PathNotMountedError,
    ProducerFencedError,
    ReadOnlyError,
    RebalanceInProgressError,
    RecordTooLargeError,
    TopicExistsError,
    TornTailError,
    UnfinishedPublicationError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedFormatError,
)
from commitlog.groups.admin import GroupDescription, MemberDescription, PartitionDescription
from commitlog.groups.assignors import Subscription, register_assignor
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.groups.session import RebalanceListener
from commitlog.housekeeping import Health
from commitlog.index import Index, IndexEntry, OffsetIndex, TimeIndex
from commitlog.latest import Latest
from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.partitioner import Partitioner, register_partitioner
from commitlog.positions import OffsetAndTimestamp
from commitlog.producer import Producer
from commitlog.quota import Quota
from commitlog.record import ConsumerRecord, Record, TopicPartition
from commitlog.recovery import RecoveryReport
from commitlog.repair import Damage, RepairReport, Salvage, VerifyReport
from commitlog.segment import Segment
from commitlog.staged import StagedFile
from commitlog.staging import StagingWriter
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
    the second which. In mode "r" nothing is written but the offsets of consumer groups and what quotas
    count, and any number of processes may read along.

    With `shared`, any number of processes that say so write the same log, each append under a file lock.
    """
    return CommitLog.open(path, mode, config, shared=shared)


__all__ = [
    "AssignmentError",
    "BatchTooLargeError",
    "BufferFullError",
    "ClosedError",
    "CommitFailedError",
    "CommitLog",
    "CommitLogError",
    "CompactionReport",
    "ConfigError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "CorruptionError",
    "Damage",
    "DataLossError",
    "DeliveryTimeoutError",
    "DeserializationError",
    "DiskFullError",
    "FencedMemberError",
    "ForkedError",
    "GroupDescription",
    "GroupMetadata",
    "GroupNotEmptyError",
    "Health",
    "InconsistentGroupError",
    "Index",
    "IndexEntry",
    "InvalidRecordError",
    "InvalidTopicError",
    "Latest",
    "LogConfig",
    "LogLockedError",
    "MemberDescription",
    "MissingDependencyError",
    "NoOffsetError",
    "NotALogError",
    "NotAssignedError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetIndex",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "Partition",
    "PartitionDescription",
    "PartitionFailedError",
    "Partitioner",
    "PathNotMountedError",
    "Producer",
    "ProducerConfig",
    "ProducerFencedError",
    "Quota",
    "ReadOnlyError",
    "RebalanceInProgressError",
    "RebalanceListener",
    "Record",
    "RecordBatch",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "RecoveryReport",
    "RepairReport",
    "Salvage",
    "Segment",
    "StagedFile",
    "StagingWriter",
    "Subscription",
    "TimeIndex",
    "Topic",
    "TopicConfig",
    "TopicExistsError",
    "TopicPartition",
    "TornTailError",
    "UnfinishedPublicationError",
    "UnknownGroupError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnsupportedFormatError",
    "VerifyReport",
    "open",
    "register_assignor",
    "register_partitioner",
]
