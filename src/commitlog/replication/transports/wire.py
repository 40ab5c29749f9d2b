"""Frames: how messages look on a connection. docs/wire.md says the same in words.

This is, with fields.py, the only module that packs or unpacks a message. What comes in is checked to the
last field: the other side may be anybody.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from commitlog.batches.columns import padded
from commitlog.errors import FrameTooLargeError, ProtocolError
from commitlog.replication.cluster import (
    ClusterState,
    Deletion,
    IsrChange,
    Known,
    Member,
    NodeState,
    PartitionState,
    Reign,
    TopicState,
)
from commitlog.replication.control_messages import (
    AddPartitions,
    AlterTopic,
    ClusterNow,
    ElectPreferred,
    Gone,
    Heartbeat,
    IsrDecided,
    Join,
    Joined,
    Leave,
    ProposeIsr,
    Reassign,
)
from commitlog.replication.messages import (
    Append,
    Appended,
    CreateTopic,
    Data,
    DeleteTopic,
    Describe,
    Described,
    DescribedTopic,
    Done,
    EpochEnd,
    Fetch,
    Fetched,
    FetchedPart,
    FetchPart,
    FindOffset,
    FoundOffset,
    Message,
    Read,
    ReadBatches,
    Refused,
)
from commitlog.replication.transports.fields import (
    ACKS,
    COUNT,
    DATA,
    FLAG,
    INT,
    NAME,
    NESTED,
    SCALAR,
    TEXT,
    Codec,
    Left,
    fields,
    listed,
    mapping,
    optional,
    several,
)

VERSION = 2
REQUEST, ANSWER = 0, 1
# size of the whole frame, version, kind, role, a zero, request_id, size of the header, checksum
_HEAD = Struct("<IBBBBQI")
_CHECKSUM = Struct("<I")  # crc32c of what stands before it and of the header; batches have their own
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
MAX_HEADER_BYTES = 4 << 20  # parsed JSON takes many times its size


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


_dump = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_load = json.JSONDecoder(parse_constant=_no_constant).decode


class Head(NamedTuple):
    """The first bytes of a frame."""

    size: int
    kind: int
    role: int
    request_id: int
    header_size: int

    @property
    def rest(self) -> int:
        """How many bytes follow."""
        return self.size - HEAD_BYTES


class Frame(NamedTuple):
    """A message ready to be sent: `front` first, then the data, which may lie in files."""

    front: bytes
    data: tuple[Data, ...]
    size: int


def encode(message: Message, role: int, request_id: int, max_frame_bytes: int) -> Frame:
    """Pack a message; FrameTooLargeError if the other side would not take it."""
    kind, codec = _BY_CLASS[type(message)]
    data: list[Data] = []
    header = _dump(codec.pack(message, data)).encode()
    header = header.ljust(padded(len(header)))  # so that the data are aligned as they are on disk
    size = HEAD_BYTES + len(header) + sum(one.size for one in data)
    limit = max_frame_bytes if len(header) <= MAX_HEADER_BYTES else 0
    if size > limit:
        raise FrameTooLargeError(size, limit or MAX_HEADER_BYTES)
    head = _HEAD.pack(size, VERSION, kind, role, 0, request_id, len(header))
    front = head + _CHECKSUM.pack(crc32c(header, crc32c(head))) + header
    return Frame(front, tuple(one for one in data if one.size), size)


def read_head(raw: memoryview, max_frame_bytes: int, address: str) -> Head:
    """Unpack the first HEAD_BYTES of a frame."""
    size, version, kind, role, zero, request_id, header_size = _HEAD.unpack_from(raw)
    if version != VERSION:
        raise ProtocolError(address, f"version {version} of the protocol; this is version {VERSION}")
    if role not in (REQUEST, ANSWER) or zero or kind not in _BY_KIND:
        raise ProtocolError(address, f"no message has kind {kind} and role {role}")
    if size > max_frame_bytes:
        raise FrameTooLargeError(size, max_frame_bytes)
    if header_size > MAX_HEADER_BYTES or header_size % 8 or HEAD_BYTES + header_size > size:
        raise ProtocolError(address, f"a header of {header_size} bytes in a frame of {size}")
    return Head(size, kind, role, request_id, header_size)


def decode(head: Head, raw_head: memoryview, rest: memoryview, address: str) -> Message:
    """Unpack the message of a frame; its data stay where they are."""
    header = rest[: head.header_size]
    checksum = crc32c(header, crc32c(raw_head[: _HEAD.size]))
    if _CHECKSUM.unpack_from(raw_head, _HEAD.size)[0] != checksum:
        raise ProtocolError(address, "the checksum of a message does not match")
    left = Left(rest[head.header_size :])
    name, codec = _BY_KIND[head.kind]
    try:
        message: Message = codec.unpack(_load(str(header, "utf-8")), left)
        left.check_nothing_is_left()
    except (ValueError, RecursionError) as problem:
        raise ProtocolError(address, f"a malformed {name}: {problem}") from None
    return message


def to_bytes(message: Message, role: int, request_id: int, max_frame_bytes: int = 100 << 20) -> bytes:
    """Return a whole frame, for a transport that sends it in one piece."""
    frame = encode(message, role, request_id, max_frame_bytes)
    return b"".join([frame.front, *(data.read() for data in frame.data)])


def from_bytes(raw: bytes, address: str, max_frame_bytes: int = 100 << 20) -> tuple[Head, Message]:
    """Unpack a whole frame."""
    view = memoryview(raw)
    if len(view) < HEAD_BYTES:
        raise ProtocolError(address, f"a frame of {len(view)} bytes")
    head = read_head(view, max_frame_bytes, address)
    if head.size != len(view):
        raise ProtocolError(address, f"a frame of {head.size} bytes in {len(view)}")
    return head, decode(head, view[:HEAD_BYTES], view[HEAD_BYTES:], address)


# --- messages ----------------------------------------------------------------------------------------

_REFUSED = fields(Refused, error=TEXT, fields=several(NESTED))
_EPOCH_END = fields(EpochEnd, epoch=INT, end_offset=INT)
_FETCH_PART = fields(
    FetchPart, name=NAME, topic_id=TEXT, leader_epoch=INT, offset=INT, last_epoch=INT, high_watermark=INT,
)  # fmt: skip
_FETCHED_PART = fields(
    FetchedPart, name=NAME, leader_epoch=INT, offset=INT, refusal=optional(_REFUSED), high_watermark=INT,
    start_offset=INT, diverging=optional(_EPOCH_END), segment_base=INT, data=DATA,
)  # fmt: skip
_CONFIG = mapping(TEXT, SCALAR)
_NODES = several(INT)
_DESCRIBED_TOPIC = fields(
    DescribedTopic, name=TEXT, topic_id=TEXT, config=_CONFIG, leaders=several(optional(INT)),
    leader_epochs=several(INT), replicas=several(_NODES), isr=several(_NODES),
)  # fmt: skip

_NODE = fields(NodeState, node_id=INT, address=TEXT, incarnation=INT, leaving=FLAG)
_PARTITION = listed(
    PartitionState, replicas=_NODES, isr=_NODES, leader=optional(INT), leader_epoch=INT, version=INT,
    target=optional(_NODES), awaits=optional(TEXT),
)  # fmt: skip
_TOPIC = fields(TopicState, topic_id=TEXT, config=_CONFIG, partitions=several(_PARTITION))
_KNOWN = fields(Known, cluster_id=TEXT, reign_id=TEXT, version=INT)
_CLUSTER = fields(
    ClusterState, nodes=mapping(INT, _NODE), topics=mapping(TEXT, _TOPIC), epoch=INT, version=INT,
    cluster_id=TEXT, reigns=several(listed(Reign, reign_id=TEXT, first_version=INT)),
    members=mapping(INT, listed(Member, disk_id=TEXT, heard_version=INT, joined_version=INT)),
    deleted=mapping(TEXT, listed(Deletion, name=TEXT, version=INT)),
)  # fmt: skip
_ISR_CHANGE = fields(
    IsrChange, name=NAME, topic_id=TEXT, leader=INT, leader_epoch=INT, version=INT, isr=_NODES,
    incarnations=mapping(INT, INT),
)  # fmt: skip

KINDS: dict[int, tuple[type, Codec]] = {
    1: (Refused, _REFUSED),
    2: (Done, fields(Done)),
    3: (Fetch, fields(
        Fetch, node_id=INT, incarnation=INT, max_bytes=COUNT, max_wait_ms=COUNT,
        parts=several(_FETCH_PART))),
    4: (Fetched, fields(Fetched, parts=several(_FETCHED_PART))),
    5: (Describe, fields(Describe, topics=several(TEXT))),
    6: (Described, fields(
        Described, cluster_id=TEXT, version=INT, nodes=mapping(INT, TEXT), topics=several(_DESCRIBED_TOPIC))),
    7: (CreateTopic, fields(
        CreateTopic, name=TEXT, partitions=COUNT, replication_factor=COUNT, config=_CONFIG,
        cluster_id=TEXT)),
    8: (DeleteTopic, fields(DeleteTopic, name=TEXT, cluster_id=TEXT)),
    9: (Append, fields(
        Append, name=NAME, topic_id=TEXT, acks=ACKS, timeout_ms=COUNT, data=DATA, sync=FLAG)),
    10: (Appended, fields(Appended, start=INT, end=INT)),
    11: (Read, fields(
        Read, name=NAME, topic_id=TEXT, offset=INT, max_bytes=COUNT, max_wait_ms=COUNT, any_replica=FLAG)),
    12: (ReadBatches, fields(
        ReadBatches, start_offset=INT, next_offset=INT, high_watermark=INT, durable_offset=INT,
        end_offset=INT, data=DATA)),
    13: (FindOffset, fields(FindOffset, name=NAME, topic_id=TEXT, timestamp=INT)),
    14: (FoundOffset, fields(FoundOffset, offset=optional(INT))),
    15: (Join, fields(
        Join, node_id=INT, address=TEXT, clean=FLAG, token=TEXT, disk_id=TEXT, known=optional(_KNOWN))),
    16: (Joined, fields(Joined, incarnation=INT, session_timeout_ms=COUNT)),
    17: (Heartbeat, fields(
        Heartbeat, node_id=INT, incarnation=INT, version=INT, max_wait_ms=COUNT, known=optional(_KNOWN))),
    18: (ClusterNow, fields(ClusterNow, state=_CLUSTER)),
    19: (Leave, fields(Leave, node_id=INT, incarnation=INT, cluster_id=TEXT)),
    20: (Gone, fields(Gone, node_id=INT, incarnation=INT, cluster_id=TEXT)),
    21: (ProposeIsr, fields(ProposeIsr, change=_ISR_CHANGE, cluster_id=TEXT)),
    22: (IsrDecided, fields(IsrDecided, counts=FLAG, version=INT)),
    23: (AddPartitions, fields(AddPartitions, name=TEXT, partitions=COUNT, cluster_id=TEXT)),
    24: (Reassign, fields(Reassign, name=NAME, replicas=_NODES, cluster_id=TEXT)),
    25: (ElectPreferred, fields(ElectPreferred, cluster_id=TEXT)),
    26: (AlterTopic, fields(AlterTopic, name=TEXT, changes=_CONFIG, cluster_id=TEXT)),
}  # fmt: skip
_BY_KIND = {kind: (one.__name__, codec) for kind, (one, codec) in KINDS.items()}
_BY_CLASS: dict[type, tuple[int, Codec]] = {one: (kind, codec) for kind, (one, codec) in KINDS.items()}
