"""Frames: the bytes of messages on a connection. docs/wire.md describes them.

Only this module and fields.py pack and unpack messages. Everything that arrives is checked to the last
field: the other side may be anybody.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any, NamedTuple, get_args

from commitlog.aborted_index import Aborted
from commitlog.batches.columns import padded
from commitlog.checksum import crc32c
from commitlog.errors import FrameTooLargeError, ProtocolError
from commitlog.replication import messages
from commitlog.replication.cluster import Deletion, Member, PartitionState, Reign
from commitlog.replication.commands import Submitted
from commitlog.replication.messages import Data, Message
from commitlog.replication.transports.fields import (
    COUNT,
    NESTED,
    TYPES,
    Codec,
    Left,
    fields,
    fixed,
    listed,
    named,
    several,
)

VERSION = 3
REQUEST, ANSWER = 0, 1
# size of the whole frame, version, kind, role, a zero, request_id, size of the header, checksum
_HEAD = Struct("<IBBBBQI")
_CHECKSUM = Struct("<I")  # crc32c of the bytes before it and of the header; batches have their own
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
MAX_HEADER_BYTES = 4 << 20  # parsed JSON takes many times its size


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


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
        """The number of bytes that follow."""
        return self.size - HEAD_BYTES


class Frame(NamedTuple):
    """A message ready to be sent: `front`, then the data, which may be in files."""

    front: bytes
    data: tuple[Data, ...]
    size: int


def encode(message: Message, role: int, request_id: int, max_frame_bytes: int) -> Frame:
    """Pack a message; FrameTooLargeError if the other side would refuse it."""
    kind, codec = _BY_CLASS[type(message)]
    data: list[Data] = []
    header = _dump(codec.pack(message, data)).encode()
    header = header.ljust(padded(len(header)))  # aligns the data as on disk
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
        raise ProtocolError(address, f"it speaks version {version} of the protocol, not {VERSION}")
    if role not in (REQUEST, ANSWER) or zero or kind not in _BY_KIND:
        raise ProtocolError(address, f"no message has kind {kind} and role {role}")
    if size > max_frame_bytes:
        raise FrameTooLargeError(size, max_frame_bytes)
    if header_size > MAX_HEADER_BYTES or header_size % 8 or HEAD_BYTES + header_size > size:
        raise ProtocolError(address, f"a header of {header_size} bytes in a frame of {size}")
    return Head(size, kind, role, request_id, header_size)


def decode(head: Head, raw_head: memoryview, rest: memoryview, address: str) -> Message:
    """Unpack the message of a frame, without copying its data."""
    header = rest[: head.header_size]
    checksum = crc32c(header, crc32c(raw_head[: _HEAD.size]))
    if _CHECKSUM.unpack_from(raw_head, _HEAD.size)[0] != checksum:
        raise ProtocolError(address, "the checksum of a message does not match its contents")
    left = Left(rest[head.header_size :])
    name, codec = _BY_KIND[head.kind]
    try:
        message: Message = codec.unpack(_load(str(header, "utf-8")), left)
        left.check_nothing_is_left()
    except (ValueError, RecursionError) as problem:
        raise ProtocolError(address, f"a malformed {name}: {problem}") from None
    return message


def to_bytes(message: Message, role: int, request_id: int, max_frame_bytes: int = 100 << 20) -> bytes:
    """Return a whole frame, for a transport that sends it as one piece."""
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

TYPES[messages.Refused] = fields(messages.Refused, fields=NESTED)
TYPES.update({one: listed(one) for one in (PartitionState, Reign, Member, Deletion, messages.SentFile)})
_COMMAND = named(*get_args(Submitted))
_ABORTED = several(fixed(COUNT, COUNT, COUNT, make=Aborted._make), messages.MOST_ABORTED)
# each with the codecs of the fields that are narrower than their types
_MESSAGES: dict[int, tuple[type, dict[str, Codec]]] = {
    1: (messages.Refused, {"fields": NESTED}),
    2: (messages.Decided, {}),
    3: (messages.Fetch, {"max_bytes": COUNT, "max_wait_ms": COUNT}),
    4: (messages.Fetched, {}),
    5: (messages.Describe, {}),
    6: (messages.Described, {}),
    7: (messages.Submit, {"command": _COMMAND}),
    9: (messages.Append, {"timeout_ms": COUNT}),
    10: (messages.Appended, {}),
    11: (messages.Read, {"max_bytes": COUNT, "max_wait_ms": COUNT}),
    12: (messages.ReadBatches, {"aborted": _ABORTED}),
    13: (messages.FindOffset, {}),
    14: (messages.FoundOffset, {}),
    15: (messages.Join, {}),
    16: (messages.Joined, {"session_timeout_ms": COUNT}),
    17: (messages.Heartbeat, {"max_wait_ms": COUNT}),
    18: (messages.ClusterNow, {}),
    19: (messages.Stage, {"position": COUNT}),
    20: (messages.Staged, {}),
    21: (messages.Publish, {"epoch": COUNT}),
    22: (messages.Published, {}),
    23: (messages.Discard, {"epoch": COUNT}),
}
KINDS = {kind: (one, fields(one, **limited)) for kind, (one, limited) in _MESSAGES.items()}
_BY_KIND = {kind: (one.__name__, codec) for kind, (one, codec) in KINDS.items()}
_BY_CLASS: dict[type, tuple[int, Codec]] = {one: (kind, codec) for kind, (one, codec) in KINDS.items()}


def command_to_json(command: Submitted) -> Any:
    """Return the JSON value of a command, as in a Submit."""
    return _COMMAND.pack(command, [])


def command_from_json(raw: Any) -> Submitted:
    """Return the command that command_to_json() packed; ValueError if `raw` is not one."""
    command: Submitted = _COMMAND.unpack(raw, Left(memoryview(b"")))
    return command
