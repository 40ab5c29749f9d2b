"""The public names of the package, which imports them when the first one is used."""

from __future__ import annotations

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
    TransactionAbortedError,
    TransactionFencedError,
    TransactionStateError,
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
from commitlog.transactions.coordinator import TransactionDescription
from commitlog.transactions.transaction import Transaction

__all__ = [
    "ClosedError", "CommitLog", "CommitLogError", "CompactionReport", "ConfigError", "Consumer",
    "ConsumerConfig", "ConsumerRecord", "CorruptionError", "DiskFullError", "GroupDescription", "Health",
    "InvalidRecordError", "Latest", "LogConfig", "LogLockedError", "LogMetrics", "NotLeaderError",
    "OffsetAndMetadata", "OffsetAndTimestamp", "OffsetOutOfRangeError", "Partition", "PartitionFailedError",
    "Partitioner", "Producer", "ProducerConfig", "Quota", "ReadOnlyError", "RebalanceListener", "Record",
    "RecordBatch", "RecordFuture", "RecordMetadata", "RecordTooLargeError", "RepairReport", "Segment",
    "StagedFile", "StagingWriter", "Topic", "TopicConfig", "TopicExistsError", "TopicPartition",
    "Transaction", "TransactionAbortedError", "TransactionDescription", "TransactionFencedError",
    "TransactionStateError", "UnknownTopicError", "VerifyReport", "register_assignor", "register_partitioner",
]  # fmt: skip
