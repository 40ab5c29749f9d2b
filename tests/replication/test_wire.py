"""Frames: every message comes back as it was sent, and nothing else is taken for one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args
from typing import get_type_hints as hints

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from commitlog.aborted_index import Aborted
from commitlog.errors import FrameTooLargeError, NotLeaderError, ProtocolError
from commitlog.record import TopicPartition
from commitlog.replication import cluster, commands, messages
from commitlog.replication.messages import (
    Append,
    Appended,
    Bytes,
    Describe,
    Fetched,
    FetchedPart,
    Message,
    ReadBatches,
    Refused,
    Submit,
)
from commitlog.replication.refusals import error_of, refused
from commitlog.replication.transports import wire
from commitlog.replication.transports.rights import REQUIRED

LIMIT = 1 << 20
ints = st.integers(-(1 << 63), (1 << 63) - 1)
counts = st.integers(0, 1 << 40)
texts = st.text(max_size=20)
data = st.binary(max_size=200).map(Bytes)
names = st.builds(TopicPartition, texts, counts)
scalars = st.none() | st.booleans() | ints | texts | st.floats(allow_nan=False, allow_infinity=False)
nested = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)


def several(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=4).map(tuple)


refusals = st.builds(Refused, texts, several(nested))
epoch_ends = st.builds(messages.EpochEnd, ints, ints)
fetch_parts = st.builds(messages.FetchPart, names, texts, ints, ints, ints, ints)
fetched_parts = st.builds(
    FetchedPart, names, ints, ints, st.none() | refusals, ints, ints, st.none() | epoch_ends, ints, data
)
aborted = st.builds(Aborted, counts, counts, counts)
configs = st.dictionaries(texts, scalars, max_size=4)
topics = st.builds(
    messages.DescribedTopic,
    texts, texts, configs, several(st.none() | ints), several(ints), several(several(ints)),
    several(several(ints)),
)  # fmt: skip
nodes = st.builds(cluster.NodeState, ints, texts, ints, st.booleans())
partitions = st.builds(
    cluster.PartitionState,
    several(ints), several(ints), st.none() | ints, ints, ints, st.none() | several(ints),
    st.none() | texts,
)  # fmt: skip
clusters = st.builds(
    cluster.ClusterState,
    st.dictionaries(ints, nodes, max_size=3),
    st.dictionaries(texts, st.builds(cluster.TopicState, texts, configs, several(partitions)), max_size=3),
    ints,
    ints,
    texts,
    several(st.builds(cluster.Reign, texts, ints)),
    st.dictionaries(ints, st.builds(cluster.Member, texts, ints, ints), max_size=3),
    st.dictionaries(texts, st.builds(cluster.Deletion, texts, ints), max_size=3),
)
known = st.none() | st.builds(cluster.Known, texts, texts, ints)
isr_changes = st.builds(
    commands.ChangeIsr, names, texts, ints, ints, ints, several(ints), st.dictionaries(ints, ints, max_size=4)
)
submitted = st.one_of(
    st.builds(commands.CreateTopic, texts, ints, ints, configs, texts),
    st.builds(commands.AlterTopic, texts, configs),
    st.builds(commands.DeleteTopic, texts),
    st.builds(commands.AddPartitions, texts, ints),
    st.builds(commands.Reassign, names, several(ints)),
    st.builds(commands.ElectPreferred),
    isr_changes,
    st.builds(commands.LeaveNode, ints, ints),
    st.builds(commands.RemoveNode, ints, ints),
)
sent_files = st.builds(messages.SentFile, names, texts, texts, ints, ints, ints)
EVERY: dict[type, st.SearchStrategy[Any]] = {
    Refused: refusals,
    messages.Decided: st.builds(messages.Decided, ints, st.none() | refusals),
    messages.Fetch: st.builds(messages.Fetch, ints, ints, counts, counts, several(fetch_parts)),
    Fetched: st.builds(Fetched, several(fetched_parts)),
    Describe: st.builds(Describe, several(texts)),
    messages.Described: st.builds(
        messages.Described, texts, ints, st.dictionaries(ints, texts, max_size=4), several(topics)
    ),
    Submit: st.builds(Submit, submitted, texts),
    Append: st.builds(Append, names, texts, st.sampled_from([1, "all"]), counts, data, st.booleans()),
    Appended: st.builds(Appended, ints, ints),
    messages.Read: st.builds(messages.Read, names, texts, ints, counts, counts, st.booleans(), st.booleans()),
    ReadBatches: st.builds(
        ReadBatches, ints, ints, ints, ints, ints, ints, data, st.booleans(), several(aborted)
    ),
    messages.FindOffset: st.builds(messages.FindOffset, names, texts, ints, st.booleans()),
    messages.FoundOffset: st.builds(messages.FoundOffset, st.none() | ints),
    messages.Join: st.builds(
        messages.Join, st.builds(commands.JoinNode, ints, texts, st.booleans(), texts, known), texts
    ),
    messages.Joined: st.builds(messages.Joined, ints, counts),
    messages.Heartbeat: st.builds(messages.Heartbeat, ints, ints, ints, counts, known),
    messages.ClusterNow: st.builds(messages.ClusterNow, clusters),
    messages.Stage: st.builds(messages.Stage, sent_files, counts, data),
    messages.Staged: st.builds(messages.Staged),
    messages.Publish: st.builds(messages.Publish, texts, counts, several(sent_files)),
    messages.Published: st.builds(messages.Published, st.booleans()),
    messages.Discard: st.builds(messages.Discard, texts, counts),
}


def raw(message: Message, role: int = wire.REQUEST, request_id: int = 7) -> bytes:
    """The bytes of a message on a connection."""
    whole = wire.to_bytes(message, role, request_id)
    assert len(whole) == wire.encode(message, role, request_id, LIMIT).size
    return whole


def parsed(whole: bytes, limit: int = LIMIT) -> tuple[wire.Head, Message]:
    """What the other side makes of bytes."""
    return wire.from_bytes(whole, "peer", limit)


def forged(kind: int, header: Any, after: bytes = b"", **changes: int) -> bytes:
    """A frame whose checksum is right, whatever is in it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text = text.ljust((len(text) + 7) // 8 * 8)
    fields = {"version": wire.VERSION, "role": wire.REQUEST, "zero": 0, "header_size": len(text), **changes}
    size = wire.HEAD_BYTES + len(text) + len(after)
    head = wire._HEAD.pack(
        size, fields["version"], kind, fields["role"], fields["zero"], 7, fields["header_size"]
    )
    return head + crc32c(text, crc32c(head)).to_bytes(4, "little") + text + after


def test_there_is_a_strategy_for_every_message_and_a_kind_for_each() -> None:
    assert set(EVERY) == {one for one, _ in wire.KINDS.values()} == set(Message.__args__)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was_sent(kind: type) -> None:
    @given(EVERY[kind], st.sampled_from([wire.REQUEST, wire.ANSWER]), st.integers(0, (1 << 64) - 1))
    def comes_back(message: Message, role: int, request_id: int) -> None:
        head, again = parsed(raw(message, role, request_id))
        assert again == message
        assert type(again) is kind
        assert (head.role, head.request_id) == (role, request_id)

    comes_back()


def test_data_are_not_copied_and_stay_aligned() -> None:
    parts = tuple(FetchedPart(TopicPartition("t", n), 0, 0, data=Bytes(bytes([n]) * 64)) for n in range(3))
    buffer = bytearray(raw(Fetched(parts)))
    view = memoryview(buffer)
    head = wire.read_head(view, LIMIT, "peer")
    message = wire.decode(head, view[: wire.HEAD_BYTES], view[wire.HEAD_BYTES :], "peer")
    assert isinstance(message, Fetched)
    buffer[-1] = 99
    assert message.parts[2].data.read()[-1] == 99
    assert (wire.HEAD_BYTES + head.header_size) % 8 == 0


@given(st.data())
def test_a_flipped_bit_before_the_data_is_noticed(draw: Any) -> None:
    message = draw.draw(st.one_of(*EVERY.values()))
    whole = bytearray(raw(message))
    fronts = wire.HEAD_BYTES + wire.read_head(memoryview(whole), LIMIT, "peer").header_size
    place = draw.draw(st.integers(4, fronts - 1))  # the size is the one thing that is needed before
    whole[place] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises((ProtocolError, FrameTooLargeError)):
        parsed(bytes(whole))


@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_never_a_message(garbage: bytes, with_their_size: bool) -> None:
    if with_their_size:
        garbage = len(garbage).to_bytes(4, "little") + garbage[4:]
    with pytest.raises((ProtocolError, FrameTooLargeError)):
        parsed(garbage)


@given(st.data())
def test_a_frame_that_is_cut_off_or_goes_on_is_no_message(draw: Any) -> None:
    whole = raw(draw.draw(st.one_of(*EVERY.values())))
    for wrong in (whole[: draw.draw(st.integers(0, len(whole) - 1))], whole + b"x"):
        with pytest.raises(ProtocolError):
            parsed(wrong)


APPENDED = 10


def answer_with(aborted: list[Any]) -> dict[str, Any]:
    """The header of a ReadBatches."""
    offsets = ("start", "next", "last_stable", "durable", "end")
    named = {f"{one}_offset": 0 for one in offsets}
    return {**named, "high_watermark": 0, "data": 0, "has_transactions": True, "aborted": aborted}


MALFORMED = {
    "no JSON": (APPENDED, b"{"),
    "not UTF-8": (APPENDED, b'{"start": "\xff"}'),
    "a list for an object": (APPENDED, [1, 2]),
    "a missing field": (APPENDED, {"start": 1}),
    "an extra field": (APPENDED, {"start": 1, "end": 2, "more": 3}),
    "a text for a number": (APPENDED, {"start": "1", "end": 2}),
    "true for a number": (APPENDED, {"start": True, "end": 2}),
    "a fraction for a number": (APPENDED, {"start": 1.0, "end": 2}),
    "a number of more than 64 bits": (APPENDED, {"start": 1 << 63, "end": 2}),
    "a number of very many digits": (APPENDED, b'{"start":' + b"9" * 5000 + b',"end":2}'),
    "NaN": (14, b'{"offset":NaN}'),
    "a deep nest": (1, b'{"error":"x","fields":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "other acks": (
        9,
        {"name": ["t", 0], "topic_id": "", "acks": 2, "timeout_ms": 0, "data": 0, "sync": False},
    ),
    "a flag for acks": (
        9,
        {"name": ["t", 0], "topic_id": "", "acks": True, "timeout_ms": 0, "data": 0, "sync": False},
    ),
    "a negative count": (
        11,
        {
            "name": ["t", 0],
            "topic_id": "",
            "offset": 0,
            "max_bytes": -1,
            "max_wait_ms": 0,
            "any_replica": False,
            "committed": True,
        },
    ),
    "a partition below 0": (13, {"name": ["t", -1], "topic_id": "", "timestamp": 0, "committed": True}),
    "a name of three": (13, {"name": ["t", 0, 0], "topic_id": "", "timestamp": 0, "committed": True}),
    "an aborted transaction of a producer below 0": (12, answer_with([[-1, 0, 1]])),
    "an aborted transaction without a marker": (12, answer_with([[1, 0]])),
    "too many aborted transactions": (12, answer_with([[1, 0, 1]] * (messages.MOST_ABORTED + 1))),
    "a key that comes twice": (
        6,
        {"cluster_id": "", "version": 0, "nodes": [[1, "a"], [1, "b"]], "topics": []},
    ),
    "more data than there are": (
        9,
        {"name": ["t", 0], "topic_id": "", "acks": 1, "timeout_ms": 0, "data": 8, "sync": False},
    ),
    "data below zero": (
        9,
        {"name": ["t", 0], "topic_id": "", "acks": 1, "timeout_ms": 0, "data": -8, "sync": False},
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_what_is_malformed_is_refused_with_a_reason(what: str) -> None:
    kind, header = MALFORMED[what]
    with pytest.raises(ProtocolError, match="peer: a malformed"):
        parsed(forged(kind, header))


def test_data_that_belong_to_nothing_are_refused() -> None:
    with pytest.raises(ProtocolError, match="8 bytes of data belong to no field"):
        parsed(forged(APPENDED, {"start": 1, "end": 2}, after=b"x" * 8))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 1}, "version 1"),
        ({"role": 2}, "role 2"),
        ({"zero": 1}, "no message"),
        ({"header_size": 1 << 10}, "a header of 1024 bytes"),
        ({"header_size": 7}, "a header of 7 bytes"),
    ],
)
def test_a_wrong_head_is_refused_with_a_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        parsed(forged(APPENDED, {"start": 1, "end": 2}, **changes))


@pytest.mark.parametrize("kind", [0, 27, 255])
def test_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"kind {kind}"):
        parsed(forged(kind, {}))


def test_as_many_aborted_transactions_as_there_can_be_fit_into_a_header() -> None:
    last = (1 << 63) - 1
    aborted = tuple(Aborted(last - number, last, last) for number in range(messages.MOST_ABORTED))
    message = ReadBatches(last, last, last, last, last, last, has_transactions=True, aborted=aborted)
    assert parsed(raw(message))[1] == message


def test_a_message_above_the_limit_is_neither_sent_nor_taken() -> None:
    message = ReadBatches(0, 0, 0, 0, 0, 0, Bytes(bytes(1000)))
    with pytest.raises(FrameTooLargeError):
        wire.encode(message, wire.ANSWER, 1, 1000)
    with pytest.raises(FrameTooLargeError):
        parsed(raw(message), limit=1000)


def test_a_header_above_its_limit_is_not_sent() -> None:
    with pytest.raises(FrameTooLargeError, match=str(wire.MAX_HEADER_BYTES)):
        wire.encode(Describe(("x" * wire.MAX_HEADER_BYTES,)), wire.REQUEST, 1, 1 << 30)


def test_an_error_is_raised_by_the_other_side_as_it_was() -> None:
    error = NotLeaderError("orders-0", 3)
    _, message = parsed(raw(refused(error)))
    assert isinstance(message, Refused)
    again = error_of(message)
    assert type(again) is NotLeaderError
    assert again.args == error.args


@pytest.mark.parametrize(
    "message",
    [
        Refused("SystemExit", (1,)),
        Refused("NotLeaderError", ()),
        Refused("Any", ("x",)),
        Refused("CorruptionError", tuple(range(99))),
    ],
)
def test_an_error_that_is_not_known_here_is_still_told(message: Refused) -> None:
    assert message.error in str(error_of(message))


def test_the_page_lists_every_kind_and_its_fields() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE))
    assert rows == {str(number): one.__name__ for number, (one, _) in wire.KINDS.items()}
    for one, _ in wire.KINDS.values():
        row = next(line for line in page.splitlines() if f"| `{one.__name__}` |" in line)
        for field in one.__dataclass_fields__:  # type: ignore[attr-defined]
            assert f"`{field}`" in row, f"{one.__name__}.{field}"


def test_the_page_lists_every_command_its_fields_and_who_may_submit_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire.md").read_text()
    rows = re.findall(r"^\| `([A-Z]\w+)` \| (.*) \| (\w+) \|$", page, re.MULTILINE)
    assert rows == [
        (one.__name__, ", ".join(f"`{name}`" for name in hints(one)) or "none", REQUIRED[one].name.lower())
        for one in get_args(commands.Submitted)
    ]
