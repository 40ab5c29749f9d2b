"""An embeddable commit log: Kafka's storage engine as a library.

import commitlog

with commitlog.open("data") as log:
    orders = log.create_topic("orders", partitions=2, exists_ok=True)
    orders.append(b"three apples", key=b"alice")
    for record in orders.records():
        print(record.partition, record.offset, record.key, record.value)
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
    ClosedError,
    CommitLogError,
    ConfigError,
    CorruptionError,
    DiskFullError,
    InvalidRecordError,
    LogLockedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    PartitionFailedError,
    ReadOnlyError,
    RecordTooLargeError,
    TopicExistsError,
    UnknownTopicError,
)
from commitlog.groups.admin import GroupDescription
from commitlog.groups.assignors import register_assignor
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.log import CommitLog
from commitlog.maintenance import Health
from commitlog.metrics import LogMetrics
from commitlog.partition import Partition
from commitlog.partitions.latest import Latest
from commitlog.publishing.staging import StagingWriter
from commitlog.record import ConsumerRecord, Record, TopicPartition
from commitlog.repair import RepairReport, VerifyReport
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
    "ClosedError",
    "CommitLog",
    "CommitLogError",
    "CompactionReport",
    "ConfigError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "CorruptionError",
    "DiskFullError",
    "GroupDescription",
    "Health",
    "InvalidRecordError",
    "Latest",
    "LogConfig",
    "LogLockedError",
    "LogMetrics",
    "NotLeaderError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRangeError",
    "Partition",
    "PartitionFailedError",
    "Partitioner",
    "Producer",
    "ProducerConfig",
    "Quota",
    "ReadOnlyError",
    "RebalanceListener",
    "Record",
    "RecordBatch",
    "RecordFuture",
    "RecordMetadata",
    "RecordTooLargeError",
    "RepairReport",
    "Segment",
    "StagedFile",
    "StagingWriter",
    "Topic",
    "TopicConfig",
    "TopicExistsError",
    "TopicPartition",
    "UnknownTopicError",
    "VerifyReport",
    "connect",
    "open",
    "register_assignor",
    "register_partitioner",
]
