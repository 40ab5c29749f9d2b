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
from commitlog.version import __version__ as __version__

if typing.TYPE_CHECKING:
    from commitlog.progress import Progress
    from commitlog.replication.remote.remote_log import RemoteLog
    from commitlog.replication.transports.tls import TlsConfig

logging.getLogger("commitlog").addHandler(logging.NullHandler())  # quiet, unless the application asks


def open(
    path: str | os.PathLike[str],
    *,
    mode: Literal["r", "w", "shared"] = "w",
    config: LogConfig | None = None,
    progress: Progress | None = None,
) -> CommitLog:
    """Open a log: a directory of topics.

    Mode "w" creates the directory if necessary and locks it: only one process writes, and a second one gets
    a LogLockedError that names the first. In mode "shared" any number of processes write the log, all of them
    in that mode; each append takes a file lock. In mode "r" any number of processes read, and write only the
    offsets of consumer groups, quota usage and staged files.

    A log that was not closed is checked where it may be torn; in mode "r" this happens when a topic is first
    used. `progress` is called with the bytes checked so far and the total known so far.
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
    """Connect to a cluster and return a log whose topics and partitions are on other machines.

    `addresses` is "host:port" of one node or a comma-separated list; they name the other nodes. `tls` holds
    a certificate from the nodes' authority. `secret` is the nodes' client_secret; their own secret works too,
    but gives this program every right of a node. Requests are retried for up to timeout_ms, also when
    another node takes over. With read_from="any", reads may go to a follower among `addresses`.
    """
    from commitlog.replication.remote.remote_log import RemoteLog  # imports sockets only when needed

    return RemoteLog.open(addresses, tls=tls, secret=secret, timeout_ms=timeout_ms, read_from=read_from)


__all__ = [
    "ClosedError", "CommitLog", "CommitLogError", "CompactionReport", "ConfigError", "Consumer",
    "ConsumerConfig", "ConsumerRecord", "CorruptionError", "DiskFullError", "GroupDescription", "Health",
    "InvalidRecordError", "Latest", "LogConfig", "LogLockedError", "LogMetrics", "NotLeaderError",
    "OffsetAndMetadata", "OffsetAndTimestamp", "OffsetOutOfRangeError", "Partition", "PartitionFailedError",
    "Partitioner", "Producer", "ProducerConfig", "Quota", "ReadOnlyError", "RebalanceListener", "Record",
    "RecordBatch", "RecordFuture", "RecordMetadata", "RecordTooLargeError", "RepairReport", "Segment",
    "StagedFile", "StagingWriter", "Topic", "TopicConfig", "TopicExistsError", "TopicPartition",
    "UnknownTopicError", "VerifyReport", "connect", "open", "register_assignor", "register_partitioner",
]  # fmt: skip
