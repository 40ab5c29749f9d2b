"""The messages between nodes, clients and served controllers, as values. wire.py turns them into bytes.

Each request names the message that answers it; any request may be answered by Refused instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from commitlog.aborted_index import Aborted
from commitlog.record import Buffer, TopicPartition
from commitlog.replication.cluster import ClusterState, Known
from commitlog.replication.commands import JoinNode, Submitted

Acks = Literal[1, "all"]
MOST_ABORTED = 10_000  # aborted transactions in one answer; more make it a bad message


class Data(Protocol):
    """Batches, byte for byte as on disk: in memory, or still in the leader's segment."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    def read(self) -> Buffer:
        """Return the bytes."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Batches in memory."""

    buffer: Buffer

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.buffer)

    def read(self) -> Buffer:
        """Return the bytes."""
        return self.buffer


NO_DATA = Bytes(b"")


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """A leader epoch and the offset at which its records end."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a refused request: the name of an error class of errors.py, and the error's fields."""

    error: str
    fields: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """A command for a controller, or for a node that passes it on; answered by Decided.

    `cluster_id` is the sender's cluster, "" if it belongs to none; any other cluster refuses the command.
    """

    command: Submitted
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """The version of the state that decided a command, and the reason if the command was refused."""

    version: int
    refusal: Refused | None = None


# --- between a node and the controller that another process serves (controllers/server.py) ------------


@dataclass(frozen=True, slots=True)
class Join:
    """A node starts, or was fenced and starts a new life; answered by Joined.

    `token` identifies this attempt, which is repeated until it is answered. A controller whose state does
    not follow `node.known` refuses.
    """

    node: JoinNode
    token: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The node's incarnation, and how long it may go without a Heartbeat before it counts as gone."""

    incarnation: int
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A node is alive and knows the state of this version; answered by ClusterNow.

    The answer comes with the next state, or after max_wait_ms. A sender that is not a node, or was fenced,
    uses incarnation 0. A controller whose state does not follow `known` refuses.
    """

    node_id: int
    incarnation: int
    version: int
    max_wait_ms: int
    known: Known | None = None


@dataclass(frozen=True, slots=True)
class ClusterNow:
    """The newest state. A node that is missing from it, or has another incarnation in it, is fenced."""

    state: ClusterState


# --- between replicas ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPart:
    """What a follower asks of one partition. `offset` is its next_offset: it has everything below.

    `last_epoch` is the leader epoch of its last batch, -1 if it has none; from it the leader sees whether
    the two logs agree up to `offset`. `high_watermark` is the one that the follower knows.
    """

    name: TopicPartition
    topic_id: str
    leader_epoch: int
    offset: int
    last_epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower's fetch, answered by Fetched as soon as there is news, or after max_wait_ms.

    `incarnation` distinguishes one life of the node from the next.
    """

    node_id: int
    incarnation: int
    max_bytes: int
    max_wait_ms: int
    parts: tuple[FetchPart, ...]


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """The leader's answer for one partition.

    `leader_epoch` and `offset` repeat the question. `refusal` is set if the node does not lead the partition
    in that epoch. `diverging` is set where the logs differ: the follower has to truncate. Otherwise `data`
    holds whole batches from `offset` on, all of the segment whose base_offset is `segment_base`.
    """

    name: TopicPartition
    leader_epoch: int
    offset: int
    refusal: Refused | None = None
    high_watermark: int = 0
    start_offset: int = 0
    diverging: EpochEnd | None = None
    segment_base: int = 0
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to Fetch. Partitions without news are left out."""

    parts: tuple[FetchedPart, ...]


# --- between a client and a node -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Describe:
    """A client's question about the cluster and these topics, all topics if none; answered by Described."""

    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic, its settings, and the leader (None if there is none) and replicas of each partition."""

    name: str
    topic_id: str
    config: dict[str, Any]
    leaders: tuple[int | None, ...]
    leader_epochs: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]
    isr: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Described:
    """The addresses of the living nodes by id, and topics, as of the state of this version."""

    cluster_id: str
    version: int
    nodes: dict[int, str]
    topics: tuple[DescribedTopic, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """An encoded batch without offsets, for the leader; answered by Appended.

    `acks` is 1 (the leader has it) or "all" (every in-sync replica has it). With `sync` it is durable on the
    leader before the answer.
    """

    name: TopicPartition
    topic_id: str
    acks: Acks
    timeout_ms: int
    data: Data
    sync: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """The offsets of the appended records: [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Read:
    """A client's request for records from `offset` on; answered by ReadBatches.

    If `committed`, they are those below the last stable offset; otherwise those below the high watermark. The
    node waits up to max_wait_ms for records. With max_bytes 0, the answer has offsets but no data, and
    `offset` may be any; otherwise it has at least one batch, however large. With any_replica a follower may
    answer; it refuses if it has not reached `offset`.
    """

    name: TopicPartition
    topic_id: str
    offset: int
    max_bytes: int
    max_wait_ms: int
    any_replica: bool = False
    committed: bool = True


@dataclass(frozen=True, slots=True)
class ReadBatches:
    """Whole batches from the one that holds the offset on, and the offsets of the partition.

    The client skips records at or above last_stable_offset or high_watermark, and the batches of `aborted`
    transactions: the answer to a committed read names at least those that are among the data, and at most
    MOST_ABORTED. `end_offset` is where the data end, so the client can send its next request before it
    decodes them. `has_transactions` says whether there ever was a transaction in the partition.
    """

    start_offset: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    durable_offset: int
    end_offset: int
    data: Data = NO_DATA
    has_transactions: bool = False
    aborted: tuple[Aborted, ...] = ()

    def end_for(self, *, committed: bool) -> int:
        """Return where readers stop."""
        return self.last_stable_offset if committed else self.high_watermark


@dataclass(frozen=True, slots=True)
class FindOffset:
    """A client's request for the first offset at or after a timestamp; answered by FoundOffset.

    If `committed`, the offset is below the last stable offset.
    """

    name: TopicPartition
    topic_id: str
    timestamp: int
    committed: bool = True


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The offset, None if every record is older."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class SentFile:
    """A staged file for the partition `name`, as it is to be published; `file` is its name there."""

    name: TopicPartition
    topic_id: str
    file: str
    size_bytes: int
    records: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes of a staged file from `position` on, for the leader of its partition; answered by Staged.

    Without data, the file is complete: the node checks it and makes it durable before it answers.
    """

    file: SentFile
    position: int
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class Staged:
    """The bytes are stored."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Complete staged files, to be appended as an epoch of a transaction; answered by Published.

    The node must lead the partitions of all of them, and have their only replicas.
    """

    txn_id: str
    epoch: int
    files: tuple[SentFile, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """`is_new` is False if that epoch, or a later one, was published before."""

    is_new: bool


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove what was staged for an epoch that will not be published; answered by Staged."""

    txn_id: str
    epoch: int


Message = (
    Refused | Fetch | Fetched | Describe | Described | Append | Appended | Read | ReadBatches | FindOffset
    | FoundOffset | Join | Joined | Heartbeat | ClusterNow | Submit | Decided | Stage | Staged | Publish
    | Published | Discard
)  # fmt: skip
