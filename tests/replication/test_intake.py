"""What a client sends is checked before it becomes part of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from helpers import CODECS, encoded, gappy, stored
from hypothesis import given
from hypothesis import strategies as st
from property.strategies import columns

from commitlog import RecordBatch, TopicConfig
from commitlog.batches.encode import EncodedBatch, Rules, encode, encode_empty, numbered, retimed
from commitlog.batches.format import PUBLISHED, TRANSACTIONAL
from commitlog.batches.markers import encode_marker
from commitlog.errors import (
    CommitLogError,
    ConfigError,
    CorruptionError,
    InvalidRecordError,
    RecordTooLargeError,
)
from commitlog.replication.remote.intake import accepted

NOW = 5_000
PLAIN = TopicConfig()


def sent(batch: EncodedBatch) -> bytes:
    return stored(batch)


@given(columns(), st.sampled_from(CODECS))
def test_what_a_client_encodes_is_taken_as_it_is(records: dict[str, Any], codec: str) -> None:
    config = TopicConfig(compression_type=codec)  # type: ignore[arg-type]
    (batch,) = encode(**_named(records), rules=Rules(config), now_ms=NOW)
    taken = accepted(sent(batch), config, NOW)
    assert b"".join(taken.stamped(7, 3)) == stored(batch, 7, 3)
    assert (taken.size, taken.span, taken.max_timestamp) == (batch.size, batch.span, batch.max_timestamp)


def _named(records: dict[str, Any]) -> dict[str, Any]:
    return {name: records.get(name) for name in ("values", "keys", "headers", "timestamps")}


@given(st.data())
def test_a_flipped_bit_is_never_taken(draw: Any) -> None:
    raw = bytearray(sent(encoded([b"one", b"two"], keys=[b"k", None])))
    place = draw.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= 1 << draw.draw(st.integers(0, 7))
    if place >= 12:  # offset and epoch are stamped anew anyway, but the checksum covers them, too
        with pytest.raises(CommitLogError):
            accepted(bytes(raw), PLAIN, NOW)


@given(st.binary(max_size=300))
def test_random_bytes_are_never_taken(garbage: bytes) -> None:
    with pytest.raises(CommitLogError):
        accepted(garbage, PLAIN, NOW)


WRONG: dict[str, tuple[Callable[[], EncodedBatch], TopicConfig, type[CommitLogError]]] = {
    "no records": (lambda: encode_empty(3, NOW), PLAIN, InvalidRecordError),
    "holes between its offsets": (lambda: gappy([0, 2, 5], 6), PLAIN, InvalidRecordError),
    "more offsets than records": (lambda: gappy([0, 1], 6), PLAIN, InvalidRecordError),
    "a staged file as its producer": (
        lambda: numbered(encoded([b"x"]), (7, PUBLISHED, 0)), PLAIN, InvalidRecordError),
    "half a producer": (lambda: numbered(encoded([b"x"]), (7, 0, -1)), PLAIN, InvalidRecordError),
    "a record without a key": (
        lambda: encoded([b"x", b"y"], keys=[b"k", None]),
        TopicConfig(cleanup_policy="compact"), InvalidRecordError),
    "no keys": (lambda: encoded([b"x"]), TopicConfig(cleanup_policy="compact"), InvalidRecordError),
    "a record that is too large": (
        lambda: encoded([b"x", bytes(200)]), TopicConfig(max_message_bytes=100), RecordTooLargeError),
    "headers that are too large": (
        lambda: encoded([b"x"], headers=[[("h", bytes(200))]]),
        TopicConfig(max_message_bytes=100), RecordTooLargeError),
    "the client's time": (
        lambda: encoded([b"x"]), TopicConfig(message_timestamp_type="LogAppendTime"), ConfigError),
    "the log's time": (
        lambda: encoded([b"x"], config=TopicConfig(message_timestamp_type="LogAppendTime")),
        PLAIN, ConfigError),
    "a time that is not its own": (
        lambda: retimed(encoded([b"x", b"y"], timestamps=[1, 9]), 4), PLAIN, CorruptionError),
    "the flag of a transaction": (
        lambda: numbered(encoded([b"x"]), (7, 0, 0), TRANSACTIONAL), PLAIN, InvalidRecordError),
    "a marker": (
        lambda: encode_marker(7, 0, commits=False, first_offset=0, timestamp=NOW), PLAIN, InvalidRecordError),
    "a negative time": (lambda: retimed(encoded([b"x"]), -1), PLAIN, InvalidRecordError),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_batch_that_does_not_belong_in_the_topic_is_refused(what: str) -> None:
    make, config, kind = WRONG[what]
    with pytest.raises(kind):
        accepted(sent(make()), config, NOW)


def test_two_batches_at_once_are_refused() -> None:
    raw = sent(encoded([b"x"]))
    with pytest.raises(InvalidRecordError, match="but 176 were sent"):
        accepted(raw + raw, PLAIN, NOW)


def test_a_batch_that_is_cut_off_is_refused() -> None:
    raw = sent(encoded([b"x" * 100]))
    for size in range(0, len(raw), 8):
        with pytest.raises(CorruptionError):
            accepted(raw[:size], PLAIN, NOW)


def test_the_log_s_time_is_put_in_where_it_counts() -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime", compression_type="zstd")
    batch = encoded([b"x" * 100, b"y" * 100], config=config, now_ms=1)
    taken = accepted(sent(batch), config, NOW)
    again = RecordBatch.decode(stored(taken, 3))
    assert [(one.offset, one.timestamp, one.value) for one in again.records()] == [
        (3, NOW, b"x" * 100),
        (4, NOW, b"y" * 100),
    ]


def test_a_batch_is_numbered_without_encoding_it_again() -> None:
    batch = encoded([b"x", b"y"], keys=[b"k", None], headers=[[("h", b"v")], []])
    again = RecordBatch.decode(stored(numbered(batch, (42, 1, 7))))
    assert again.header.producer == (42, 1, 7)
    assert list(again.records()) == list(RecordBatch.decode(stored(batch)).records())
