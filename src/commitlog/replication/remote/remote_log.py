"""RemoteLog: the topics of a cluster, for a machine without its files. commitlog.connect() opens one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn, Self, Unpack

from commitlog.batches.staged import Claim, StagedFile
from commitlog.config import ProducerSettings, TopicConfig
from commitlog.errors import ConfigError, FrameTooLargeError, TopicExistsError, UnknownTopicError
from commitlog.publishing.staging import StagingWriter, new_file
from commitlog.record import ArrowData, Buffer, Headers, TopicPartition
from commitlog.replication.commands import CreateTopic, DeleteTopic
from commitlog.replication.messages import (
    Acks,
    Discard,
    Message,
    Publish,
    Published,
    Refused,
    SentFile,
    Submit,
)
from commitlog.replication.refusals import error_of
from commitlog.replication.remote.remote_output import RemoteOutput, sent_file
from commitlog.replication.remote.remote_partition import RemotePartition
from commitlog.replication.remote.router import Deadline, Pending, ReadFrom, Router
from commitlog.replication.transports.opener import split_address
from commitlog.replication.transports.tcp import TcpTransport
from commitlog.replication.transports.tls import TlsConfig
from commitlog.topic import PartitionedTopic, check_key, encode_part

_PUBLISH_MS = (
    600_000  # how long a node may take to publish: giving up earlier would leave it open whether it did
)
_NEEDS_THE_LOG = "cannot be used here: transactions need the process that has the log"


class RemoteLog:
    """The topics of a cluster. Threads may share it; use it as a context manager, or close() it."""

    def __init__(self, router: Router, addresses: str) -> None:
        self._router = router
        self._addresses = addresses
        self._under_way: deque[Pending] = deque()  # of staged files

    @classmethod
    def open(
        cls,
        addresses: str,
        *,
        tls: TlsConfig | None,
        secret: bytes | None,
        timeout_ms: int,
        read_from: ReadFrom,
    ) -> Self:
        """Connect to a cluster; see commitlog.connect()."""
        if read_from not in ("leader", "any"):
            raise ConfigError("read_from", read_from, "must be 'leader' or 'any'")
        named = [one.strip() for one in addresses.split(",")]
        for address in named:
            split_address(address)
        router = Router(TcpTransport(tls=tls, secret=secret), named, timeout_ms, read_from)
        try:
            router.describe((), router.deadline())
        except BaseException:
            router.close()
            raise
        return cls(router, addresses)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteLog {self._addresses}>"

    @property
    def log_id(self) -> str | None:
        """The id of the cluster."""
        return self._router.cluster_id or None

    def topics(self) -> list[str]:
        """Return the names of the topics, sorted."""
        self._router.check_open()
        return sorted(topic.name for topic in self._router.describe((), self._router.deadline()).topics)

    def topic(self, name: str) -> RemoteTopic:
        """Return a topic; UnknownTopicError if it does not exist."""
        self._router.check_open()
        self._router.forget(name)
        found = self._router.topic(name, self._router.deadline())
        config = TopicConfig().altered(found.config)
        names = [TopicPartition(name, number) for number in range(len(found.leaders))]
        partitions = [RemotePartition(self._router, one, found.topic_id, config) for one in names]
        return RemoteTopic(name, config, partitions, found.topic_id)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | Mapping[str, Any] | None = None,
        *,
        replication_factor: int = 1,
        exists_ok: bool = False,
    ) -> RemoteTopic:
        """Create a topic, and return it once all its partitions have a leader.

        With `exists_ok`, an existing topic is returned as it is; otherwise TopicExistsError is raised.
        """
        settings = config.overrides() if isinstance(config, TopicConfig) else dict(config or {})
        deadline = self._router.deadline()
        submit = Submit(CreateTopic(name, partitions, replication_factor, settings), self._router.cluster_id)
        try:
            self._router.ask_any(lambda try_ms: submit, name, deadline)
        except TopicExistsError:
            if not exists_ok:
                raise
        self._wait_for_leaders(name, deadline)
        return self.topic(name)

    def _wait_for_leaders(self, name: str, deadline: Deadline) -> None:
        while True:
            self._router.forget(name)
            try:
                if None not in self._router.topic(name, deadline).leaders:
                    return
            except UnknownTopicError:  # the node that answered does not know it yet
                pass
            if deadline.left_ms == 0:
                return
            self._router.pause(deadline)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records."""
        submit, attempts = Submit(DeleteTopic(name), self._router.cluster_id), 0

        def attempt(try_ms: int) -> Message:
            nonlocal attempts
            attempts += 1
            return submit

        try:
            self._router.ask_any(attempt, name, self._router.deadline())
        except UnknownTopicError:
            if attempts == 1:  # otherwise an earlier attempt may have deleted it, and its answer was lost
                raise
        self._router.forget(name)

    # --- what only the process that has the log can do

    def producer(self, **settings: Unpack[ProducerSettings]) -> NoReturn:
        """Raise ConfigError: producers and transactions need the process that has the log."""
        transactional_id = settings.get("transactional_id")
        if transactional_id is not None:
            raise ConfigError("transactional_id", transactional_id, _NEEDS_THE_LOG)
        raise ConfigError(
            "producer", settings, "needs the process that has the log: append to a topic instead"
        )

    def transaction(self, *, sync: bool = False) -> NoReturn:
        """Raise ConfigError: transactions need the process that has the log."""
        raise ConfigError("transactional_id", None, _NEEDS_THE_LOG)

    # --- publishing what was written elsewhere

    def stage(self, topic: str, partition: int, *, txn_id: str, epoch: int) -> StagingWriter:
        """Return a writer of a staged file, which it sends to the node that leads the partition.

        Only publish() with this txn_id and epoch can append the file; see CommitLog.stage().
        """
        found = self.topic(topic)
        found.partition(partition)
        claim = Claim.of(txn_id, epoch)
        file = new_file(topic, partition, found.topic_id, claim, self.log_id)
        return StagingWriter(file, found.config, RemoteOutput(self._router, file, self._under_way))

    def publish(self, txn_id: str, epoch: int, staged: Sequence[StagedFile]) -> bool:
        """Have a node append staged files, all or nothing and once, and durably; see CommitLog.publish().

        One node must lead all their partitions, and have their only replicas: it alone knows which epochs
        are published. If no answer came in time, the files may have been published: publish them again.
        """
        Claim.of(txn_id, epoch)  # a message takes no other epoch
        message = Publish(txn_id, epoch, tuple(sent_file(one) for one in staged))
        deadline = Deadline(max(self._router.timeout_ms, _PUBLISH_MS))
        if staged:

            def attempt(try_ms: int) -> Message:
                self._check_publishable(message.files, deadline)
                return message

            first = message.files[0]
            try:
                answer = self._router.ask_for(first.name, first.topic_id, attempt, deadline)
            except FrameTooLargeError as error:
                reason = f"are too many files for one message ({error}): write fewer, larger ones"
                raise ConfigError("staged", len(staged), reason) from None
        else:
            answer = self._router.ask_any(lambda try_ms: message, txn_id, deadline)
        assert isinstance(answer, Published)
        return answer.is_new

    def _check_publishable(self, files: Iterable[SentFile], deadline: Deadline) -> None:
        """Raise an error if no node can publish all the files, as far as it is known now."""
        leaders: dict[str | None, str] = {}
        for topic in {file.name.topic for file in files}:
            self._router.forget(topic)
        for file in files:
            address, _ = self._router.place_of(file.name, file.topic_id, deadline)
            leaders.setdefault(address, str(file.name))
        if len(leaders) > 1:
            names = " and ".join(list(leaders.values())[:2])
            reason = f"{names} are on different nodes; what is published together must be on one node"
            raise ConfigError("staged", len(leaders), reason)

    def discard(self, txn_id: str, epoch: int) -> None:
        """Remove the files that were staged with this txn_id and epoch, unless they are published."""
        Claim.of(txn_id, epoch)
        deadline = self._router.deadline()
        for address in self._router.describe((), deadline).nodes.values():
            answer = self._router.ask_once(address, Discard(txn_id, epoch), deadline.try_ms)
            if isinstance(answer, Refused):
                raise error_of(answer)

    def close(self) -> None:
        """End all connections. Idempotent."""
        self._router.close()


class RemoteTopic(PartitionedTopic[RemotePartition]):
    """A topic of a RemoteLog, with the methods of Topic that read and append; appends take `acks`."""

    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> tuple[int, int]:
        """Append a record to the partition of its key, or to `partition`; returns (partition, offset)."""
        check_key(0, key)
        if partition is None:
            partition = self._chooser().one(key, len(self.partitions))
        target = self.partition(partition)
        offset = target.append(value, key=key, headers=headers, timestamp=timestamp, sync=sync, acks=acks)
        return partition, offset

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        partition: int | None = None,
        sync: bool = False,
        acks: Acks = "all",
    ) -> dict[int, range]:
        """Append records, each to the partition of its key; returns the offsets by partition.

        All records are checked before any is sent. Each partition appends its share all or nothing; an error
        between two partitions leaves the first one's share appended.
        """
        columns: list[Sequence[Any] | None] = [
            None if column is None else list(column) for column in (values, keys, headers, timestamps)
        ]
        parts = self._parts(columns, partition)
        encoded = [(part.number, encode_part(self.partition(part.number), part)) for part in parts]
        return {
            number: self.partition(number).append_encoded(batches, sync=sync, acks=acks)
            for number, batches in encoded
            if batches
        }

    def append_arrow(
        self, data: ArrowData, *, partition: int | None = None, sync: bool = False, acks: Acks = "all"
    ) -> dict[int, range]:
        """Append Arrow data, each record to the partition of its key; returns the offsets by partition."""
        return {
            number: self.partition(number).append_arrow(share, sync=sync, acks=acks)
            for number, share, _ in self._arrow_shares(data, partition)
        }
