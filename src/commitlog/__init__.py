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
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from commitlog.version import __version__ as __version__

if TYPE_CHECKING:
    from commitlog.api import *
    from commitlog.config import LogConfig
    from commitlog.log import CommitLog
    from commitlog.progress import Progress
    from commitlog.replication.log_server import LogServer
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
    from commitlog.log import CommitLog

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
    from commitlog.replication.remote.remote_log import RemoteLog

    return RemoteLog.open(addresses, tls=tls, secret=secret, timeout_ms=timeout_ms, read_from=read_from)


def serve(
    log: CommitLog,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    tls: TlsConfig | None = None,
    secret: bytes | None = None,
    advertised_host: str | None = None,
) -> LogServer:
    """Let other machines read, append to and publish to an open log; they use connect(), or Spark.

    Use it as a context manager, or close it before the log. Clients need the `secret`, or a certificate from
    the authority in `tls`; without either, only a loopback address can be served. `advertised_host` is the
    name by which clients reach this machine, if it is not `host`.
    """
    from commitlog.replication.log_server import LogServer
    from commitlog.replication.transports.tcp import TcpTransport

    transport = TcpTransport(host, port, tls=tls, secret=secret, advertised_host=advertised_host)
    try:
        return LogServer(log, transport)
    except BaseException:
        transport.close()
        raise


__all__ = [
    "ClosedError", "CommitLog", "CommitLogError", "CompactionReport", "ConfigError", "Consumer",
    "ConsumerConfig", "ConsumerRecord", "CorruptionError", "DiskFullError", "GroupDescription", "Health",
    "InvalidRecordError", "Latest", "LogConfig", "LogLockedError", "LogMetrics", "NotLeaderError",
    "OffsetAndMetadata", "OffsetAndTimestamp", "OffsetOutOfRangeError", "Partition", "PartitionFailedError",
    "Partitioner", "Producer", "ProducerConfig", "Quota", "ReadOnlyError", "RebalanceListener", "Record",
    "RecordBatch", "RecordFuture", "RecordMetadata", "RecordTooLargeError", "RepairReport", "Segment",
    "StagedFile", "StagingWriter", "Topic", "TopicConfig", "TopicExistsError", "TopicPartition",
    "Transaction", "TransactionAbortedError", "TransactionDescription", "TransactionFencedError",
    "TransactionStateError", "UnknownTopicError", "VerifyReport", "connect", "open", "register_assignor",
    "register_partitioner", "serve",
]  # fmt: skip


if not TYPE_CHECKING:  # or a type checker would accept every name

    def __getattr__(name: str) -> Any:
        """Import the engine, and numpy with it, when one of its names is first used."""
        if name in __all__:
            found = getattr(import_module("commitlog.api"), name)
        else:
            try:
                found = import_module(f"commitlog.{name}")
            except ModuleNotFoundError as problem:
                if not f"commitlog.{name}".startswith(problem.name or "?"):
                    raise
                raise AttributeError(f"module 'commitlog' has no attribute {name!r}") from None
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
