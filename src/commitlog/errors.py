"""Every error commitlog raises, split by what a caller can do about it.

The fields of an error are the arguments of its constructor, so errors pickle: Spark and
multiprocessing ship them between processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class CommitLogError(Exception):
    """The base of all errors raised by commitlog."""

    fields: tuple[str, ...] = ("reason",)
    template = "{reason}"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        vars(self).update(zip(self.fields, arguments, strict=False))

    def __str__(self) -> str:
        return self.template.format(**vars(self))

    if TYPE_CHECKING:

        def __getattr__(self, field: str) -> Any:
            """Each field is an attribute, too."""


# --- the caller's arguments ----------------------------------------------------------------------


class ConfigError(CommitLogError, ValueError):
    """A setting has a value outside its range: ``ConfigError(field, value, allowed)``."""

    fields = ("field", "value", "allowed")
    template = "{field} = {value!r}: {allowed}"


class InvalidTopicError(CommitLogError, ValueError):
    """A topic name that cannot be used: ``InvalidTopicError(name)``."""

    fields = ("name",)
    template = "topic name {name!r}: must match [A-Za-z0-9._-]{{1,249}} and not be '.' or '..'"


class InvalidRecordError(CommitLogError, ValueError):
    """A record that cannot be stored: ``InvalidRecordError(index, reason)``."""

    fields = ("index", "reason")
    template = "record {index}: {reason}"


class RecordTooLargeError(CommitLogError, ValueError):
    """A record above max_message_bytes: ``RecordTooLargeError(index, size_bytes, limit_bytes)``."""

    fields = ("index", "size_bytes", "limit_bytes")
    template = "record {index} has {size_bytes} bytes, max_message_bytes is {limit_bytes}"


class BatchTooLargeError(CommitLogError, ValueError):
    """A batch above a limit of its topic or of the format: ``BatchTooLargeError(size, limit, what)``."""

    fields = ("size", "limit", "what")
    template = "a batch of {size} {what}, the limit is {limit}; append fewer records at a time"


class OffsetOutOfRangeError(CommitLogError, LookupError):
    """An offset outside the log: ``OffsetOutOfRangeError(where, offset, start_offset, next_offset)``."""

    fields = ("where", "offset", "start_offset", "next_offset")
    template = "{where}: offset {offset} is outside [{start_offset}, {next_offset})"


class UnknownTopicError(CommitLogError, LookupError):
    """There is no such topic: ``UnknownTopicError(name, similar)``."""

    fields = ("name", "similar")
    similar: str | None = None  # a topic that there is, with a name much like it

    def __str__(self) -> str:
        return f"no topic {self.name!r}" + (f"; did you mean {self.similar!r}?" if self.similar else "")


class UnknownPartitionError(CommitLogError, LookupError):
    """The topic has no such partition: ``UnknownPartitionError(topic, partition, count)``."""

    fields = ("topic", "partition", "count")
    template = "topic {topic!r} has no partition {partition}; it has {count}, numbered from 0"


class TopicExistsError(CommitLogError):
    """The topic is there already: ``TopicExistsError(name)``."""

    fields = ("name",)
    template = "topic {name!r} exists already"


class AssignmentError(CommitLogError):
    """An assignor leaves a partition out, or gives it wrongly: ``AssignmentError(assignor, reason)``."""

    fields = ("assignor", "reason")
    template = "assignor {assignor!r}: {reason}"


class MissingDependencyError(CommitLogError, ImportError):
    """An optional package is needed: ``MissingDependencyError(feature, package)``."""

    fields = ("feature", "package")
    template = "{feature} needs the package {package}; install it with: pip install {package}"


# --- the state of a handle -----------------------------------------------------------------------


class ClosedError(CommitLogError):
    """The log was closed: ``ClosedError(what)``."""

    fields = ("what",)
    template = "{what} is closed"


class ReadOnlyError(CommitLogError):
    """A write through a handle opened with mode="r": ``ReadOnlyError(what)``."""

    fields = ("what",)
    template = "{what} was opened with mode='r'; open the log with mode='w' to change it"


class ForkedError(CommitLogError):
    """A write through a handle inherited over fork: ``ForkedError(what)``."""

    fields = ("what",)
    template = "{what} was opened before os.fork(); a forked child must open the log for itself"


class PartitionFailedError(CommitLogError):
    """The disk failed earlier, so nothing more is written: ``PartitionFailedError(what, cause)``."""

    fields = ("what", "cause")
    template = "{what} stopped taking appends after a disk error ({cause}); close the log and open it again"


class OutOfOrderSequenceError(CommitLogError):
    """Batches of a producer are missing before this one.

    ``OutOfOrderSequenceError(partition, producer_id, sequence, expected)``
    """

    fields = ("partition", "producer_id", "sequence", "expected")
    template = "{partition}: producer {producer_id} sends sequence {sequence}, but {expected} is the next"


class ProducerFencedError(CommitLogError):
    """Another producer has taken over under the same id.

    ``ProducerFencedError(partition, producer_id, epoch, current_epoch)``
    """

    fields = ("partition", "producer_id", "epoch", "current_epoch")
    template = (
        "{partition}: producer {producer_id} has epoch {epoch}, but epoch {current_epoch} has written since"
    )


class UnfinishedPublicationError(CommitLogError):
    """A publication is committed, but not all of it is appended: the next publish() or open() goes on.

    ``UnfinishedPublicationError(txn_id, epoch, cause)``
    """

    fields = ("txn_id", "epoch", "cause")
    template = (
        "epoch {epoch} of {txn_id!r} is committed, but not all of it is appended yet ({cause}); publish again"
    )


class BufferFullError(CommitLogError, TimeoutError):
    """Records wait for a sync that does not come: ``BufferFullError(buffer_memory, max_block_ms)``."""

    fields = ("buffer_memory", "max_block_ms")
    template = (
        "more than buffer_memory = {buffer_memory} bytes still wait to be synced after "
        "max_block_ms = {max_block_ms}"
    )


class DeliveryTimeoutError(CommitLogError, TimeoutError):
    """It is not known yet what became of a record: ``DeliveryTimeoutError(topic, seconds)``."""

    fields = ("topic", "seconds")
    template = "a record for topic {topic!r} is still on its way after {seconds} s"


# --- consumers and groups ---------------------------------------------------------------------------


class NotAssignedError(CommitLogError, LookupError):
    """The consumer does not read this partition: ``NotAssignedError(topic, partition)``."""

    fields = ("topic", "partition")
    template = "{topic}-{partition} is not assigned to this consumer"


class NoOffsetError(CommitLogError, LookupError):
    """Nothing says where to start, and auto_offset_reset is "none": ``NoOffsetError(topic, partition)``."""

    fields = ("topic", "partition")
    template = "no offset is committed for {topic}-{partition}, and auto_offset_reset is 'none'"


class DeserializationError(CommitLogError, ValueError):
    """A deserializer refused a record, which is the next to be read: seek() behind it to go on.

    ``DeserializationError(topic, partition, offset, cause)``
    """

    fields = ("topic", "partition", "offset", "cause")
    template = "{topic}-{partition}, offset {offset}: {cause}"


class CommitFailedError(CommitLogError):
    """The member may not commit, or is none any more, and poll() joins again.

    ``CommitFailedError(group, reason)``
    """

    fields = ("group", "reason")
    template = "group {group!r}: {reason}"


class RebalanceInProgressError(CommitFailedError):
    """The partition is on its way to another member, or to this one: call poll(), then commit again.

    ``RebalanceInProgressError(group, generation)``
    """

    fields = ("group", "generation")
    template = "group {group!r} is rebalancing, to generation {generation}"


class FencedMemberError(CommitLogError):
    """Another member has come under the same group_instance_id: this one has to end.

    ``FencedMemberError(group, instance)``
    """

    fields = ("group", "instance")
    template = "group {group!r}: another member has joined as {instance!r}"


class InconsistentGroupError(CommitLogError, ValueError):
    """The members know no strategy in common: ``InconsistentGroupError(strategies, current)``."""

    fields = ("strategies", "current")
    template = "no member knows any of the strategies {strategies}; the group uses {current!r}"


class GroupNotEmptyError(CommitLogError):
    """The group has members: ``GroupNotEmptyError(group, count)``."""

    fields = ("group", "count")
    template = "group {group!r} has {count} members; stop them first"


class UnknownGroupError(CommitLogError, LookupError):
    """There is no such group: ``UnknownGroupError(group)``."""

    fields = ("group",)
    template = "no group {group!r}"


# --- replication ------------------------------------------------------------------------------------


class NotLeaderError(CommitLogError):
    """Another node leads the partition, or none does: ``NotLeaderError(name, leader)``."""

    fields = ("name", "leader")
    template = "{name} is not led here; its leader is {leader}"


class LeadershipLostError(NotLeaderError):
    """Another node leads since the records were appended here; it may have them or not.

    A plain NotLeaderError says that nothing was appended: ``LeadershipLostError(name, leader)``.
    """

    fields = ("name", "leader")
    template = (
        "{name} was led here when it took the records; its leader is {leader} now, and may not have them"
    )


class FencedEpochError(CommitLogError):
    """The other side knows an older leader epoch: ``FencedEpochError(name, epoch, current)``."""

    fields = ("name", "epoch", "current")
    template = "{name}: leader epoch {epoch} is over, {current} has begun"


class UnknownEpochError(CommitLogError):
    """The other side knows a newer leader epoch: ``UnknownEpochError(name, epoch, current)``."""

    fields = ("name", "epoch", "current")
    template = "{name}: leader epoch {epoch} is not known here yet, only {current}"


class IsrRefusedError(CommitLogError):
    """A leader's proposal of who is in sync does not count: ``IsrRefusedError(name, reason)``."""

    fields = ("name", "reason")
    template = "{name}: the proposed ISR is refused, {reason}"


class InvalidReplicasError(CommitLogError, ValueError):
    """Partitions or replicas that a topic cannot have: ``InvalidReplicasError(name, reason)``."""

    fields = ("name", "reason")
    template = "{name}: {reason}"


class NotEnoughReplicasError(CommitLogError):
    """Too few replicas are in sync, so nothing was appended.

    ``NotEnoughReplicasError(name, isr_size, min_insync_replicas)``
    """

    fields = ("name", "isr_size", "min_insync_replicas")
    template = (
        "{name}: {isr_size} replicas are in sync, min_insync_replicas is {min_insync_replicas}; "
        "nothing was appended"
    )


class NotEnoughReplicasAfterAppendError(CommitLogError):
    """Replicas fell out of sync while they were waited for: the records are appended, but may be lost.

    ``NotEnoughReplicasAfterAppendError(name, isr_size, min_insync_replicas)``
    """

    fields = ("name", "isr_size", "min_insync_replicas")
    template = (
        "{name}: appended, but only {isr_size} replicas are in sync, min_insync_replicas is "
        "{min_insync_replicas}"
    )


class ReplicationTimeoutError(CommitLogError, TimeoutError):
    """Nobody said in time that it is done; it may be: ``ReplicationTimeoutError(name, timeout_ms)``."""

    fields = ("name", "timeout_ms")
    template = "{name}: not acknowledged after {timeout_ms} ms; it may have been done, or be done yet"


class ConnectionFailedError(CommitLogError, ConnectionError):
    """A node cannot be reached: ``ConnectionFailedError(address, cause)``."""

    fields = ("address", "cause")
    template = "{address} cannot be reached: {cause}"


class AuthenticationError(CommitLogError):
    """One side did not prove who it is: ``AuthenticationError(address, cause)``."""

    fields = ("address", "cause")
    template = "{address}: {cause}"


class AuthorizationError(CommitLogError):
    """A request that this peer may not make: ``AuthorizationError(request, peer, required)``."""

    fields = ("request", "peer", "required")
    template = (
        "{request} is refused: this connection has the rights of {peer}, and that takes those of {required}"
    )


class FrameTooLargeError(CommitLogError, ValueError):
    """A message above the limit of a connection: ``FrameTooLargeError(size, limit)``."""

    fields = ("size", "limit")
    template = "a message of {size} bytes, max_frame_bytes is {limit}"


class ProtocolError(CommitLogError):
    """The other side sent what is no message: ``ProtocolError(address, cause)``."""

    fields = ("address", "cause")
    template = "{address}: {cause}"


class NoControllerError(CommitLogError):
    """Nobody keeps the cluster's state at the moment: ``NoControllerError(cause)``."""

    fields = ("cause",)
    template = "no controller can be reached: {cause}"


class StaleNodeError(CommitLogError):
    """The node was registered again since, elsewhere: ``StaleNodeError(node_id)``."""

    fields = ("node_id",)
    template = "node {node_id} has registered again since; this one has to end"


class NotJoinedError(CommitLogError):
    """The node is not in its cluster now, so it cannot say what there is: ask another node, or later.

    ``NotJoinedError(node_id, reason)``
    """

    fields = ("node_id", "reason")
    template = "node {node_id} is not in its cluster: {reason}"


class WrongClusterError(CommitLogError):
    """The other side belongs to another cluster: ``WrongClusterError(cluster_id, other_id)``."""

    fields = ("cluster_id", "other_id")
    template = "this side belongs to cluster {cluster_id}, the other to cluster {other_id}"


class StaleControllerError(CommitLogError):
    """The controller does not know a state that one of its nodes has taken in.

    It is an older copy, or the node was away for more lives of the controller than are remembered.

    ``StaleControllerError(known_version, version)``
    """

    fields = ("known_version", "version")
    template = (
        "the controller's state, version {version}, does not follow version {known_version}, which "
        "a node has taken in: "
        "it was restored from an older copy, or the node was away for too long"
    )


class TopicReplacedError(CommitLogError, LookupError):
    """The topic was deleted and created again since it was opened, or the node has not heard of it yet.

    ``TopicReplacedError(topic, wanted_id, present_id)``
    """

    fields = ("topic", "wanted_id", "present_id")
    template = (
        "topic {topic!r} with the id {wanted_id} is not here; the one of that name has the id {present_id}"
    )


class ClusterTooLargeError(CommitLogError, ValueError):
    """The state of the cluster would be too large to be sent: ``ClusterTooLargeError(name, size, limit)``."""

    fields = ("name", "size", "limit")
    template = "{name}: the state of the cluster would have up to {size} bytes, the limit is {limit}"


# --- the disk and what is on it ------------------------------------------------------------------


class LogLockedError(CommitLogError):
    """Another process has the log open for writing: ``LogLockedError(path, owner, remedy)``."""

    fields = ("path", "owner", "remedy")
    template = "{path} is open for writing in {owner}; {remedy}"


class NotALogError(CommitLogError):
    """The directory holds something else: ``NotALogError(path, reason)``."""

    fields = ("path", "reason")
    template = "{path} is not a commitlog directory: {reason}"


class UnsupportedFormatError(CommitLogError):
    """Written by a newer commitlog: ``UnsupportedFormatError(where, found, supported)``."""

    fields = ("where", "found", "supported")
    template = "{where} has format {found}; this version of commitlog reads up to {supported}"


class CorruptionError(CommitLogError):
    """Bytes that a crash cannot explain: ``CorruptionError(path, position, reason)``."""

    fields = ("path", "position", "reason")
    template = "{path}, byte {position}: {reason}"
    path: str
    position: int  # the first byte of the damaged batch or entry
    reason: str


class DataLossError(CommitLogError):
    """A query is to read records that are not there any more: ``DataLossError(where, what)``."""

    fields = ("where", "what")
    template = "{where}: {what}; with failOnDataLoss = false the query goes on with what is there"


class PathNotMountedError(CommitLogError):
    """A worker of a cluster does not see the log: ``PathNotMountedError(path, host, cause)``."""

    fields = ("path", "host", "cause")
    template = "{path} cannot be read on host {host} ({cause}); it must be mounted at that path on all hosts"


class WrongLogError(CommitLogError):
    """Another log is at this path: ``WrongLogError(path, host, expected_log_id, found_log_id)``."""

    fields = ("path", "host", "expected_log_id", "found_log_id")
    template = (
        "{path} on host {host} is log {found_log_id}, not log {expected_log_id}; the same log "
        "must be mounted there on all hosts"
    )


class TornTailError(CommitLogError):
    """An unfinished append at the end, met in recovery mode "absolute".

    ``TornTailError(path, position, torn_bytes)``
    """

    fields = ("path", "position", "torn_bytes")
    template = (
        "{path}, byte {position}: {torn_bytes} bytes of an unfinished append; open with "
        "recovery_mode='cut' to drop them"
    )


class DiskFullError(CommitLogError, OSError):
    """No room for the append, which was rolled back: ``DiskFullError(path, cause)``."""

    fields = ("path", "cause")
    template = "{path}: {cause}; nothing was appended"


class TooManyOpenFilesError(CommitLogError, OSError):
    """The process may not open as many files as it takes: ``TooManyOpenFilesError(what, reason)``."""

    fields = ("what", "reason")
    template = "{what}: {reason}; raise the limit of open files (ulimit -n) or use fewer partitions"
