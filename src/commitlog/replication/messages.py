"""What nodes and clients say to one another. Values only: wire.py knows how they look on a connection.

A request is answered by the message that stands behind it here, or by a Refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from commitlog.record import Buffer, TopicPartition
from commitlog.replication.commands import Submitted
from commitlog.replication.control_messages import (
    ClusterNow,
    Heartbeat,
    Join,
    Joined,
)


class Data(Protocol):
    """Batches, byte for byte as they are on disk: in memory, or still in the leader's segment."""

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def read(self) -> Buffer:
        """Return the bytes."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Batches in memory."""

    buffer: Buffer

    @property
    def size(self) -> int:
        """How many bytes there are."""
        return len(self.buffer)

    def read(self) -> Buffer:
        """Return the bytes."""
        return self.buffer


NO_DATA = Bytes(b"")


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where the records of a leader epoch end."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to a request that was not granted: the name of an error of errors.py, and its fields."""

    error: str
    fields: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """A command that is to be decided, by a controller or by a node that passes it on; answered by Decided.

    `cluster_id` is the cluster that the asking side belongs to, "" if it belongs to none: another one
    refuses.
    """

    command: Submitted
    cluster_id: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """The version of the state by which a command was decided, and why it was refused, if it was."""

    version: int
    refusal: Refused | None = None


# --- between replicas ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPart:
    """What a follower asks of one partition. `offset` is its next_offset: it has everything below it.

    `last_epoch` is the leader epoch of its last batch, -1 if it has none: by it the leader sees whether the
    two logs are the same up to `offset`. `high_watermark` is what the follower knows.
    """

    name: TopicPartition
    topic_id: str
    leader_epoch: int
    offset: int
    last_epoch: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A follower's question, answered by Fetched as soon as there is something to tell, or after max_wait_ms.

    `incarnation` tells one life of the node from the next.
    """

    node_id: int
    incarnation: int
    max_bytes: int
    max_wait_ms: int
    parts: tuple[FetchPart, ...]


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """What the leader has for one partition.

    `leader_epoch` and `offset` are those of the question. `refusal` is set if it does not lead it, or not in
    that epoch. `diverging` is set where the logs differ: the follower has to truncate. Otherwise `data` are
    whole batches from `offset` on, all of one segment, whose base_offset is `segment_base`.
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
    """The answer to Fetch. Partitions of which there is nothing new are left out."""

    parts: tuple[FetchedPart, ...]


# --- between a client and a node -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Describe:
    """A client's question about the cluster, and topics: all if none is named. Answered by Described."""

    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic, its settings, and of each partition its leader (None if there is none) and its replicas."""

    name: str
    topic_id: str
    config: dict[str, Any]
    leaders: tuple[int | None, ...]
    leader_epochs: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]
    isr: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Described:
    """The nodes that are alive, by id, with their addresses; and topics: by the state of this version."""

    cluster_id: str
    version: int
    nodes: dict[int, str]
    topics: tuple[DescribedTopic, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """A batch, encoded but not stamped with its offset, for the leader; answered by Appended.

    `acks` is 1 (the leader has it) or "all" (every in-sync replica has). With `sync` it is durable on the
    leader before that.
    """

    name: TopicPartition
    topic_id: str
    acks: int | str
    timeout_ms: int
    data: Data
    sync: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """The offsets that the records got: [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Read:
    """A client's question for records from `offset` on, below the high watermark; answered by ReadBatches.

    It waits for some up to max_wait_ms. With max_bytes 0 the answer has no data, only where the partition
    stands, and any offset will do; otherwise there is one batch at least, however large. With any_replica a
    follower may answer; one that has not come as far as `offset` refuses.
    """

    name: TopicPartition
    topic_id: str
    offset: int
    max_bytes: int
    max_wait_ms: int
    any_replica: bool = False


@dataclass(frozen=True, slots=True)
class ReadBatches:
    """Whole batches, from the one that holds the offset on; and where the partition stands.

    Records at or above high_watermark may be among them: the client leaves them out. `end_offset` is where
    the data end, so that the next question can be asked before they are looked at.
    """

    start_offset: int
    next_offset: int
    high_watermark: int
    durable_offset: int
    end_offset: int
    data: Data = NO_DATA


@dataclass(frozen=True, slots=True)
class FindOffset:
    """A client's question for the first offset as late as a timestamp; answered by FoundOffset."""

    name: TopicPartition
    topic_id: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The offset, None if no record is so late."""

    offset: int | None


Message = (
    Refused | Fetch | Fetched | Describe | Described | Append | Appended | Read | ReadBatches | FindOffset
    | FoundOffset | Join | Joined | Heartbeat | ClusterNow | Submit | Decided
)  # fmt: skip
