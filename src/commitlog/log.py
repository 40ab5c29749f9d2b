"""CommitLog: a directory of topics, its lock, its clients and its background work."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack

from commitlog.batches.staged import Claim, StagedFile
from commitlog.clients.consumer import Consumer
from commitlog.clients.producer import Producer
from commitlog.clients.quotas import Quota, Quotas
from commitlog.clients.rate_limit import Throttle
from commitlog.config import (
    ConsumerConfig,
    ConsumerSettings,
    LogConfig,
    ProducerConfig,
    ProducerSettings,
    TopicConfig,
)
from commitlog.errors import (
    ClosedError,
    CommitLogError,
    ConfigError,
    ForkedError,
    ReadOnlyError,
    TopicExistsError,
    WrongLogError,
)
from commitlog.groups.admin import GroupDescription, Groups
from commitlog.groups.member import GroupMember
from commitlog.groups.offsets import TOPIC as OFFSETS_TOPIC
from commitlog.groups.offsets import TOPIC_CONFIG as OFFSETS_CONFIG
from commitlog.locks import LogLock
from commitlog.maintenance import Health, Maintenance
from commitlog.metrics import LogMetrics, gathered
from commitlog.partition import Partition
from commitlog.partitions.recovery import RecoveryReport
from commitlog.progress import Progress, Steps
from commitlog.publishing.publisher import Publisher
from commitlog.publishing.staging import LocalOutput, StagingWriter, new_file
from commitlog.record import TopicPartition
from commitlog.topic import Topic
from commitlog.topics.catalog import Catalog
from commitlog.topics.topic_set import Mode, TopicSet, abandon
from commitlog.transactions.coordinator import Coordinator, Owner, TransactionDescription
from commitlog.transactions.transaction import Transaction

_logger = logging.getLogger("commitlog.log")
AnyProducer = TypeVar("AnyProducer", bound=Producer)
_open_logs: weakref.WeakSet[CommitLog] = weakref.WeakSet()


class CommitLog:
    """The topics in a directory; see commitlog.open() for the modes.

    Use it as a context manager, or call close(). A log that is still open when the program ends is closed
    then, and its producers deliver what they hold; after a kill or os._exit() it is checked at the next open.
    """

    def __init__(
        self,
        path: str,
        config: LogConfig,
        catalog: Catalog,
        lock: LogLock | None,
        *,
        shared: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self._catalog = catalog
        self._lock = lock  # None in mode "r"
        self._refusal: CommitLogError | None = None
        self.mode: Mode = "r" if lock is None else "shared" if shared else "w"
        self._topics = TopicSet(catalog, path, config, self.mode, self._check_open, Steps(progress))
        self._groups = Groups(path, self, self._topics.counts, self._open_offsets)
        self._coordinator = Coordinator(path, self._topics, self._groups, shared=shared)
        sweep = () if lock is None else (self._coordinator.sweep,)  # a reader decides no transaction
        self._housekeeper = Maintenance(self._topics.partitions, config, *sweep)
        self._topics.wake_flusher_with(self._housekeeper.wake)
        self._coordinator.wake_with(self._housekeeper.wake_sweeper)
        self._quotas = Quotas(path)
        self._publisher = Publisher(path, self._topics, salvage=config.recovery_mode == "salvage")
        self._clients: weakref.WeakSet[Producer | Consumer] = weakref.WeakSet()

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Mode,
        config: LogConfig | None,
        *,
        progress: Progress | None = None,
    ) -> Self:
        """Open a log; see commitlog.open()."""
        if mode not in ("r", "w", "shared"):
            raise ConfigError("mode", mode, "must be 'r', 'w' or 'shared'")
        shared = mode == "shared"
        if config is not None and not isinstance(config, LogConfig):
            raise ConfigError("config", config, "must be a LogConfig")
        name = os.path.abspath(os.fspath(path))
        settings = config or LogConfig()
        if mode == "r":
            reader = cls(name, settings, Catalog.open(name), None, progress=progress)
            _open_logs.add(reader)
            return reader
        catalog, lock = Catalog.open_or_create(name, shared=shared)
        try:
            log = cls(name, settings, catalog, lock, shared=shared, progress=progress)
        except BaseException:
            lock.release()
            raise
        try:
            log._topics.load()
            lock.ready(shared=shared)
            log._publisher.finish_left()
            if not shared:
                log._coordinator.recover()
            _open_logs.add(log)
            log._housekeeper.start()
        except BaseException:
            log._abandon()
            raise
        return log

    def _abandon(self) -> None:
        """Release everything that a failed open holds."""
        self._housekeeper.stop()
        abandon(self._topics.partitions())
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CommitLog {self.path} mode={self.mode}>"

    @property
    def log_id(self) -> str | None:
        """The random id of this log, which its copies and backups keep.

        None in mode "r" for a log that is older than ids, until it is opened for writing.
        """
        return self._catalog.read_log_id() if self._lock is None else self._catalog.log_id

    def renew_id(self) -> str:
        """Give a copy of a log its own id, before it is used as a separate log; returns the id.

        From then on, checkpoints and staged files of the original are refused.
        """
        self._check_writable()
        if self.mode == "shared":
            raise ConfigError("mode", "shared", "open the log with mode='w' to give it another id")
        return self._catalog.renew_id()

    @property
    def exclusive(self) -> bool:
        """Whether this process is the only writer."""
        return self.mode == "w"

    # --- topics

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        self._check_open()
        return self._topics.names()

    def topic(self, name: str) -> Topic:
        """Return a topic; UnknownTopicError if it does not exist. The log's own topics can only be read."""
        self._check_open()
        return self._topics.show(name)

    def check_room(self, name: str, partitions: int) -> None:
        """Raise TooManyOpenFilesError if this process cannot open this many more partitions of a topic."""
        self._topics.check_descriptors(name, partitions)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | Mapping[str, Any] | None = None,
        *,
        exists_ok: bool = False,
    ) -> Topic:
        """Create a topic; a dictionary as `config` overrides the log's topic_defaults.

        With `exists_ok`, an existing topic is returned unchanged; otherwise it is a TopicExistsError.
        """
        self._check_writable()
        try:
            return self._topics.create(name, partitions, config)
        except TopicExistsError:
            if not exists_ok:
                raise
            return self._topics.find(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its files and its committed offsets; readers that have files open can read on."""
        self._check_writable()
        self._topics.find(name)
        self._groups.forget_topic(name)
        # crash: no offsets of a topic that is still there -> groups read it from where auto_offset_reset says
        self._topics.delete(name)

    # --- clients

    def producer(self, **settings: Unpack[ProducerSettings]) -> Producer:
        """Return a producer with the settings of ProducerConfig."""
        return self.producer_of(Producer, settings)

    def producer_of(self, kind: type[AnyProducer], settings: Mapping[str, Any]) -> AnyProducer:
        """Return a producer of a subclass."""
        self._check_writable()
        config = ProducerConfig.of(settings)
        owner = self.own(config) if kind.owns_at_once and config.transactional_id is not None else None
        producer = kind(self, config, Throttle(self._quotas.meter(config.client_id, "produce")), owner)
        self._clients.add(producer)
        return producer

    def own(self, config: ProducerConfig) -> Owner:
        """Take over the transactional id of a producer, for one that does this itself."""
        self._check_writable()
        assert config.transactional_id is not None
        return self._coordinator.own(config.transactional_id, config.transaction_timeout_ms)

    def consumer(self, *topics: str | Iterable[str], **settings: Unpack[ConsumerSettings]) -> Consumer:
        """Return a consumer with the settings of ConsumerConfig, subscribed to `topics` if any are given.

        A log in mode "r" has consumers too; they write only the offsets of their group.
        """
        self._check_open()
        config = ConsumerConfig.of(settings)
        consumer = Consumer(self, config, Throttle(self._quotas.meter(config.client_id, "consume")))
        self._clients.add(consumer)
        if topics:
            try:
                names = [[one] if isinstance(one, str) else one for one in topics]
                consumer.subscribe([name for some in names for name in some])
            except BaseException:
                consumer.close()
                raise
        return consumer

    # --- transactions

    def transaction(self, *, sync: bool = False) -> Transaction:
        """Append to several partitions, all or nothing: commits at the end of the block, aborts if it raises.

        With `sync` the commit survives a power cut. Readers see the records once they are committed, in each
        partition all at once, but not in all partitions at the same instant.

        >>> with log.transaction() as txn:
        ...     txn.append("orders", b"3 apples", key=b"alice")
        ...     txn.append("payments", b"-3", key=b"alice")
        """
        self._check_writable()
        return self._coordinator.begin(self._coordinator.anonymous(), sync=sync)

    def transactions(self) -> list[TransactionDescription]:
        """Return the last transaction of every transactional id, and those that are open without one."""
        self._check_open()
        return self._coordinator.describe_all()

    def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, whoever owns it; TransactionStateError if there is none."""
        self._check_writable()
        self._coordinator.abort_by_id(transactional_id)

    # --- publishing what was written elsewhere

    def stage(
        self, topic: str, partition: int, *, txn_id: str | None = None, epoch: int = 0
    ) -> StagingWriter:
        """Return a writer of a staged file, which publish() can append; works in any process and mode.

        With `txn_id`, only that epoch of that transaction may publish the file. Once the epoch is published,
        or given up with discard(), its other files are removed, such as those of failed attempts.
        """
        self._check_open()
        found = self._topics.find(topic)
        found.partition(partition)
        claim = None if txn_id is None else Claim.of(txn_id, epoch)
        file = new_file(topic, partition, found.topic_id, claim, self.log_id)
        return StagingWriter(file, found.config, LocalOutput(self.path, file))

    def publish(self, txn_id: str, epoch: int, staged: Sequence[StagedFile]) -> bool:
        """Append staged files to their partitions, all or nothing and once, as an epoch of a transaction.

        The records are durable when this returns True. It returns False if that epoch, or a later one, was
        published before; the files are then removed. UnfinishedPublicationError names a publication, this one
        or an earlier one, that is committed but not completely appended: the next publish() or open()
        finishes it. After any other error this one is not published, except that after a PartitionFailedError
        only opening the log again shows whether it is.
        """
        self._check_writable()
        log_id = self.log_id
        for one in staged:
            if one.log_id not in (None, log_id):
                raise WrongLogError(self.path, os.uname().nodename, one.log_id, log_id)
        return self._publisher.publish(txn_id, epoch, staged)

    def discard(self, txn_id: str, epoch: int) -> None:
        """Remove the files that were staged with this txn_id and epoch, unless publish() has committed it."""
        self._check_writable()
        self._publisher.discard(txn_id, epoch)

    def unfinished_publications(self) -> list[tuple[str, int]]:
        """Return the transactions and epochs that are committed but perhaps not completely appended.

        The next process that publishes, or opens the log for writing, finishes them.
        """
        self._check_open()
        return self._publisher.unfinished()

    def finish_publications(self) -> None:
        """Finish what dead processes committed, unless a process is publishing, which does this anyway."""
        self._check_writable()
        self._publisher.finish_left()

    def published(self, txn_id: str) -> int | None:
        """Return the last epoch of a transaction that is completely published; None if there is none."""
        self._check_open()
        return self._publisher.published(txn_id)

    # --- consumer groups

    def groups(self) -> list[str]:
        """Return the ids of the consumer groups that have or had members, or have committed offsets."""
        self._check_open()
        return self._groups.names()

    def describe_group(self, group_id: str) -> GroupDescription:
        """Return a group's members, their partitions, and the committed offset and lag of each partition."""
        self._check_open()
        return self._groups.describe(group_id)

    def reset_offsets(
        self, group_id: str, to: Literal["earliest", "latest"] | None = None, **how: Any
    ) -> dict[TopicPartition, int]:
        """Set the committed offsets of a group without members, within the log; returns the new offsets.

        `to` is "earliest" or "latest"; or give offset=, timestamp= (milliseconds) or shift_by=. topics= is an
        iterable of topics and partitions; without it, every partition that the group has committed is reset.
        With dry_run=True nothing changes.
        """
        self._check_open()
        return self._groups.reset(group_id, to, **how)

    def commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members, unchecked, so that describe_group() shows its lag.

        For a program that keeps its own progress elsewhere, such as Spark in its checkpoint.
        """
        self._check_open()
        self._groups.commit(group_id, offsets)

    def delete_group(self, group_id: str) -> None:
        """Delete a group without members, and its committed offsets."""
        self._check_open()
        self._groups.delete(group_id)

    def group_member(self, config: ConsumerConfig) -> GroupMember:
        """Return a member for a consumer, which has not joined its group yet."""
        self._check_open()
        return self._groups.member(config)

    def _open_offsets(self) -> Partition:
        """Open the partition of committed offsets, which all processes may write."""
        self._check_open()
        partition: Partition = self._topics.join_internal(OFFSETS_TOPIC, OFFSETS_CONFIG).partition(0)
        if self._lock is None:  # until now there was nothing to maintain
            self._housekeeper.start()
        return partition

    # --- quotas

    def set_quota(
        self,
        client_id: str | None,
        *,
        producer_byte_rate: int | None = None,
        consumer_byte_rate: int | None = None,
    ) -> None:
        """Limit the bytes per second that clients append and read; None means no limit.

        A client_id of None sets the default for every client id without its own quota. A change reaches all
        processes within a second.
        """
        self._check_writable()
        self._quotas.set(client_id, Quota(producer_byte_rate, consumer_byte_rate))

    def quotas(self) -> dict[str | None, Quota]:
        """Return the quotas by client id; the default has the id None."""
        self._check_open()
        return self._quotas.all()

    def remove_quota(self, client_id: str | None) -> None:
        """Remove a client id's quota if it has one; the default then applies."""
        self._check_writable()
        self._quotas.remove(client_id)

    # --- what happened, and what happens in the background

    @property
    def recovery(self) -> tuple[RecoveryReport, ...]:
        """The recovery report of each partition: what opening it found and did."""
        return tuple(partition.recovery for partition in self._topics.partitions())

    def health(self) -> Health:
        """Return the health of the background tasks and of all partitions."""
        partitions = self._topics.partitions()
        failed = tuple((one.name, one.failure) for one in partitions if one.failure)
        uncleanable = tuple((one.name, one.compaction_error) for one in partitions if one.compaction_error)
        damaged = tuple((one.name, one.retention_error) for one in partitions if one.retention_error)
        clients = [task for client in list(self._clients) for task in client.health()]
        return Health((*self._housekeeper.health(), *clients), failed, uncleanable, damaged)

    def metrics(self) -> LogMetrics:
        """Return the state and the counters of the log; docs/monitoring.md lists them.

        In mode "r" they cover the state of partitions and groups, but not what is written.
        """
        self._check_open()
        return gathered(self.path, self.mode, self._topics, self._groups, self._coordinator, self.health())

    def release_removed(self) -> None:
        """Unmap the files of removed segments, which free their disk space only then.

        For long-lived readers: reading a partition does this too, but only for that partition.
        """
        self._check_open()
        self._topics.forget_removed()

    def apply_retention(self, now_ms: int | None = None) -> int:
        """Remove the segments that have expired, as the background thread does; returns how many."""
        self._check_writable()
        return self._housekeeper.apply_retention(time.time_ns() // 1_000_000 if now_ms is None else now_ms)

    # --- the end

    def close(self) -> None:
        """Close clients, sync everything, stop the threads and release the lock. Closing twice is fine."""
        with contextlib.ExitStack() as last:
            last.callback(self._close)
            # callbacks run in reverse order: consumers first, whose listeners may still send records
            for client in sorted(self._clients, key=lambda client: isinstance(client, Consumer)):
                last.callback(_close_client, client)  # whatever the others raise

    def _close_at_exit(self) -> None:
        """Deliver what producers hold, and close. Consumers commit nothing: their work may be unfinished."""
        if self._lock is None or self._refusal is not None:
            return
        with contextlib.ExitStack() as last:
            last.callback(self._close)
            for client in list(self._clients):
                if isinstance(client, Consumer):
                    last.callback(client.stop)
                else:
                    last.callback(_close_client, client)

    def _close(self) -> None:
        with self._topics.mutex:
            closed, self._refusal = self._refusal is not None, self._refusal or ClosedError(self.path)
        try:
            if not closed:
                self._close_all()
        finally:
            self._topics.let_go_of_bells()
            if self._lock is not None:
                # Ctrl-C may have left a partition open, and nothing may be written without the lock
                abandon(self._topics.partitions())
                self._lock.release()

    def _close_all(self) -> None:
        """Close every partition; leave the clean marker only if all of them are durable."""
        _open_logs.discard(self)
        self._housekeeper.stop()
        if self._lock is not None:
            self._coordinator.close()
        problem: Exception | None = None
        clean = all(partition.failure is None for partition in self._topics.partitions())
        for partition in [partition for topic in self._topics.all() for partition in topic.partitions]:
            try:
                partition.close()
            except Exception as error:
                problem = problem or error
        if problem is not None:
            raise problem
        if clean and self.mode == "w" and self._lock is not None:
            self._catalog.leave_clean_marker()
        _logger.info("%s is closed", self.path)

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)

    def _check_writable(self) -> None:
        self._check_open()
        if self._lock is None:
            raise ReadOnlyError(self.path)

    def _forked(self) -> None:
        """In a forked child: refuse writes through the parent's handles; a reader may read on."""
        for client in self._clients:
            client.forked()  # the parent delivers what it holds
        self._clients = weakref.WeakSet()
        if self._lock is not None:
            self._refusal = ForkedError(self.path)
            self._lock.forget()
            self._coordinator.forked()
        self._topics.forked()


def _close_client(client: Producer | Consumer) -> None:
    try:
        client.close()
    except Exception:
        raise
    except BaseException:  # Ctrl-C: deliver what was sent before the log is closed
        client.close()
        raise


def _after_fork() -> None:
    for log in list(_open_logs):
        log._forked()


os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    """Close the logs that are still open. Python prints errors raised here, such as a failed delivery."""
    with contextlib.ExitStack() as last:
        for log in list(_open_logs):
            last.callback(log._close_at_exit)


atexit.register(_at_exit)  # our daemon threads still run at that point
