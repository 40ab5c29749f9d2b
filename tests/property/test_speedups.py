"""The compiled functions of commitlog_speedups beside the Python code that they replace: on sound, damaged,
forged and random bytes both return the same.
"""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers import encoded, stored
from hypothesis import example, given
from hypothesis import strategies as st

from commitlog import Record, TopicConfig, speedups
from commitlog.batches import format, runs, single
from property import strategies

REQUIRED = os.environ.get("COMMITLOG_REQUIRE_SPEEDUPS") == "1"
native: Any = speedups.native
pytestmark = pytest.mark.skipif(
    native is None and not REQUIRED, reason=f"commitlog-speedups is {speedups.status}"
)
FAR = 1 << 63


def test_speedups_are_used_where_they_are_required() -> None:
    assert speedups.status == "used"


# --- bytes ---------------------------------------------------------------------------------------


def one(value: bytes | None, key: bytes | None, timestamp: int, flags: int, offset: int, epoch: int) -> bytes:
    crc, body, _ = single.encode_one(value, key, timestamp, flags, 1 << 31)
    return format.stamp(offset, epoch, crc) + body


def sealed(raw: bytearray, offset: int, epoch: int) -> bytes:
    """The bytes of a batch with a stamp that fits them, whatever they are."""
    return format.stamp(offset, epoch, crc32c(bytes(raw[16:]))) + bytes(raw[16:])


contents = strategies.optional | st.just(b"x" * 70_000)
epochs = st.sampled_from([0, 0, 0, 1, 7, -1, 2**31 - 1])
kinds = st.sampled_from([0, 0, 0, format.LOG_APPEND_TIME])


@st.composite
def damage(draw: Any, raw: bytes, offset: int, epoch: int) -> bytes:
    """A batch with a few bytes changed; of some, the checksum fits again."""
    changed = bytearray(raw)
    for _ in range(draw(st.integers(1, 3))):
        changed[draw(st.integers(0, min(len(raw), 96) - 1))] = draw(st.integers(0, 255))
    return sealed(changed, offset, epoch) if draw(st.booleans()) else bytes(changed)


@st.composite
def buffers(draw: Any) -> bytes:
    """Batches of one record, most of which follow one another, among others, damaged ones and garbage."""
    first = draw(st.sampled_from([0, 5, 2**32 - 2, 2**62, 2**63 - 4]))
    offset, epoch, flags = first, draw(epochs), draw(kinds)
    pieces = []
    for _ in range(draw(st.integers(0, 8))):
        raw = one(
            draw(contents), draw(strategies.optional), draw(strategies.timestamps), flags, offset, epoch
        )
        event = draw(st.integers(0, 15))
        if event == 0:
            raw = draw(damage(raw, offset, epoch))
        elif event == 1:
            raw = draw(st.binary(max_size=200))
        elif event == 2:
            codec = TopicConfig(compression_type=draw(strategies.codecs))
            raw = stored(encoded([b"a", b"b"], config=codec), min(offset, 2**62), epoch)
        elif event == 3:
            epoch, flags = draw(epochs), draw(kinds)
        elif event == 4:
            offset += draw(st.integers(-1, 2))
        pieces.append(raw)
        offset = min(offset + 1, 2**63 - 2)
    return b"".join(pieces)[: draw(st.integers(0, 200_000))]


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a call returns, or the type of what it raises."""
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def same_types(found: Any, expected: Any) -> bool:
    return [tuple(map(type, record)) for record in found] == [tuple(map(type, one)) for one in expected]


# --- the functions -------------------------------------------------------------------------------

RUN = b"".join(one(b"v" * n, b"k", 77, 0, n, 0) for n in range(20))


@given(buffers(), st.integers(0, 400), st.integers(-50, 300), st.sampled_from([0, 1, 7, 2**62, FAR, 2**64]))
@example(RUN, 0, 0, FAR)
@example(RUN, 0, 7, 10)
@example(b"", 0, 0, FAR)
def test_read_ones_returns_the_same_records(raw: bytes, place: int, less: int, end_offset: int) -> None:
    places = {place, 0, *(place * 8 % (len(raw) + 1),)}
    for position in places:
        expected = single.pure_read_ones(raw, position, len(raw) - less, end_offset)
        found = single.read_ones(raw, position, len(raw) - less, end_offset)
        assert found == expected
        assert same_types(found[0], expected[0])
        assert all(type(record) is Record for record in found[0])


@given(buffers(), st.integers(0, 60), st.integers(-50, 300), st.integers(0, 6), epochs)
@example(RUN, 0, 0, 0, 0)
def test_walk_ones_finds_the_same_batches(raw: bytes, place: int, less: int, offset: int, epoch: int) -> None:
    for position in {0, place * 8}:
        found: list[tuple[int, int, int]] = []
        expected: list[tuple[int, int, int]] = []
        end = min(len(raw), max(len(raw) - less, 0))
        arguments = memoryview(raw), position, end, offset, epoch
        assert single.walk_ones(*arguments, found) == single.pure_walk_ones(*arguments, expected)
        assert found == expected


@given(buffers(), st.integers(0, 60), st.integers(0, 300))
@example(RUN, 0, 0)
def test_runs_of_batches_are_the_same(raw: bytes, place: int, less: int) -> None:
    view, end = memoryview(raw + bytes(-len(raw) % 8)), max(len(raw) - less, 0) // 8 * 8
    expected = runs.pure_starts(view, place * 8, end)
    found = runs._native_starts(view, place * 8, end)
    assert found.tolist() == expected.tolist()
    ends = np.append(expected[1:], end if len(expected) else np.empty(0)).astype(np.int64)
    crcs, pure_crcs = runs._native_crcs(view, expected, ends), runs.pure_crcs(view, expected, ends)
    assert (crcs.dtype, crcs.tolist()) == (pure_crcs.dtype, pure_crcs.tolist())


@given(st.binary(max_size=3000), st.integers(0, 2**32 - 1))
@example(b"123456789", 0)
def test_the_checksum_is_the_same(data: bytes, before: int) -> None:
    assert native.crc32c(data) == native.crc32c(memoryview(data)) == crc32c(data)
    assert native.crc32c(data, before) == crc32c(data, before)


def test_every_way_to_the_checksum_gives_the_same_for_every_length() -> None:
    data = np.random.default_rng(5).bytes(70_000)
    assert "table" in native.crc32c_ways(b"")
    for size in [*range(2100), 4096, 4097, 65_535, 70_000]:
        for start in (0, 1, 7):
            part = memoryview(data)[start : start + size]
            assert set(native.crc32c_ways(part).values()) == {crc32c(part)}


# --- misuse --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: native.read_ones(Record, "text", 0, 9, 9), TypeError),
        (lambda: native.read_ones(Record, memoryview(b"1234")[::2], 0, 9, 9), BufferError),
        (lambda: native.read_ones(list, b"", 0, 9, 9), TypeError),
        (lambda: native.read_ones(Record, b"", "0", 9, 9), TypeError),
        (lambda: native.read_ones(Record, b"", 1 << 70, 9, 9), OverflowError),
        (lambda: native.read_ones(Record, b""), TypeError),
        (lambda: native.walk_ones(b"", 0, 0, 0, 0, ()), ValueError),
        (lambda: native.walk_ones(b"", -1, 0, 0, 0, []), ValueError),
        (lambda: native.crc32c(b"", 0, 0), TypeError),
        (lambda: native.crc32c("text"), TypeError),
        (lambda: native.crc32c_many(b"1234", np.array([0, 2]), np.array([2, 5])), ValueError),
        (lambda: native.crc32c_many(b"1234", np.array([-1]), np.array([2])), ValueError),
        (lambda: native.crc32c_many(b"1234", np.array([3]), np.array([2])), ValueError),
        (lambda: native.crc32c_many(b"1234", np.array([0]), np.array([1, 2])), ValueError),
        (lambda: native.batch_starts(b"", None, 0), TypeError),
    ],
)
def test_arguments_that_make_no_sense_are_refused(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_places_outside_of_the_buffer_hold_nothing() -> None:
    for position, limit in [(-1, 1600), (5000, 9000), (0, -1), (2**62, 2**63 - 1)]:
        assert native.read_ones(Record, RUN, position, limit, FAR) == ([], position)
        assert native.batch_starts(RUN, position, limit) == b""


def test_no_call_keeps_memory_or_its_buffer() -> None:
    raw = bytearray(RUN + one(b"", None, 0, 0, 50, 0)[:-1] + b"\xff")
    before = None
    for turn in range(20):
        for _ in range(2_000):
            native.read_ones(Record, raw, 0, len(raw), FAR)
            native.walk_ones(raw, 0, len(raw), 0, 0, [])
            native.batch_starts(raw, 0, len(raw))
            native.crc32c_many(raw, np.array([0]), np.array([80]))
            outcome(native.crc32c_many, raw, np.array([0]), np.array([1 << 40]))
            outcome(native.read_ones, Record, raw, 0, 0, None)
        gc.collect()
        if turn == 5:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert before is not None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2_000  # kilobytes, after 28,000 runs
    raw.append(0)  # BufferError if a call had kept it
