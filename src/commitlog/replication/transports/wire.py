"""Frames: how messages look on a connection. docs/wire.md says the same in words.

This is, with fields.py, the only module that packs or unpacks a message. What comes in is checked to the
last field: the other side may be anybody.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, NamedTuple, get_args

from crc32c import crc32c

from commitlog.batches.columns import padded
from commitlog.errors import FrameTooLargeError, ProtocolError
from commitlog.replication.cluster import (
    ClusterState,
    Deletion,
    Known,
    Member,
    NodeState,
    PartitionState,
    Reign,
    TopicState,
)
from commitlog.replication.commands import Submitted
from commitlog.replication.control_messages import ClusterNow, Heartbeat, Join, Joined
from commitlog.replication.messages import (
    Append,
    Appended,
    Data,
    Decided,
    Describe,
    Described,
    DescribedTopic,
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
    Submit,
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
    derived,
    fields,
    listed,
    mapping,
    named,
    optional,
    several,
)

VERSION = 3
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
_FETCHED_PART = fields(
    FetchedPart, name=NAME, leader_epoch=INT, offset=INT, refusal=optional(_REFUSED), high_watermark=INT,
    start_offset=INT, diverging=optional(derived(EpochEnd)), segment_base=INT, data=DATA,
)  # fmt: skip
_CONFIG = mapping(TEXT, SCALAR)
_NODES = several(INT)
_DESCRIBED_TOPIC = fields(
    DescribedTopic, name=TEXT, topic_id=TEXT, config=_CONFIG, leaders=several(optional(INT)),
    leader_epochs=several(INT), replicas=several(_NODES), isr=several(_NODES),
)  # fmt: skip

_PARTITION = listed(
    PartitionState, replicas=_NODES, isr=_NODES, leader=optional(INT), leader_epoch=INT, version=INT,
    target=optional(_NODES), awaits=optional(TEXT),
)  # fmt: skip
_TOPIC = fields(TopicState, topic_id=TEXT, config=_CONFIG, partitions=several(_PARTITION))
_CLUSTER = fields(
    ClusterState, nodes=mapping(INT, derived(NodeState)), topics=mapping(TEXT, _TOPIC), epoch=INT,
    version=INT, cluster_id=TEXT, reigns=several(listed(Reign, reign_id=TEXT, first_version=INT)),
    members=mapping(INT, listed(Member, disk_id=TEXT, heard_version=INT, joined_version=INT)),
    deleted=mapping(TEXT, listed(Deletion, name=TEXT, version=INT)),
)  # fmt: skip
_COMMAND = named(*get_args(Submitted))

KINDS: dict[int, tuple[type, Codec]] = {
    1: (Refused, _REFUSED),
    2: (Decided, fields(Decided, version=INT, refusal=optional(_REFUSED))),
    3: (Fetch, fields(
        Fetch, node_id=INT, incarnation=INT, max_bytes=COUNT, max_wait_ms=COUNT,
        parts=several(derived(FetchPart)))),
    4: (Fetched, fields(Fetched, parts=several(_FETCHED_PART))),
    5: (Describe, derived(Describe)),
    6: (Described, fields(
        Described, cluster_id=TEXT, version=INT, nodes=mapping(INT, TEXT), topics=several(_DESCRIBED_TOPIC))),
    7: (Submit, fields(Submit, command=_COMMAND, cluster_id=TEXT)),
    9: (Append, fields(
        Append, name=NAME, topic_id=TEXT, acks=ACKS, timeout_ms=COUNT, data=DATA, sync=FLAG)),
    10: (Appended, derived(Appended)),
    11: (Read, fields(
        Read, name=NAME, topic_id=TEXT, offset=INT, max_bytes=COUNT, max_wait_ms=COUNT, any_replica=FLAG)),
    12: (ReadBatches, fields(
        ReadBatches, start_offset=INT, next_offset=INT, high_watermark=INT, durable_offset=INT,
        end_offset=INT, data=DATA)),
    13: (FindOffset, derived(FindOffset)),
    14: (FoundOffset, derived(FoundOffset)),
    15: (Join, derived(Join)),
    16: (Joined, fields(Joined, incarnation=INT, session_timeout_ms=COUNT)),
    17: (Heartbeat, fields(
        Heartbeat, node_id=INT, incarnation=INT, version=INT, max_wait_ms=COUNT,
        known=optional(derived(Known)))),
    18: (ClusterNow, fields(ClusterNow, state=_CLUSTER)),
}  # fmt: skip
_BY_KIND = {kind: (one.__name__, codec) for kind, (one, codec) in KINDS.items()}
_BY_CLASS: dict[type, tuple[int, Codec]] = {one: (kind, codec) for kind, (one, codec) in KINDS.items()}


def command_to_json(command: Submitted) -> Any:
    """Return a command as it looks in a Submit, for others who keep or send it."""
    return _COMMAND.pack(command, [])


def command_from_json(raw: Any) -> Submitted:
    """Return the command that command_to_json() packed; ValueError if it is none."""
    command: Submitted = _COMMAND.unpack(raw, Left(memoryview(b"")))
    return command
