"""ClientService: answers clients' requests: descriptions, appends, reads, offsets, publications, commands.

The Host gives it logs, leaders and acknowledgements. It holds reads that wait for records; one thread answers
them when records arrive, or when their time is up.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Protocol

from commitlog.aborted_index import Aborted
from commitlog.batches.staged import StagedFile, parse_name
from commitlog.config import IsolationLevel
from commitlog.errors import (
    ClosedError,
    CommitLogError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ProtocolError,
    WrongClusterError,
)
from commitlog.log import CommitLog
from commitlog.partition import Partition
from commitlog.partitions.reader import LogReader
from commitlog.partitions.slices import ReplicaSlice
from commitlog.partitions.state import now_ms
from commitlog.publishing.receiver import Receiver
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, TopicState
from commitlog.replication.commands import Administrative
from commitlog.replication.core.acks import Acknowledged
from commitlog.replication.messages import (
    NO_DATA,
    Append,
    Appended,
    Data,
    Decided,
    Describe,
    Described,
    DescribedTopic,
    Discard,
    FindOffset,
    FoundOffset,
    Message,
    Publish,
    Published,
    Read,
    ReadBatches,
    SentFile,
    Stage,
    Staged,
    Submit,
)
from commitlog.replication.ports import Reply
from commitlog.replication.refusals import refused
from commitlog.replication.remote.committed_read import read_committed
from commitlog.replication.remote.intake import accepted, check_received
from commitlog.tasks import Signal

_logger = logging.getLogger("commitlog.replication")
_LONGEST_WAIT_MS = 60_000
_FINISH_AGAIN_SECONDS = 5.0


class Host(Protocol):
    """What the ClientService needs from a node."""

    log: CommitLog

    def state(self) -> ClusterState:
        """Return the newest known state of the cluster; NotJoinedError if this node is not in it."""

    def partition(self, name: TopicPartition, topic_id: str, *, any_replica: bool) -> Partition:
        """Return a partition that this node leads or, with any_replica, follows.

        NotLeaderError if it does not, UnknownTopicError or UnknownPartitionError if it does not exist, and
        TopicReplacedError if the topic has another id.
        """

    def leads(self, name: TopicPartition) -> bool:
        """Return whether this node leads a partition."""

    def check_can_append(self, name: TopicPartition, acks: int | str) -> int:
        """Return the leader epoch, for when_acknowledged(); raises if an append cannot be accepted now."""

    def check_can_publish(self, name: TopicPartition) -> None:
        """Raise ConfigError if a partition has replicas elsewhere."""

    def when_acknowledged(
        self, name: TopicPartition, end_offset: int, leader_epoch: int, timeout_ms: int, done: Acknowledged
    ) -> None:
        """Call `done` once all in-sync replicas have what is below end_offset, or with an error."""

    def submit(self, command: Administrative) -> int:
        """Have a command decided; return the version of the state after it, or raise the refusal."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A read that waits for records."""

    read: Read
    partition: LogReader
    deadline: float
    reply: Reply


class ClientService:
    """Answers clients' requests. Threads may share it. Close it before the log."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._receiver = Receiver(host.log.path)
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._watched: dict[LogReader, int] = {}  # the number of reads that wait for each
        self._rung = Signal()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._finish_again_at = 0.0

    def handle(self, message: Message, reply: Reply) -> None:
        """Answer a request; an error is answered with Refused."""
        try:
            answer = self._answer(message, reply)
        except CommitLogError as error:
            answer = refused(error)
        if answer is not None:
            reply(answer)

    def close(self) -> None:
        """Answer the waiting reads with the records there are, and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._rung.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _answer(self, message: Message, reply: Reply) -> Message | None:
        """Return the answer, None if it comes later."""
        match message:
            case Read():
                return self._read(message, reply)
            case Append():
                return self._append(message, reply)
            case FindOffset(name, topic_id, timestamp, committed):
                partition = self._host.partition(name, topic_id, any_replica=False)
                level: IsolationLevel = "read_committed" if committed else "read_uncommitted"
                return FoundOffset(partition.offset_for_timestamp(timestamp, isolation_level=level))
            case Stage():
                return self._stage(message)
            case Publish(txn_id, epoch, files):
                return Published(self._host.log.publish(txn_id, epoch, [self._staged(one) for one in files]))
            case Discard(txn_id, epoch):
                self._host.log.discard(txn_id, epoch)
                return Staged()
            case Describe(names):
                self._finish_publications()
                return described(self._host.state(), names)
            case Submit(command, theirs) if isinstance(command, Administrative):
                ours = self._host.state().cluster_id
                if theirs not in ("", ours):
                    raise WrongClusterError(theirs, ours)
                return Decided(self._host.submit(command))
            case Submit(command):
                raise ProtocolError("this node", f"only a controller decides {type(command).__name__}")
            case _:
                raise ProtocolError("this node", f"it does not answer {type(message).__name__}")

    def _append(self, message: Append, reply: Reply) -> Message | None:
        name = message.name
        partition = self._host.partition(name, message.topic_id, any_replica=False)
        leader_epoch = self._host.check_can_append(name, message.acks)
        batch = accepted(message.data.read(), partition.config, now_ms())
        offsets = partition.append_encoded((batch,), sync=message.sync)
        answer = Appended(offsets.start, offsets.stop)
        if message.acks != "all":
            return answer

        def done(error: CommitLogError | None) -> None:
            reply(answer if error is None else refused(error))

        self._host.when_acknowledged(name, offsets.stop, leader_epoch, message.timeout_ms, done)
        return None

    def _stage(self, message: Stage) -> Message:
        staged = self._staged(message.file)
        if message.data.size:
            self._receiver.receive(staged, message.position, message.data.read())
        else:
            config = self._host.log.topic(staged.topic).config
            self._receiver.finish(staged, lambda path: check_received(path, staged, config))
        return Staged()

    def _staged(self, file: SentFile) -> StagedFile:
        """Return a client's file, if this node can publish it."""
        self._host.partition(file.name, file.topic_id, any_replica=False)
        self._host.check_can_publish(file.name)
        try:
            claim, file_id = parse_name(file.file)
        except ValueError as problem:
            raise ProtocolError("this node", str(problem)) from None
        if claim is None or min(file.size_bytes, file.records, file.checksum) < 0:
            raise ProtocolError("this node", f"{file} cannot be a client's file")
        return StagedFile(
            *file.name, file_id, file.size_bytes, file.records, file.checksum, file.topic_id, claim
        )

    def _finish_publications(self) -> None:
        """Finish what a dead process committed: who asks for topics reads them next, and not one half of it.

        What cannot be finished, because a disk is full, say, is not tried again for each client.
        """
        log, now = self._host.log, time.monotonic()
        try:
            if now >= self._finish_again_at and log.unfinished_publications():
                self._finish_again_at = now + _FINISH_AGAIN_SECONDS
                log.finish_publications()
        except (CommitLogError, OSError) as problem:
            _logger.warning("%s has an unfinished publication: %s", log.path, problem)

    def _read(self, message: Read, reply: Reply) -> Message | None:
        partition = self._host.partition(message.name, message.topic_id, any_replica=message.any_replica)
        start, end = partition.start_offset, partition.next_offset
        if message.max_bytes and not start <= message.offset <= end:
            if message.offset > end and not self._host.leads(message.name):
                raise NotLeaderError(partition.name, None)  # other replicas may have more
            raise OffsetOutOfRangeError(partition.name, message.offset, start, end)
        if _has_more(partition, message) or message.max_wait_ms == 0:
            return read_batches(partition, message)
        wait_ms = min(message.max_wait_ms, _LONGEST_WAIT_MS)
        waiting = _Waiting(message, partition, time.monotonic() + wait_ms / 1000, reply)
        with self._lock:
            if self._closed:
                raise ClosedError("the node")
            self._add(waiting)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="commitlog-long-poll", daemon=True)
                self._thread.start()
        self._rung.set()  # records may have been appended in the meantime
        return None

    def look_again(self) -> None:
        """Check the waiting reads again, because a leader may have changed or a topic may be gone."""
        self._rung.set()

    def _add(self, one: _Waiting) -> None:
        self._waiting.append(one)
        self._watched[one.partition] = self._watched.get(one.partition, 0) + 1
        if self._watched[one.partition] == 1:
            one.partition.watch(self._rung)

    def _remove(self, one: _Waiting) -> None:
        self._waiting.remove(one)
        self._watched[one.partition] -= 1
        if self._watched[one.partition] == 0:
            del self._watched[one.partition]
            one.partition.unwatch(self._rung)

    def _run(self) -> None:
        while not self._closed:
            self._rung.wait(self._seconds_to_next())
            self._rung.clear()
            self._answer_ready(time.monotonic())
        self._answer_ready(float("inf"))

    def _seconds_to_next(self) -> float | None:
        with self._lock:
            deadlines = [one.deadline for one in self._waiting]
        return max(min(deadlines) - time.monotonic(), 0) if deadlines else None

    def _answer_ready(self, now: float) -> None:
        with self._lock:
            waiting = list(self._waiting)
        answers = [(one, self._answer_to(one, now)) for one in waiting]
        for one, answer in answers:
            if answer is not None:
                with self._lock:
                    self._remove(one)
                one.reply(answer)

    def _answer_to(self, one: _Waiting, now: float) -> Message | None:
        """Return the answer to a waiting read, None if it has to wait longer."""
        try:
            read = one.read
            partition = self._host.partition(read.name, read.topic_id, any_replica=read.any_replica)
            if _has_more(partition, read) or one.deadline <= now:
                return read_batches(partition, read)
        except CommitLogError as error:
            return refused(error)
        except Exception as error:  # out of file descriptors, for instance; go on with the other reads
            _logger.exception("a waiting read of %s failed", one.read.name)
            return refused(CommitLogError(f"the node failed to handle it: {type(error).__name__}"))
        return None


def read_batches(partition: Partition, message: Read) -> ReadBatches:
    """Return the answer to a read, with whole batches from the one that holds its offset on."""
    start, mark = partition.start_offset, partition.high_watermark  # before the data
    found: ReplicaSlice | None = None
    aborted: tuple[Aborted, ...] = ()
    if message.committed:
        stable, found, aborted = read_committed(partition, message.offset, message.max_bytes)
        mark = max(mark, stable)
    else:
        stable = min(partition.last_stable_offset, mark)
        if message.max_bytes and message.offset < mark:
            found = partition.read_replica(message.offset, message.max_bytes)
    data: Data = NO_DATA if found is None else found.data
    after = message.offset if found is None else found.next_offset
    end, durable = partition.next_offset, partition.durable_offset
    return ReadBatches(
        start, max(end, mark), mark, stable, durable, after, data, partition.has_transactions, aborted
    )


def _has_more(partition: Partition, message: Read) -> bool:
    end = partition.last_stable_offset if message.committed else partition.high_watermark
    return end > message.offset


def described(state: ClusterState, names: tuple[str, ...]) -> Described:
    """Return the description of the living nodes and of these topics, all topics if `names` is empty."""
    addresses = {node.node_id: node.address for node in state.nodes.values()}
    found = [(name, state.topics[name]) for name in names or sorted(state.topics) if name in state.topics]
    topics = tuple(_described_topic(name, topic) for name, topic in found)
    return Described(state.cluster_id, state.version, addresses, topics)


def _described_topic(name: str, topic: TopicState) -> DescribedTopic:
    return DescribedTopic(
        name,
        topic.topic_id,
        dict(topic.config),
        tuple(one.leader for one in topic.partitions),
        tuple(one.leader_epoch for one in topic.partitions),
        tuple(one.replicas for one in topic.partitions),
        tuple(one.isr for one in topic.partitions),
    )
