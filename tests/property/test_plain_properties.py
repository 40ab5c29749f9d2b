"""A few records, encoded as one piece: the bytes and the errors are those of the general encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import TopicConfig
from commitlog.batches import encode
from commitlog.batches.format import DELETE_HORIZON, NO_PRODUCER, TRANSACTIONAL
from commitlog.batches.plain import MOST_BYTES, MOST_RECORDS, pure_encode_plain

from .strategies import optional, timestamps

RULES = [
    encode.Rules(config)
    for config in (
        TopicConfig(),
        TopicConfig(max_message_bytes=20),
        TopicConfig(cleanup_policy="compact"),
        TopicConfig(message_timestamp_type="LogAppendTime"),
        TopicConfig(compression_type="zstd"),
    )
]
plain = st.binary(max_size=12)
alike = st.binary(min_size=7, max_size=7)
long = st.integers(0, 700).map(bytes)
other: Any = st.one_of(
    optional,
    plain.map(bytearray),
    plain.map(memoryview),  # type: ignore[arg-type]
    st.sampled_from(["text", 5]),
    st.builds(lambda: [1]),
    st.builds(lambda: memoryview(bytes(16)).cast("I")),
    st.builds(lambda: memoryview(bytes(9))[::2]),
)
kinds = st.sampled_from([plain, alike, long, st.just(b""), other, plain | other])
producers = st.just(NO_PRODUCER) | st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1)
)


@st.composite
def lists(draw: Any, count: int) -> Any:
    """A list or a tuple of so many items of one kind; of many, the same few again and again."""
    few = draw(st.lists(draw(kinds), min_size=min(count, 30), max_size=min(count, 30)))
    return draw(st.sampled_from([list, tuple]))((few * count)[:count])


def described(function: Callable[..., Any], *args: Any) -> Any:
    """The batches that are returned, or the error, as text."""
    try:
        with patch.object(encode, "encode_plain", pure_encode_plain):  # also where the speedups are used
            found = function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [
        (one.crc, b"".join(one.parts), one.size, one.span, one.max_timestamp, one.producer) for one in found
    ]


@given(st.data(), st.sampled_from(RULES), timestamps, producers, st.sampled_from([0, TRANSACTIONAL]))
def test_a_few_records_are_encoded_as_by_the_general_encoder(
    data: Any, rules: encode.Rules, now_ms: int, producer: Any, more_flags: int
) -> None:
    count = data.draw(st.integers(0, 30) | st.sampled_from([MOST_RECORDS, MOST_RECORDS + 1]))
    values = data.draw(lists(count))
    keys = data.draw(st.none() | lists(count) | lists(3))
    settings = None, None, rules, now_ms, producer, more_flags
    expected = described(encode.pure_encode, values, keys, *settings)
    assert described(encode.encode, values, keys, *settings) == expected
    read_once = iter(values), None if keys is None else iter(keys)
    assert described(encode.encode, *read_once, *settings) == expected


def encoded_plain(values: Any, keys: Any = None, **other: Any) -> Any:
    settings: dict[str, Any] = {
        "now": 77,
        "flags": TRANSACTIONAL,
        "producer": (5, 1, 0),
        "keyed": False,
        "most": 1 << 20,
    }
    return pure_encode_plain(values, keys, *(settings | other).values())


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ([b"v"], None),
        ((b"v", b""), [b"k", b"key"]),
        ([b"v"] * MOST_RECORDS, (b"k",) * MOST_RECORDS),
        ([b"v" * MOST_BYTES], [b"k" * MOST_BYTES]),
        ([b"v", b"v" * (MOST_BYTES - 1)], None),
        ([bytearray(b"v"), memoryview(b"values")], None),
    ],
    ids=["one", "a tuple and a list", "the most records", "the most bytes", "of two lengths", "not bytes"],
)
def test_a_few_strings_take_the_fast_path(values: Any, keys: Any) -> None:
    assert encoded_plain(values, keys) is not None


@pytest.mark.parametrize(
    ("values", "keys", "other"),
    [
        ([], None, {}),
        ([b"v", None], None, {}),
        ([b"v", "text"], None, {}),
        ([b"v", memoryview(bytes(8)).cast("I")], None, {}),
        (iter([b"v"]), None, {}),
        (b"v", None, {}),
        ([b"v"], [None], {}),
        ([b"v"], [], {}),
        ([b"v"], [b"k", b"k"], {}),
        ([b"v"], iter([b"k"]), {}),
        ([b"v"] * (MOST_RECORDS + 1), None, {}),
        ([b"v" * (MOST_BYTES + 1)], None, {}),
        ([b"v", b"v" * MOST_BYTES], None, {}),
        ([b"v"], None, {"keyed": True}),
        ([b"v", b"w" * 5], [b"k", b""], {"most": 5}),
        ([b"v"], None, {"flags": 1}),
        ([b"v"], None, {"flags": DELETE_HORIZON}),
    ],
)
def test_everything_else_is_left_to_the_general_encoder(values: Any, keys: Any, other: Any) -> None:
    assert encoded_plain(values, keys, **other) is None
