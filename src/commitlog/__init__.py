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

import logging
import os
import typing
from typing import Literal

from commitlog.batches.batch import RecordBatch
from commitlog.batches.staged import StagedFile
from commitlog.clients.consumer import Consumer
from commitlog.clients.positions import OffsetAndTimestamp
from commitlog.clients.producer import Producer
from commitlog.clients.producer_batch import RecordFuture, RecordMetadata
from commitlog.clients.quotas import Quota
from commitlog.clients.session import RebalanceListener
from commitlog.compaction import CompactionReport
from commitlog.config import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from commitlog.errors import (
    AssignmentError,
    AuthenticationError,
    AuthorizationError,
    BatchTooLargeError,
    BufferFullError,
    ClosedError,
    ClusterTooLargeError,
    CommitFailedError,
    CommitLogError,
    ConfigError,
    ConnectionFailedError,
    CorruptionError,
    DataLossError,
    DeliveryTimeoutError,
    DeserializationError,
    DiskFullError,
    FencedEpochError,
    FencedMemberError,
    ForkedError,
    FrameTooLargeError,
    GroupNotEmptyError,
    InconsistentGroupError,
    InvalidRecordError,
    InvalidReplicasError,
    InvalidTopicError,
    IsrRefusedError,
    LeadershipLostError,
    LogLockedError,
    MissingDependencyError,
    NoControllerError,
    NoOffsetError,
    NotALogError,
    NotAssignedError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotJoinedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    PartitionFailedError,
    PathNotMountedError,
    ProducerFencedError,
    ProtocolError,
    ReadOnlyError,
    RebalanceInProgressError,
    RecordTooLargeError,
    ReplicationTimeoutError,
    StaleControllerError,
    StaleNodeError,
    TooManyOpenFilesError,
    TopicExistsError,
    TopicReplacedError,
    TornTailError,
    UnfinishedPublicationError,
    UnknownEpochError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedFormatError,
    WrongClusterError,
    WrongLogError,
)
from commitlog.groups.admin import GroupDescription, MemberDescription, PartitionDescription
from commitlog.groups.assignors import Subscription, register_assignor
from commitlog.groups.member import GroupMetadata
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.index import Index, IndexEntry, OffsetIndex, TimeIndex
from commitlog.log import CommitLog
from commitlog.maintenance import Health
from commitlog.metrics import LogMetrics, RecoveryMetrics
from commitlog.partition import Partition
from commitlog.partitions.counters import CompactionMetrics, PartitionMetrics, SyncMetrics, WriteMetrics
from commitlog.partitions.latest import Latest
from commitlog.partitions.recovery import RecoveryReport
from commitlog.publishing.staging import StagingWriter
from commitlog.record import ConsumerRecord, Record, TopicPartition
from commitlog.repair import Damage, RepairReport, Salvage, VerifyReport
from commitlog.segment import Segment
from commitlog.topic import Topic
from commitlog.topics.partitioner import Partitioner, register_partitioner

if typing.TYPE_CHECKING:
    from commitlog.progress import Progress
    from commitlog.replication.remote.remote_log import RemoteLog
    from commitlog.replication.transports.tls import TlsConfig

__version__ = "0.1.0"

logging.getLogger("commitlog").addHandler(logging.NullHandler())  # quiet, unless the application asks


def open(
    path: str | os.PathLike[str],
    *,
    mode: Literal["r", "w", "shared"] = "w",
    config: LogConfig | None = None,
    progress: Progress | None = None,
) -> CommitLog:
    """Open a directory of topics.

    In mode "w" the directory is created if need be and locked: one process writes, and LogLockedError names
    it to the second. In mode "shared" any number of processes write the log, all in that mode; each append
    takes a file lock. In mode "r" nothing is written but the offsets of consumer groups and what quotas
    count, and any number of processes may read along.

    A log that was not closed is checked where it may be torn, in mode "r" when a topic is asked for:
    `progress` is then called with the bytes done, and the bytes in all as far as they are known.
    """
    return CommitLog.open(path, mode, config, progress=progress)


def connect(
    addresses: str,
    *,
    tls: TlsConfig | None = None,
    secret: bytes | None = None,
    timeout_ms: int = 30_000,
    read_from: Literal["leader", "any"] = "leader",
) -> RemoteLog:
    """Connect to a cluster: topics and partitions that other machines have, with the methods of local ones.

    `addresses` is "host:port" of a node, or of several with commas between them; the others are learned
    from them. `tls` is a certificate of the nodes' authority. `secret` is the nodes' client_secret; their own
    secret works as well, but lets this program do whatever a node may. Whatever is asked is tried again until
    timeout_ms is over, also when another node leads meanwhile. With read_from="any" a follower may be read:
    one of `addresses`, if it has the partition.
    """
    from commitlog.replication.remote.remote_log import RemoteLog  # sockets are imported when they are wanted

    return RemoteLog.open(addresses, tls=tls, secret=secret, timeout_ms=timeout_ms, read_from=read_from)


__all__ = [
    "AssignmentError",
    "AuthenticationError",
    "AuthorizationError",
    "BatchTooLargeError",
    "BufferFullError",
    "ClosedError",
    "ClusterTooLargeError",
    "CommitFailedError",
    "CommitLog",
    "CommitLogError",
    "CompactionMetrics",
    "CompactionReport",
    "ConfigError",
    "ConnectionFailedError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "CorruptionError",
    "Damage",
    "DataLossError",
    "DeliveryTimeoutError",
    "DeserializationError",
    "DiskFullError",
    "FencedEpochError",
    "FencedMemberError",
    "ForkedError",
    "FrameTooLargeError",
    "GroupDescription",
    "GroupMetadata",
    "GroupNotEmptyError",
    "Health",
    "InconsistentGroupError",
    "Index",
    "IndexEntry",
    "InvalidRecordError",
    "InvalidReplicasError",
    "InvalidTopicError",
    "IsrRefusedError",
    "Latest",
    "LeadershipLostError",
    "LogConfig",
    "LogLockedError",
    "LogMetrics",
    "MemberDescription",
    "MissingDependencyError",
    "NoControllerError",
    "NoOffsetError",
    "NotALogError",
    "NotAssignedError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotJoinedError",
    "NotLeaderError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetIndex",
    "OffsetOutOfRangeError",
    "OutOfOrderSequenceError",
    "Partition",
    "PartitionDescription",
    "PartitionFailedError",
    "PartitionMetrics",
    "Partitioner",
    "PathNotMountedError",
    "Producer",
    "ProducerConfig",
    "ProducerFencedError",
    "ProtocolError",
    "Quota",
    "ReadOnlyError",
    "RebalanceInProgressError",
    "RebalanceListener",
    "Record",
    "RecordBatch",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "RecoveryMetrics",
    "RecoveryReport",
    "RepairReport",
    "ReplicationTimeoutError",
    "Salvage",
    "Segment",
    "StagedFile",
    "StagingWriter",
    "StaleControllerError",
    "StaleNodeError",
    "Subscription",
    "SyncMetrics",
    "TimeIndex",
    "TooManyOpenFilesError",
    "Topic",
    "TopicConfig",
    "TopicExistsError",
    "TopicPartition",
    "TopicReplacedError",
    "TornTailError",
    "UnfinishedPublicationError",
    "UnknownEpochError",
    "UnknownGroupError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "UnsupportedFormatError",
    "VerifyReport",
    "WriteMetrics",
    "WrongClusterError",
    "WrongLogError",
    "connect",
    "open",
    "register_assignor",
    "register_partitioner",
]
