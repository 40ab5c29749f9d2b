"""Every error commitlog raises, split by what a caller can do about it.

The fields of an error are the arguments of its constructor, so errors pickle: Spark and
multiprocessing ship them between processes.
"""

from __future__ import annotations

from typing import Any


class CommitLogError(Exception):
    """The base of all errors raised by commitlog."""

    template = "{0}"

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)

    def __str__(self) -> str:
        return self.template.format(*self.args)


# --- the caller's arguments ----------------------------------------------------------------------


class ConfigError(CommitLogError, ValueError):
    """A setting has a value outside its range: ``ConfigError(field, value, allowed)``."""

    template = "{0} = {1!r}: {2}"


class InvalidTopicError(CommitLogError, ValueError):
    """A topic name that cannot be used: ``InvalidTopicError(name)``."""

    template = "topic name {0!r}: must match [A-Za-z0-9._-]{{1,249}} and not be '.' or '..'"


class InvalidRecordError(CommitLogError, ValueError):
    """A record that cannot be stored: ``InvalidRecordError(index, reason)``."""

    template = "record {0}: {1}"


class RecordTooLargeError(CommitLogError, ValueError):
    """A record above max_message_bytes: ``RecordTooLargeError(index, size_bytes, limit_bytes)``."""

    template = "record {0} has {1} bytes, max_message_bytes is {2}"


class BatchTooLargeError(CommitLogError, ValueError):
    """A batch above a limit of its topic or of the format: ``BatchTooLargeError(size, limit, what)``."""

    template = "a batch of {0} {2}, the limit is {1}; append fewer records at a time"


class OffsetOutOfRangeError(CommitLogError, LookupError):
    """An offset outside the log: ``OffsetOutOfRangeError(where, offset, start_offset, next_offset)``."""

    template = "{0}: offset {1} is outside [{2}, {3})"


class UnknownTopicError(CommitLogError, LookupError):
    """There is no such topic: ``UnknownTopicError(name)``."""

    template = "no topic {0!r}"


class UnknownPartitionError(CommitLogError, LookupError):
    """The topic has no such partition: ``UnknownPartitionError(topic, partition, count)``."""

    template = "topic {0!r} has no partition {1}; it has {2}, numbered from 0"


class TopicExistsError(CommitLogError):
    """The topic is there already: ``TopicExistsError(name)``."""

    template = "topic {0!r} exists already"


class AssignmentError(CommitLogError):
    """An assignor leaves a partition out, or gives it wrongly: ``AssignmentError(assignor, reason)``."""

    template = "assignor {0!r}: {1}"


class MissingDependencyError(CommitLogError, ImportError):
    """An optional package is needed: ``MissingDependencyError(feature, package)``."""

    template = "{0} needs the package {1}; install it with: pip install {1}"


# --- the state of a handle -----------------------------------------------------------------------


class ClosedError(CommitLogError):
    """The log was closed: ``ClosedError(what)``."""

    template = "{0} is closed"


class ReadOnlyError(CommitLogError):
    """A write through a handle opened with mode="r": ``ReadOnlyError(what)``."""

    template = "{0} was opened with mode='r'; open the log with mode='w' to change it"


class ForkedError(CommitLogError):
    """A write through a handle inherited over fork: ``ForkedError(what)``."""

    template = "{0} was opened before os.fork(); a forked child must open the log for itself"


class PartitionFailedError(CommitLogError):
    """The disk failed earlier, so nothing more is written: ``PartitionFailedError(what, cause)``."""

    template = "{0} stopped taking appends after a disk error ({1}); close the log and open it again"


class OutOfOrderSequenceError(CommitLogError):
    """Batches of a producer are missing before this one.

    ``OutOfOrderSequenceError(partition, producer_id, sequence, expected)``
    """

    template = "{0}: producer {1} sends sequence {2}, but {3} is the next"


class ProducerFencedError(CommitLogError):
    """Another producer has taken over under the same id.

    ``ProducerFencedError(partition, producer_id, epoch, current_epoch)``
    """

    template = "{0}: producer {1} has epoch {2}, but epoch {3} has written since"


class UnfinishedPublicationError(CommitLogError):
    """A publication is committed, but not all of it is appended: the next publish() or open() goes on.

    ``UnfinishedPublicationError(txn_id, epoch, cause)``
    """

    template = "epoch {1} of {0!r} is committed, but not all of it is appended yet ({2}); publish again"


class BufferFullError(CommitLogError, TimeoutError):
    """Records wait for a sync that does not come: ``BufferFullError(buffer_memory, max_block_ms)``."""

    template = "more than buffer_memory = {0} bytes still wait to be synced after max_block_ms = {1}"


class DeliveryTimeoutError(CommitLogError, TimeoutError):
    """It is not known yet what became of a record: ``DeliveryTimeoutError(topic, seconds)``."""

    template = "a record for topic {0!r} is still on its way after {1} s"


# --- consumers and groups ---------------------------------------------------------------------------


class NotAssignedError(CommitLogError, LookupError):
    """The consumer does not read this partition: ``NotAssignedError(topic, partition)``."""

    template = "{0}-{1} is not assigned to this consumer"


class NoOffsetError(CommitLogError, LookupError):
    """Nothing says where to start, and auto_offset_reset is "none": ``NoOffsetError(topic, partition)``."""

    template = "no offset is committed for {0}-{1}, and auto_offset_reset is 'none'"


class DeserializationError(CommitLogError, ValueError):
    """A deserializer refused a record, which is the next to be read: seek() behind it to go on.

    ``DeserializationError(topic, partition, offset, cause)``
    """

    template = "{0}-{1}, offset {2}: {3}"


class CommitFailedError(CommitLogError):
    """The member may not commit, or is none any more, and poll() joins again.

    ``CommitFailedError(group, reason)``
    """

    template = "group {0!r}: {1}"


class RebalanceInProgressError(CommitFailedError):
    """The partition is on its way to another member, or to this one: call poll(), then commit again.

    ``RebalanceInProgressError(group, generation)``
    """

    template = "group {0!r} is rebalancing, to generation {1}"


class FencedMemberError(CommitLogError):
    """Another member has come under the same group_instance_id: this one has to end.

    ``FencedMemberError(group, instance)``
    """

    template = "group {0!r}: another member has joined as {1!r}"


class InconsistentGroupError(CommitLogError, ValueError):
    """The members know no strategy in common: ``InconsistentGroupError(strategies, current)``."""

    template = "no member knows any of the strategies {0}; the group uses {1!r}"


class GroupNotEmptyError(CommitLogError):
    """The group has members: ``GroupNotEmptyError(group, count)``."""

    template = "group {0!r} has {1} members; stop them first"


class UnknownGroupError(CommitLogError, LookupError):
    """There is no such group: ``UnknownGroupError(group)``."""

    template = "no group {0!r}"


# --- replication ------------------------------------------------------------------------------------


class NotLeaderError(CommitLogError):
    """Another node leads the partition, or none does: ``NotLeaderError(name, leader)``."""

    template = "{0} is not led here; its leader is {1}"


class LeadershipLostError(NotLeaderError):
    """Another node leads since the records were appended here; it may have them or not.

    A plain NotLeaderError says that nothing was appended: ``LeadershipLostError(name, leader)``.
    """

    template = "{0} was led here when it took the records; its leader is {1} now, and may not have them"


class FencedEpochError(CommitLogError):
    """The other side knows an older leader epoch: ``FencedEpochError(name, epoch, current)``."""

    template = "{0}: leader epoch {1} is over, {2} has begun"


class UnknownEpochError(CommitLogError):
    """The other side knows a newer leader epoch: ``UnknownEpochError(name, epoch, current)``."""

    template = "{0}: leader epoch {1} is not known here yet, only {2}"


class IsrRefusedError(CommitLogError):
    """A leader's proposal of who is in sync does not count: ``IsrRefusedError(name, reason)``."""

    template = "{0}: the proposed ISR is refused, {1}"


class InvalidReplicasError(CommitLogError, ValueError):
    """Partitions or replicas that a topic cannot have: ``InvalidReplicasError(name, reason)``."""

    template = "{0}: {1}"


class NotEnoughReplicasError(CommitLogError):
    """Too few replicas are in sync, so nothing was appended.

    ``NotEnoughReplicasError(name, isr_size, min_insync_replicas)``
    """

    template = "{0}: {1} replicas are in sync, min_insync_replicas is {2}; nothing was appended"


class NotEnoughReplicasAfterAppendError(CommitLogError):
    """Replicas fell out of sync while they were waited for: the records are appended, but may be lost.

    ``NotEnoughReplicasAfterAppendError(name, isr_size, min_insync_replicas)``
    """

    template = "{0}: appended, but only {1} replicas are in sync, min_insync_replicas is {2}"


class ReplicationTimeoutError(CommitLogError, TimeoutError):
    """Nobody said in time that it is done; it may be: ``ReplicationTimeoutError(name, timeout_ms)``."""

    template = "{0}: not acknowledged after {1} ms; it may have been done, or be done yet"


class ConnectionFailedError(CommitLogError, ConnectionError):
    """A node cannot be reached: ``ConnectionFailedError(address, cause)``."""

    template = "{0} cannot be reached: {1}"


class AuthenticationError(CommitLogError):
    """One side did not prove who it is: ``AuthenticationError(address, cause)``."""

    template = "{0}: {1}"


class AuthorizationError(CommitLogError):
    """A request that this peer may not make: ``AuthorizationError(request, peer, required)``."""

    template = "{0} is refused: this connection has the rights of {1}, and that takes those of {2}"


class FrameTooLargeError(CommitLogError, ValueError):
    """A message above the limit of a connection: ``FrameTooLargeError(size, limit)``."""

    template = "a message of {0} bytes, max_frame_bytes is {1}"


class ProtocolError(CommitLogError):
    """The other side sent what is no message: ``ProtocolError(address, cause)``."""

    template = "{0}: {1}"


class NoControllerError(CommitLogError):
    """Nobody keeps the cluster's state at the moment: ``NoControllerError(cause)``."""

    template = "no controller can be reached: {0}"


class StaleNodeError(CommitLogError):
    """The node was registered again since, elsewhere: ``StaleNodeError(node_id)``."""

    template = "node {0} has registered again since; this one has to end"


class NotJoinedError(CommitLogError):
    """The node is not in its cluster now, so it cannot say what there is: ask another node, or later.

    ``NotJoinedError(node_id, reason)``
    """

    template = "node {0} is not in its cluster: {1}"


class WrongClusterError(CommitLogError):
    """The other side belongs to another cluster: ``WrongClusterError(cluster_id, other_id)``."""

    template = "this side belongs to cluster {0}, the other to cluster {1}"


class StaleControllerError(CommitLogError):
    """The controller does not know a state that one of its nodes has taken in.

    It is an older copy, or the node was away for more lives of the controller than are remembered.

    ``StaleControllerError(known_version, version)``
    """

    template = (
        "the controller's state, version {1}, does not follow version {0}, which a node has taken in: "
        "it was restored from an older copy, or the node was away for too long"
    )


class TopicReplacedError(CommitLogError, LookupError):
    """The topic was deleted and created again since it was opened, or the node has not heard of it yet.

    ``TopicReplacedError(topic, wanted_id, present_id)``
    """

    template = "topic {0!r} with the id {1} is not here; the one of that name has the id {2}"


class ClusterTooLargeError(CommitLogError, ValueError):
    """The state of the cluster would be too large to be sent: ``ClusterTooLargeError(name, size, limit)``."""

    template = "{0}: the state of the cluster would have up to {1} bytes, the limit is {2}"


# --- the disk and what is on it ------------------------------------------------------------------


class LogLockedError(CommitLogError):
    """Another process has the log open for writing: ``LogLockedError(path, owner, remedy)``."""

    template = "{0} is open for writing in {1}; {2}"


class NotALogError(CommitLogError):
    """The directory holds something else: ``NotALogError(path, reason)``."""

    template = "{0} is not a commitlog directory: {1}"


class UnsupportedFormatError(CommitLogError):
    """Written by a newer commitlog: ``UnsupportedFormatError(where, found, supported)``."""

    template = "{0} has format {1}; this version of commitlog reads up to {2}"


class CorruptionError(CommitLogError):
    """Bytes that a crash cannot explain: ``CorruptionError(path, position, reason)``."""

    template = "{0}, byte {1}: {2}"

    @property
    def path(self) -> str:
        """The damaged file."""
        return str(self.args[0])

    @property
    def position(self) -> int:
        """The first byte of the damaged batch or entry."""
        return int(self.args[1])

    @property
    def reason(self) -> str:
        """What is wrong there."""
        return str(self.args[2])


class DataLossError(CommitLogError):
    """A query is to read records that are not there any more: ``DataLossError(where, what)``."""

    template = "{0}: {1}; with failOnDataLoss = false the query goes on with what is there"


class PathNotMountedError(CommitLogError):
    """A worker of a cluster does not see the log: ``PathNotMountedError(path, host, cause)``."""

    template = "{0} cannot be read on host {1} ({2}); it must be mounted at that path on all hosts"


class WrongLogError(CommitLogError):
    """Another log is at this path: ``WrongLogError(path, host, expected_log_id, found_log_id)``."""

    template = "{0} on host {1} is log {3}, not log {2}; the same log must be mounted there on all hosts"


class TornTailError(CommitLogError):
    """An unfinished append at the end, met in recovery mode "absolute".

    ``TornTailError(path, position, torn_bytes)``
    """

    template = "{0}, byte {1}: {2} bytes of an unfinished append; open with recovery_mode='cut' to drop them"


class DiskFullError(CommitLogError, OSError):
    """No room for the append, which was rolled back: ``DiskFullError(path, cause)``."""

    template = "{0}: {1}; nothing was appended"


class TooManyOpenFilesError(CommitLogError, OSError):
    """The process may not open as many files as it takes: ``TooManyOpenFilesError(what, reason)``."""

    template = "{0}: {1}; raise the limit of open files (ulimit -n) or use fewer partitions"
