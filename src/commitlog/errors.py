"""Every error commitlog raises, grouped by what a caller can do about it.

`fields` names the arguments of an error's constructor, which are its attributes too, and `template` makes its
message of them. So errors pickle: Spark and multiprocessing ship them between processes.
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
    """A setting or an argument has a value that is not allowed."""

    fields = ("field", "value", "allowed")
    template = "{field} = {value!r}: {allowed}"


class InvalidTopicError(CommitLogError, ValueError):
    """The name cannot be that of a topic."""

    fields = ("name",)
    template = "topic name {name!r}: must match [A-Za-z0-9._-]{{1,249}} and not be '.' or '..'"


class InvalidRecordError(CommitLogError, ValueError):
    """The record cannot be stored."""

    fields = ("index", "reason")
    template = "record {index}: {reason}"


class RecordTooLargeError(CommitLogError, ValueError):
    """The record is larger than max_message_bytes."""

    fields = ("index", "size_bytes", "limit_bytes")
    template = "record {index} has {size_bytes} bytes, max_message_bytes is {limit_bytes}"


class BatchTooLargeError(CommitLogError, ValueError):
    """The batch exceeds a limit of its topic or of the format."""

    fields = ("size", "limit", "what")
    template = "a batch of {size} {what}, the limit is {limit}; append fewer records at a time"


class OffsetOutOfRangeError(CommitLogError, LookupError):
    """The offset is outside the log."""

    fields = ("where", "offset", "start_offset", "next_offset")
    template = "{where}: offset {offset} is outside [{start_offset}, {next_offset})"


class UnknownTopicError(CommitLogError, LookupError):
    """The topic does not exist; `similar` is an existing topic with a similar name, or None."""

    fields = ("name", "similar")
    similar: str | None = None

    def __str__(self) -> str:
        return f"no topic {self.name!r}" + (f"; did you mean {self.similar!r}?" if self.similar else "")


class UnknownPartitionError(CommitLogError, LookupError):
    """The topic has no partition with this number."""

    fields = ("topic", "partition", "count")
    template = "topic {topic!r} has no partition {partition}; it has {count}, numbered from 0"


class TopicExistsError(CommitLogError):
    """A topic with this name exists already."""

    fields = ("name",)
    template = "topic {name!r} exists already"


class AssignmentError(CommitLogError):
    """An assignor left out a partition or assigned it wrongly."""

    fields = ("assignor", "reason")
    template = "assignor {assignor!r}: {reason}"


class MissingDependencyError(CommitLogError, ImportError):
    """The feature needs an optional package that is not installed."""

    fields = ("feature", "package")
    template = "{feature} needs the package {package}; install it with: pip install {package}"


# --- the state of a handle -----------------------------------------------------------------------


class ClosedError(CommitLogError):
    """The log, or the object used, is closed."""

    fields = ("what",)
    template = "{what} is closed"


class ReadOnlyError(CommitLogError):
    """A log that is open in mode "r" cannot be changed, and users cannot change the log's own topics."""

    fields = ("what", "reason")
    reason: str = "the log was opened with mode='r'; open it with mode='w' to change it"

    def __str__(self) -> str:
        return f"{self.what} is read-only: {self.reason}"


class ForkedError(CommitLogError):
    """A forked child used a handle that its parent opened for writing."""

    fields = ("what",)
    template = "{what} was opened before os.fork(); a forked child must open the log for itself"


class PartitionFailedError(CommitLogError):
    """A disk error stopped the partition earlier; it takes no more appends."""

    fields = ("what", "cause")
    template = "{what} stopped taking appends after a disk error ({cause}); close the log and open it again"


class OutOfOrderSequenceError(CommitLogError):
    """Earlier batches of this producer are missing."""

    fields = ("partition", "producer_id", "sequence", "expected")
    template = "{partition}: producer {producer_id} sent sequence {sequence}, expected {expected}"


class ProducerFencedError(CommitLogError):
    """Another producer has taken over this producer id."""

    fields = ("partition", "producer_id", "epoch", "current_epoch")
    template = "{partition}: producer {producer_id} has epoch {epoch}, which epoch {current_epoch} replaced"


class TransactionStateError(CommitLogError):
    """The call does not fit the state of the transaction, such as a commit without a begin."""

    fields = ("transactional_id", "reason")
    template = "transactional id {transactional_id!r}: {reason}"


class TransactionFencedError(CommitLogError):
    """Another producer has taken over the transactional id; this one can do nothing any more."""

    fields = ("transactional_id",)
    template = "transactional id {transactional_id!r}: another producer has taken it over; close this one"


class TransactionAbortedError(CommitLogError):
    """The transaction is aborted; none of its records will be read. Begin another one to send them again."""

    fields = ("transactional_id", "cause")
    template = "transactional id {transactional_id!r}: the transaction is aborted: {cause}"


class TransactionTimeoutError(TransactionAbortedError, TimeoutError):
    """The transaction was open for longer than its transaction_timeout_ms, and was aborted."""

    fields = ("transactional_id", "timeout_ms")
    template = "transactional id {transactional_id!r}: aborted after transaction_timeout_ms = {timeout_ms}"


class UnfinishedTransactionError(CommitLogError):
    """The transaction is committed, but some partitions do not show it yet, or could not be synced.

    Markers that are missing are added in the background.
    """

    fields = ("transactional_id", "cause")
    template = (
        "transactional id {transactional_id!r}: the transaction is committed, but not yet visible or durable "
        "everywhere ({cause}); do not send it again"
    )


class UnstableOffsetsError(CommitLogError, TimeoutError):
    """Offsets of the group are part of a transaction that was not decided in time."""

    fields = ("group_id", "timeout_ms")
    template = "group {group_id!r}: offsets in an open transaction were not decided within {timeout_ms} ms"


class UnfinishedPublicationError(CommitLogError):
    """A publication is committed but not completely appended; the next publish() or open() finishes it."""

    fields = ("txn_id", "epoch", "cause")
    template = "epoch {epoch} of {txn_id!r} is committed but not completely appended ({cause}); publish again"


class BufferFullError(CommitLogError, TimeoutError):
    """Too many bytes are unsynced, and no sync made room in time."""

    fields = ("buffer_memory", "max_block_ms")
    template = "buffer_memory ({buffer_memory} bytes) is still full after max_block_ms ({max_block_ms} ms)"


class DeliveryTimeoutError(CommitLogError, TimeoutError):
    """The record is neither delivered nor failed yet."""

    fields = ("topic", "seconds")
    template = "a record for topic {topic!r} is still on its way after {seconds} s"


# --- consumers and groups ---------------------------------------------------------------------------


class NotAssignedError(CommitLogError, LookupError):
    """The consumer does not read this partition."""

    fields = ("topic", "partition")
    template = "{topic}-{partition} is not assigned to this consumer"


class NoOffsetError(CommitLogError, LookupError):
    """No offset is committed, and auto_offset_reset is "none"."""

    fields = ("topic", "partition")
    template = "no offset is committed for {topic}-{partition}, and auto_offset_reset is 'none'"


class DeserializationError(CommitLogError, ValueError):
    """A deserializer failed; the record is the next to be read, so seek() past it to go on."""

    fields = ("topic", "partition", "offset", "cause")
    template = "{topic}-{partition}, offset {offset}: {cause}"


class CommitFailedError(CommitLogError):
    """The member may not commit, or is no longer in the group; poll() joins it again."""

    fields = ("group", "reason")
    template = "group {group!r}: {reason}"


class RebalanceInProgressError(CommitFailedError):
    """The partition is moving to or from this member: call poll(), then commit again."""

    fields = ("group", "generation")
    template = "group {group!r} is rebalancing, to generation {generation}"


class FencedMemberError(CommitLogError):
    """Another member has joined with the same group_instance_id; this one must stop."""

    fields = ("group", "instance")
    template = "group {group!r}: another member has joined as {instance!r}"


class InconsistentGroupError(CommitLogError, ValueError):
    """The members have no assignment strategy in common."""

    fields = ("strategies", "current")
    template = "no member knows any of the strategies {strategies}; the group uses {current!r}"


class GroupNotEmptyError(CommitLogError):
    """The group still has members."""

    fields = ("group", "count")
    template = "group {group!r} has {count} members; stop them first"


class UnknownGroupError(CommitLogError, LookupError):
    """The group does not exist."""

    fields = ("group",)
    template = "no group {group!r}"


# --- replication ------------------------------------------------------------------------------------


class NotLeaderError(CommitLogError):
    """Another node leads the partition, or none does; nothing was appended."""

    fields = ("name", "leader")
    template = "{name} is not led here; its leader is {leader}"


class LeadershipLostError(NotLeaderError):
    """Another node took over the partition after the records were appended; it may not have them."""

    template = "{name} is no longer led here; its leader is now {leader}, which may not have the records"


class FencedEpochError(CommitLogError):
    """The request has an older leader epoch than this side."""

    fields = ("name", "epoch", "current")
    template = "{name}: leader epoch {epoch} is over, {current} has begun"


class UnknownEpochError(CommitLogError):
    """The request has a newer leader epoch than this side."""

    fields = ("name", "epoch", "current")
    template = "{name}: leader epoch {epoch} is not known here yet, only {current}"


class IsrRefusedError(CommitLogError):
    """The controller refuses a leader's proposal for the in-sync replicas."""

    fields = ("name", "reason")
    template = "{name}: the proposed ISR is refused, {reason}"


class InvalidReplicasError(CommitLogError, ValueError):
    """The topic cannot have these partitions or replicas."""

    fields = ("name", "reason")
    template = "{name}: {reason}"


class NotEnoughReplicasError(CommitLogError):
    """Too few replicas are in sync; nothing was appended."""

    fields = ("name", "isr_size", "min_insync_replicas")
    template = "{name}: {isr_size} of min_insync_replicas = {min_insync_replicas} in sync; not appended"


class NotEnoughReplicasAfterAppendError(CommitLogError):
    """Replicas fell out of sync after the append: the records are appended but may be lost."""

    fields = ("name", "isr_size", "min_insync_replicas")
    template = "{name}: appended, but {isr_size} of min_insync_replicas = {min_insync_replicas} in sync"


class ReplicationTimeoutError(CommitLogError, TimeoutError):
    """No acknowledgement came in time; the operation may still have been, or be, carried out."""

    fields = ("name", "timeout_ms")
    template = "{name}: not acknowledged after {timeout_ms} ms; it may have been done, or be done yet"


class ConnectionFailedError(CommitLogError, ConnectionError):
    """The node cannot be reached."""

    fields = ("address", "cause")
    template = "{address} cannot be reached: {cause}"


class AuthenticationError(CommitLogError):
    """One side did not prove its identity."""

    fields = ("address", "cause")
    template = "{address}: {cause}"


class AuthorizationError(CommitLogError):
    """This peer may not make this request."""

    fields = ("request", "peer", "required")
    template = "{request} needs the rights of {required}; this connection has the rights of {peer}"


class FrameTooLargeError(CommitLogError, ValueError):
    """The message exceeds the limit of the connection."""

    fields = ("size", "limit")
    template = "a message of {size} bytes, max_frame_bytes is {limit}"


class ProtocolError(CommitLogError):
    """The other side sent something that is not a valid message."""

    fields = ("address", "cause")
    template = "{address}: {cause}"


class NoControllerError(CommitLogError):
    """No controller can be reached at the moment."""

    fields = ("cause",)
    template = "no controller can be reached: {cause}"


class StaleNodeError(CommitLogError):
    """The node id has been registered again elsewhere; this node must stop."""

    fields = ("node_id",)
    template = "node {node_id} has registered again elsewhere; this one must stop"


class NotJoinedError(CommitLogError):
    """The node is not in its cluster now, so it does not know the topics: ask another node, or later."""

    fields = ("node_id", "reason")
    template = "node {node_id} is not in its cluster: {reason}"


class WrongClusterError(CommitLogError):
    """The other side belongs to another cluster."""

    fields = ("cluster_id", "other_id")
    template = "this side belongs to cluster {cluster_id}, the other to cluster {other_id}"


class StaleControllerError(CommitLogError):
    """The controller lacks a state that one of its nodes has adopted.

    It runs on an older copy of its files, or the node was away for more controller lives than are remembered.
    """

    fields = ("known_version", "version")
    template = (
        "the controller's state, version {version}, does not follow version {known_version} of a node: "
        "the controller was restored from an older copy, or the node was away for too long"
    )


class TopicReplacedError(CommitLogError, LookupError):
    """The topic was deleted and created again since it was opened, or the node does not know it yet."""

    fields = ("topic", "wanted_id", "present_id")
    template = "topic {topic!r} with the id {wanted_id} is not here; the topic here has the id {present_id}"


class ClusterTooLargeError(CommitLogError, ValueError):
    """The state of the cluster would be too large to be sent."""

    fields = ("name", "size", "limit")
    template = "{name}: the state of the cluster would have up to {size} bytes, the limit is {limit}"


# --- the disk and what is on it ------------------------------------------------------------------


class LogLockedError(CommitLogError):
    """Another process has the log open for writing."""

    fields = ("path", "owner", "remedy")
    template = "{path} is open for writing in {owner}; {remedy}"


class NotALogError(CommitLogError):
    """The directory is not a log."""

    fields = ("path", "reason")
    template = "{path} is not a commitlog directory: {reason}"


class UnsupportedFormatError(CommitLogError):
    """The data was written by a newer version of commitlog."""

    fields = ("where", "found", "supported")
    template = "{where} has format {found}; this version of commitlog reads up to {supported}"


class CorruptionError(CommitLogError):
    """Bytes are missing, or damaged in a way that a crash cannot explain."""

    fields = ("path", "position", "reason")
    template = "{path}, byte {position}: {reason}"
    path: str
    position: int  # the first byte of the damaged batch or entry
    reason: str


class DataLossError(CommitLogError):
    """A query should read records that no longer exist."""

    fields = ("where", "what")
    template = "{where}: {what}; with failOnDataLoss = false the query goes on with what is there"


class PathNotMountedError(CommitLogError):
    """A worker of a cluster cannot read the log at its path."""

    fields = ("path", "host", "cause")
    template = "{path} cannot be read on host {host} ({cause}); it must be mounted at that path on all hosts"


class NotSharedError(CommitLogError):
    """Two hosts of a cluster see different directories at the path of the log."""

    fields = ("path", "host", "driver_host")
    template = (
        "{path}: files that a task staged on host {host} are missing on the driver's host, {driver_host};"
        " mount the same directory on all hosts, or write to the log's node at commitlog://host:port."
        " On one and the same host, another run of the query has removed them"
    )


class WrongLogError(CommitLogError):
    """A different log is at this path."""

    fields = ("path", "host", "expected_log_id", "found_log_id")

    def __str__(self) -> str:
        found = f"log {self.found_log_id}" if self.found_log_id else "a log without an id"
        what = f"{self.path} on host {self.host} is {found}, not {self.expected_log_id}"
        return f"{what}; mount the same log there"


class TornTailError(CommitLogError):
    """The log ends with an unfinished append, which recovery mode "absolute" refuses."""

    fields = ("path", "position", "torn_bytes")
    template = "{path}, byte {position}: {torn_bytes} bytes of a torn append; recovery_mode='cut' drops them"


class DiskFullError(CommitLogError, OSError):
    """There is no room on the disk; the append was rolled back."""

    fields = ("path", "cause")
    template = "{path}: {cause}; nothing was appended"


class TooManyOpenFilesError(CommitLogError, OSError):
    """The process may not open as many files as this takes."""

    fields = ("what", "reason")
    template = "{what}: {reason}; raise the limit of open files (ulimit -n) or use fewer partitions"
