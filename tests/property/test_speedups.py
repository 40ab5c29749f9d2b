"""The compiled functions of commitlog_speedups beside the Python code that they replace: on sound, damaged,
forged and random bytes both return the same.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import xxhash
from crc32c import crc32c
from helpers import encoded, map_tails, stored
from hypothesis import example, given
from hypothesis import strategies as st

import commitlog
from commitlog import (
    CommitLog,
    CommitLogError,
    ConsumerRecord,
    InvalidRecordError,
    Partition,
    Producer,
    Record,
    RecordFuture,
    TopicConfig,
    speedups,
    topic,
)
from commitlog.batches import columns, encode, format, runs, single
from commitlog.partitions.page import StatePage
from commitlog.topics import partitioner
from commitlog.topics.partitioner import HashPartitioner
from property import strategies

REQUIRED = os.environ.get("COMMITLOG_REQUIRE_SPEEDUPS") == "1"
native: Any = speedups.native
pytestmark = pytest.mark.skipif(
    native is None and not REQUIRED, reason=f"commitlog-speedups is {speedups.status}"
)
FAR = 1 << 63
CLOCK = {"now": time.time}
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # syncs cost nothing there


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


def outcome(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """What a call returns, or the type of what it raises."""
    try:
        return function(*args, **named)
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
        arguments = raw, position, max(len(raw) - less, 0), end_offset
        expected, found = single.pure_read_ones(*arguments), single.read_ones(*arguments)
        assert found == expected
        assert same_types(found[0], expected[0])
        assert all(type(record) is Record for record in found[0])
        assert [hash(record) for record in found[0]] == [hash(tuple(record)) for record in expected[0]]


def test_a_type_of_records_that_has_more_than_fields_is_filled_by_its_constructor() -> None:
    class Larger(Record):
        pass

    found, end = native.read_ones(Larger, RUN, 0, len(RUN), FAR)
    assert (found, end) == single.pure_read_ones(RUN, 0, len(RUN), FAR)
    assert {type(record) for record in found} == {Larger}
    found[0].note = "it has its dictionary"
    assert vars(found[0]) == {"note": "it has its dictionary"}


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


@pytest.mark.parametrize("walk", [single.pure_walk_ones, single.walk_ones])
def test_a_walk_ends_at_the_last_offset(walk: Callable[..., tuple[int, int]]) -> None:
    last = format.LAST_OFFSET
    raw = b"".join(one(b"v", None, 77, 0, offset, 0) for offset in (last - 1, last, last + 1))
    places: list[tuple[int, int, int]] = []
    assert walk(memoryview(raw), 0, len(raw), last - 1, 0, places) == (2 * len(raw) // 3, last + 1)
    assert [offset for offset, _, _ in places] == [last - 1, last]


@given(buffers(), st.integers(0, 60), st.integers(0, 300))
@example(RUN, 0, 0)
def test_runs_of_batches_are_the_same(raw: bytes, place: int, less: int) -> None:
    view, end = memoryview(raw + bytes(-len(raw) % 8)), max(len(raw) - less, 0) // 8 * 8
    expected = runs.pure_starts(view, place * 8, end)
    found = runs._native_starts(view, place * 8, end)
    assert found.tolist() == expected.tolist()
    ends = np.append(expected[1:], end if len(expected) else np.empty(0)).astype(np.int64)
    assert runs._joined_parts(raw, expected, ends) == runs.pure_joined_parts(raw, expected, ends)
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


# --- single appends ------------------------------------------------------------------------------

sizes = st.sampled_from([0, 1, 7, 8, 20, 90, 500, 3_000])
plain = st.none() | st.builds(lambda size, byte: bytes([byte]) * size, sizes, st.integers(0, 255))
odd = plain | st.sampled_from(["text", 5, bytearray(b"array"), memoryview(b"view"), b"large" * 1_000])
times = st.integers(1_000, 1_020) | st.sampled_from([0, 2**63 - 1, 2**63, -1, True, "now", 5_000, 900_000])
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("append"), st.fixed_dictionaries({"value": plain, "key": plain}))] * 6,
        st.tuples(
            st.just("append"),
            st.fixed_dictionaries(
                {"value": odd},
                optional={
                    "key": odd,
                    "timestamp": times,
                    "headers": strategies.headers,
                    "sync": st.booleans(),
                    "epoch": st.just(1),
                },
            ),
        ),
        st.tuples(st.just("append_many"), st.fixed_dictionaries({"values": st.lists(plain, max_size=3)})),
        st.tuples(st.sampled_from(["sync", "roll"]), st.just({})),
    ),
    min_size=10,
    max_size=60,
)
configs = st.sampled_from(
    [
        {},
        {"index_interval_bytes": 200},
        {"segment_bytes": 4_096},
        {"segment_ms": 1_000},
        {"max_message_bytes": 600},
        {"cleanup_policy": "compact"},
        {"compression_type": "zstd"},
        {"message_timestamp_type": "LogAppendTime"},
        {"flush_messages": 7},
    ]
)


def done(partition: Partition, verb: str, arguments: dict[str, Any]) -> Any:
    """What a step returns, or what it raises, as text."""
    given = {"timestamp": 1_010, **arguments} if verb == "append" else dict(arguments)
    positional = [given.pop("value")] if verb == "append" else []
    try:
        return getattr(partition, verb)(*positional, **given)
    except (CommitLogError, TypeError) as error:
        return f"{type(error).__name__}: {error}".replace("Appender.", "")


def stored_in(partition: Partition) -> Any:
    """The bytes of the segments, where they end for this process and for others."""
    found = []
    for segment in partition.segments:
        with open(segment.path, "rb") as file:
            found.append((segment.base_offset, file.read(segment.size_bytes)))
    words = partition._state.words
    return found, partition.next_offset, words[StatePage.END_POSITION], words[StatePage.NEXT]


@given(steps, configs)
def test_appends_leave_the_same_bytes(
    steps: list[tuple[str, dict[str, Any]]], config: dict[str, Any]
) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        map_tails(patch)
        patch.setattr("time.time_ns", lambda: 1_234_000_000)
        logs = [commitlog.open(f"{folder}/{name}") for name in ("compiled", "python")]
        one, other = (log.create_topic("t", config={"flush_ms": -1, **config}).partition(0) for log in logs)
        other.append = other._appender.append  # type: ignore[method-assign]
        logged = config.get("message_timestamp_type") == "LogAppendTime"  # then the clock differs
        for verb, arguments in steps:
            assert done(one, verb, arguments) == done(other, verb, arguments)
        if not logged:
            assert stored_in(one) == stored_in(other)
        hidden = [
            [record._replace(timestamp=0) if logged else record for record in it] for it in (one, other)
        ]
        assert hidden[0] == hidden[1]
        for log in logs:
            log.close()


@pytest.fixture
def mapped(log: CommitLog, partition: Partition, mapped_tail: None) -> Partition:
    log._housekeeper.stop()  # its threads take the lock, and sync
    for _ in range(5):
        partition.append(b"first", timestamp=2**62)
    assert partition._state.writer.tail_end
    return partition


def compiled(partition: Partition, slow: Callable[..., Any], store: Callable[..., Any]) -> Callable[..., Any]:
    """The partition's compiled append(), with these functions for what it does not do."""
    state, words = partition._state, StatePage
    return native.single_append(slow, store, state, type(state.lock), words.END_POSITION, words.NEXT)


def test_a_plain_record_is_appended_without_python(mapped: Partition) -> None:
    append = compiled(mapped, pytest.fail, pytest.fail)
    before = time.time_ns() // 1_000_000
    assert [append(b"v"), append(b"w", key=b"k"), append(None, key=b"k", sync=False)] == [5, 6, 7]
    assert append(b"x", headers=(), timestamp=77) == 8
    found = list(mapped.records(5))
    assert [(one.key, one.value) for one in found] == [(None, b"v"), (b"k", b"w"), (b"k", None), (None, b"x")]
    assert all(before <= one.timestamp <= before + 60_000 for one in found[:3])
    assert found[3].timestamp == 77


def test_what_is_no_plain_record_is_left_to_python_with_all_arguments(mapped: Partition) -> None:
    append = compiled(mapped, lambda *positional, **named: (positional, named), pytest.fail)
    assert append(b"v", key="k") == ((b"v",), {"key": "k"})
    assert append(b"v", nothing=1) == ((b"v",), {"nothing": 1})
    assert append(b"v", headers=[("h", b"")], sync=True) == ((b"v",), {"headers": [("h", b"")], "sync": True})
    assert append(b"v", timestamp=2**63) == ((b"v",), {"timestamp": 2**63})
    assert append(b"v", b"k") == ((b"v", b"k"), {})
    assert append() == ((), {})
    assert append(value=b"v") == ((), {"value": b"v"})
    assert mapped.next_offset == 5


def test_what_cannot_be_stored_at_once_is_packed_and_left_to_python(mapped: Partition) -> None:
    append, state = compiled(mapped, pytest.fail, lambda *given: given), mapped._state
    crc, body, size = single.encode_one(b"v", b"k", 77, 0, 1 << 20)

    def left(**named: Any) -> Any:
        return append(b"v", **{"key": b"k", "timestamp": 77, **named})

    assert left(sync=True) == (crc, body, size, 77, True)
    assert left(timestamp=2**62 + 1)[3] == 2**62 + 1  # the time index needs it
    with state.lock:
        assert left() == (crc, body, size, 77, False)
    state.waiters.attended(1)
    assert left() == (crc, body, size, 77, False)
    state.waiters.attended(-1)
    state.append_refusal = lambda: CommitLogError("no")
    assert left() == (crc, body, size, 77, False)
    state.append_refusal = None
    state.counts_records = True
    assert left() == (crc, body, size, 77, False)
    state.counts_records = False
    assert left() == 5
    mapped.sync()  # unmaps the tail
    assert left() == (crc, body, size, 77, False)
    assert mapped.next_offset == 6


def test_threads_that_append_and_roll_get_every_offset_once(mapped: Partition) -> None:
    first, each = mapped.next_offset, 3_000

    def work() -> list[int]:
        found = []
        for number in range(each):
            found.append(mapped.append(b"v" * (number % 50), key=b"k"))
            if number % 500 == 0:
                mapped.roll()
        return found

    with ThreadPoolExecutor(4) as pool:
        offsets = [offset for part in [pool.submit(work) for _ in range(4)] for offset in part.result()]
    assert sorted(offsets) == list(range(first, first + 4 * each))
    assert [record.offset for record in mapped.records(first)] == sorted(offsets)


# --- producers -----------------------------------------------------------------------------------

words = st.sampled_from([b"", b"v", b"value" * 10, b"long" * 100]) | plain
sendings = st.lists(
    st.one_of(
        *[st.fixed_dictionaries({"value": words, "key": words, "timestamp": st.integers(0, 9)})] * 4,
        st.fixed_dictionaries(
            {"value": odd, "timestamp": times},
            optional={
                "key": odd,
                "headers": strategies.headers,
                "partition": st.sampled_from([None, 0, 1, 2, 9]),
                "on_delivery": st.just(None),
                "nothing": st.just(1),
            },
        ),
    ),
    max_size=60,
)


@given(sendings, st.sampled_from([1, 3]), st.sampled_from([0, 1, "all"]), st.sampled_from([400, 1 << 20]))
def test_producers_send_the_same(
    given_records: list[dict[str, Any]], partitions: int, acks: Any, batch_size: int
) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        found = []
        for compiled_too in (True, False):
            with commitlog.open(f"{folder}/{compiled_too}") as log:
                topic = log.create_topic("t", partitions=partitions, config={"max_message_bytes": 2_000})
                producer = log.producer(acks=acks, batch_size=batch_size, linger_ms=60_000)
                send = producer.send if compiled_too else partial(Producer.send, producer)
                sent = [outcome(send, "t", **record) for record in given_records]
                producer.flush()
                results = [one if isinstance(one, type) else one.result() for one in sent]
                found.append((results, [list(partition) for partition in topic.partitions]))
        assert found[0] == found[1]


def test_a_small_plain_record_is_sent_without_python(log: CommitLog) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=60_000) as producer:
        producer.send("t", b"value", b"key")  # opens a batch, for records of this size
        send = native.fast_send(pytest.fail, producer._filling, pytest.fail, RecordFuture, CLOCK)
        before = time.time_ns() // 1_000_000
        futures = [send("t", b"v"), send("t", b"v", b"k"), send("t", value=b"w", key=None, timestamp=77)]
        producer.flush()
        found = [future.result() for future in futures]
    assert [one.offset for one in found] == [1, 2, 3]
    assert all(before <= one.timestamp <= before + 60_000 for one in found[:2])
    assert found[2].timestamp == 77


def test_other_records_are_left_to_python_with_all_arguments(log: CommitLog) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=60_000) as producer:
        producer.send("t", b"value", b"key")
        send = native.fast_send(
            lambda *positional, **named: (positional, named),
            producer._filling,
            pytest.fail,
            RecordFuture,
            CLOCK,
        )
        assert send("other", b"v") == (("other", b"v"), {})
        assert send("t", b"larger than the first") == (("t", b"larger than the first"), {})
        assert send("t", b"v", b"k", [("h", b"")]) == (("t", b"v", b"k", [("h", b"")]), {})
        assert send("t", b"v", partition=0) == (("t", b"v"), {"partition": 0})
        assert send("t", b"v", timestamp=-1) == (("t", b"v"), {"timestamp": -1})
        assert send("t", b"v", timestamp=True) == (("t", b"v"), {"timestamp": True})
        assert send("t", b"v", value=b"twice") == (("t", b"v"), {"value": b"twice"})
        assert send("t", None) == (("t", None), {})
        assert send(*"12345678") == (tuple("12345678"), {})
        assert send() == ((), {})


def test_a_clock_that_a_test_puts_in_place_counts(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = log.create_topic("t").partition(0)
    with log.producer() as producer:
        monkeypatch.setattr("time.time_ns", lambda: 5_000_000_000)
        monkeypatch.setattr("commitlog.clients.producer.now", lambda: 6.0)
        for _ in range(3):
            partition.append(b"v")
            producer.send("t", b"v").result()
    assert [record.timestamp for record in partition] == [5_000, 6_000] * 3


def test_a_compiled_function_in_the_place_of_the_clock_counts(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log.create_topic("t").partition(0)
    with log.producer() as producer:
        monkeypatch.setattr("time.time_ns", deque([5_000_000_000] * 99).popleft)
        monkeypatch.setattr("commitlog.clients.producer.now", deque([6.0] * 99).popleft)
        for _ in range(3):
            partition.append(b"v")
            producer.send("t", b"v").result()
    assert [record.timestamp for record in partition] == [5_000, 6_000] * 3


def test_a_producer_with_a_send_of_its_own_keeps_it(log: CommitLog) -> None:
    class Counting(Producer):
        sent = 0

        def send(self, *args: Any, **named: Any) -> RecordFuture:
            self.sent += 1
            return super().send(*args, **named)

    log.create_topic("t")
    plain_one = log.producer()
    with Counting(log, plain_one.config, plain_one._throttle) as producer:
        for _ in range(3):
            producer.send("t", b"v")
    assert producer.sent == 3


def test_a_send_that_a_test_puts_in_the_place_of_all_producers_is_called(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = Producer.send, list[Any]()

    def spy(self: Producer, *args: Any, **named: Any) -> RecordFuture:
        seen.append(args)
        return real(self, *args, **named)

    log.create_topic("t")
    monkeypatch.setattr(Producer, "send", spy)
    with log.producer() as producer:
        for _ in range(3):
            producer.send("t", b"v")
    assert seen == [("t", b"v")] * 3


def test_a_record_that_comes_too_late_for_its_batch_is_sent_again(log: CommitLog) -> None:
    log.create_topic("t")
    with log.producer(linger_ms=60_000) as producer:
        producer.send("t", b"value", b"key")
        producer._filling["t"].limit = 0  # as close() leaves it
        seen: list[Any] = []
        send = native.fast_send(
            lambda *given: "again", producer._filling, lambda *given: seen.append(given), RecordFuture, CLOCK
        )
        assert send("t", b"v") == "again"
        assert [ticket for _, ticket in seen] == [1]
        failing = native.fast_send(pytest.fail, producer._filling, lambda *given: 1 / 0, RecordFuture, CLOCK)
        with pytest.raises(ZeroDivisionError):
            failing("t", b"v")


# --- columns -------------------------------------------------------------------------------------

strings = st.one_of(
    st.lists(st.binary(max_size=12), max_size=40),
    st.lists(st.sampled_from([b"", b"a" * 255, b"b" * 256, b"c" * 65_535, b"d" * 65_536]), max_size=6),
    st.lists(st.just(b"same"), max_size=40),
    st.lists(odd, max_size=6),
)


@given(strings, st.booleans())
def test_byte_strings_are_packed_the_same(items: list[Any], as_tuple: bool) -> None:
    given_items = tuple(items) if as_tuple else items

    def packed(function: Callable[..., Any]) -> Any:
        try:
            return function(given_items, "value")
        except InvalidRecordError as error:
            return str(error)

    assert packed(columns.pack_bytes) == packed(columns.pure_pack_bytes)


# --- whole batches -------------------------------------------------------------------------------

lengths = st.sampled_from([0, 1, 2, 7, 8, 9, 90, 255, 256, 65_535, 65_536, 70_000])
counts = st.integers(1, 20) | st.sampled_from([1, 63, 64, 65, 255, 256, 1_000, 1_023, 1_024, 1_025, 1_100])
producers = st.sampled_from(
    [
        *[format.NO_PRODUCER, (0, 0, 0), (2**63 - 1, 2**15 - 1, 2**31 - 1), (-(2**63), -(2**15), -(2**31))]
        * 4,
        *[(2**63, 0, 0), (0, 2**15, 0), (0, 0, 2**31), (True, 0, 0), (1.5, 0, 0), [7, 8, 9], (1, 2)],
    ]
)
RULES = [
    encode.Rules(config)
    for config in [
        TopicConfig(),
        TopicConfig(max_message_bytes=300),
        TopicConfig(cleanup_policy="compact"),
        TopicConfig(message_timestamp_type="LogAppendTime"),
        TopicConfig(compression_type="zstd"),
    ]
]


class Bytes(bytes):
    """What encode() takes, too, but not the compiled part of it."""


class Items(list[Any]):
    """A list that may do anything."""


@st.composite
def column_of(draw: Any, count: int) -> list[Any]:
    """So many strings and nulls: a few of any length, and then the same short one again and again."""
    content = st.builds(lambda length, byte: bytes([byte]) * length, lengths, st.integers(0, 255))
    kind = draw(
        st.sampled_from([content, st.none() | content, st.none(), st.just(b""), st.binary(max_size=9)])
    )
    first = draw(st.lists(kind, max_size=12))
    found: list[Any] = (first + [draw(strategies.optional)] * count)[:count]
    if draw(st.integers(0, 9)) == 0:
        found[draw(st.integers(0, count - 1))] = draw(odd | st.just(Bytes(b"other")))
    return found


def described(function: Callable[..., Any], *args: Any) -> Any:
    """The batch that encode() returns, or what it raises, as text."""
    try:
        found = function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [
        (one.crc, b"".join(one.parts), one.size, one.span, one.max_timestamp, one.producer) for one in found
    ]


@given(
    st.data(),
    counts,
    st.sampled_from(RULES),
    producers,
    st.sampled_from([0, 0, 16, 16, 16, 48, 64, 1, 2**16]),
)
def test_batches_are_encoded_the_same(
    data: Any, count: int, rules: encode.Rules, producer: Any, more_flags: int
) -> None:
    values, keys = data.draw(column_of(count)), data.draw(st.none() | column_of(count))
    kind = data.draw(st.sampled_from([list, list, list, tuple, tuple, Items]))
    now_ms = data.draw(strategies.timestamps | st.sampled_from([-1, 2**63]))
    given_columns = kind(values), None if keys is None else kind(keys), None, None
    arguments = *given_columns, rules, now_ms, producer, more_flags
    assert described(encode.encode, *arguments) == described(encode.pure_encode, *arguments)


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=1_100))
def test_values_of_any_length_are_encoded_the_same(values: list[bytes]) -> None:
    arguments = values, None, None, None, RULES[0], 77
    assert described(encode.encode, *arguments) == described(encode.pure_encode, *arguments)


def test_a_checksum_and_the_bytes_are_what_is_written_without_the_compiled_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_batches = [
        ([b"%d" % row for row in range(count)], [None, b"k", b""] * count, (5, 1, 0))
        for count in range(1, 200)
    ]
    found = [
        described(encode.encode, values, keys[: len(values)], None, None, RULES[0], 77, producer, 16)
        for values, keys, producer in given_batches
    ]
    monkeypatch.setattr(encode, "pack_bytes", columns.pure_pack_bytes)
    monkeypatch.setattr(columns, "pack_bytes", columns.pure_pack_bytes)
    monkeypatch.setattr(encode, "crc32c", crc32c)
    assert found == [
        described(encode.pure_encode, values, keys[: len(values)], None, None, RULES[0], 77, producer, 16)
        for values, keys, producer in given_batches
    ]


def plain_batch(values: Any, keys: Any = None, **other: Any) -> Any:
    """What the compiled function makes of these records, with plain settings unless others are given."""
    settings = {"now": 77, "flags": 16, "producer": (5, 1, 0), "keyed": False, "most_bytes": 1 << 20, **other}
    return native.encode_plain(values, keys, *settings.values())


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        ([b"v"], None),
        ((b"v", None), [b"k", b""]),
        ([None] * 1_024, (None,) * 1_024),
        ([b"v" * 65_536] * 2, [b"k" * 65_536] * 2),
    ],
    ids=["one", "a tuple and a list", "the most records", "the most bytes"],
)
def test_a_plain_batch_is_encoded_without_python(
    values: Any, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "pure_encode", pytest.fail)
    (batch,) = encode.encode(values, keys, None, None, RULES[0], 77)
    assert (batch.span, batch.max_timestamp, batch.producer) == (len(values), 77, format.NO_PRODUCER)


@pytest.mark.parametrize(
    ("values", "keys", "other"),
    [
        ([], None, {}),
        ([b"v", "text"], None, {}),
        ([b"v", bytearray(b"w")], None, {}),
        ([b"v", memoryview(b"w")], None, {}),
        ([b"v", Bytes(b"w")], None, {}),
        ([b"v", 5], None, {}),
        ([b"v"], ["k"], {}),
        ([b"v"], [Bytes(b"k")], {}),
        (Items([b"v"]), None, {}),
        (iter([b"v"]), None, {}),
        (b"v", None, {}),
        (None, None, {}),
        ([b"v"], Items([b"k"]), {}),
        ([b"v"], b"k", {}),
        ([b"v"], [], {}),
        ([b"v"], [b"k", b"k"], {}),
        ([b"v"] * 1_025, None, {}),
        ([b"v" * 65_536] * 2 + [b"v"], None, {}),
        ([None] * 3, [b"k" * 65_536] * 2 + [b"k"], {}),
        ([b"v", b"w"], None, {"keyed": True}),
        ([b"v", b"w"], [b"k", None], {"keyed": True}),
        ([b"v", b"w" * 5], [b"k", b""], {"most_bytes": 5}),
        ([b"v"], None, {"most_bytes": 2**63}),
        ([b"v"], None, {"flags": 1}),
        ([b"v"], None, {"flags": format.DELETE_HORIZON}),
        ([b"v"], None, {"flags": 2**16}),
        ([b"v"], None, {"flags": -1}),
        ([b"v"], None, {"now": -1}),
        ([b"v"], None, {"now": 2**63}),
        ([b"v"], None, {"now": True}),
        ([b"v"], None, {"now": np.int64(7)}),
        ([b"v"], None, {"producer": None}),
        ([b"v"], None, {"producer": (1, 2)}),
        ([b"v"], None, {"producer": (1, "2", 3)}),
        ([b"v"], None, {"producer": (2**63, 0, 0)}),
        ([b"v"], None, {"producer": (0, 2**15, 0)}),
        ([b"v"], None, {"producer": (0, 0, 2**31)}),
    ],
)
def test_what_is_no_plain_batch_is_left_to_python(values: Any, keys: Any, other: dict[str, Any]) -> None:
    assert plain_batch(values, keys, **other) is None


def test_records_of_exactly_the_largest_size_are_encoded() -> None:
    assert plain_batch([b"1234", b""], [b"5", b"12345"], most_bytes=9) is not None
    assert (
        plain_batch([b"1234", b""], [b"5", b"12345"], most_bytes=8) is None
    )  # none is larger, but one may be
    rules = encode.Rules(TopicConfig(max_message_bytes=5))
    assert len(encode.encode([b"1234", b""], [b"5", b"12345"], None, None, rules, 77)) == 1


def test_without_memory_nothing_is_encoded_and_nothing_kept() -> None:
    testcapi: Any = pytest.importorskip("_testcapi")
    values, keys = [b"v" * 600, None, b"w"], [b"key" * 100, b"", None]
    held = values, keys, values[0], keys[0]  # the rest is shared with the whole interpreter
    before = [sys.getrefcount(one) for one in held]
    expected, packed, failures = plain_batch(values, keys), native.pack_strings(values), 0
    for function, arguments, result in (
        (native.encode_plain, (values, keys, 77, 16, (5, 1, 0), False, 1 << 20), expected),
        (native.pack_strings, (values,), packed),
    ):
        for allocation in range(12):
            testcapi.set_nomemory(allocation, allocation + 1)
            try:
                found = function(*arguments)
            except MemoryError:
                found = MemoryError
            finally:
                testcapi.remove_mem_hooks()
            failures += found is MemoryError
            assert found is MemoryError or found == result
    assert failures > 4
    del arguments
    assert [sys.getrefcount(one) for one in held] == before


# --- records -------------------------------------------------------------------------------------


def fields_of(number: int) -> tuple[Any, ...]:
    return ("t", 0, number, 5, None, b"value", ())


def consumer_records(count: int, *, fail: bool = False) -> Any:
    for number in range(count):
        yield ConsumerRecord(*fields_of(number))
    if fail:
        raise ZeroDivisionError


@given(st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_records_are_collected_the_same(limit: int, count: int, fail: bool) -> None:
    collected = []
    for take in (partial(native.take_records, ConsumerRecord), extend):
        found: list[Any] = [1]
        rest = consumer_records(count, fail=fail)
        error = outcome(take, found, rest, limit)
        collected.append((found, error, outcome(next, rest, "the end")))
    assert collected[0] == collected[1]


def extend(found: list[Any], rows: Any, limit: int) -> None:
    found.extend(islice(rows, limit))


class NamedTopic(str):
    """A string that could be part of a cycle."""

    owner: Any


def test_only_records_that_cannot_be_in_a_cycle_are_hidden_from_the_garbage_collector() -> None:
    plain = ConsumerRecord(*fields_of(0))
    headers = plain._replace(headers=(("name", b"value"),))
    named = plain._replace(topic=NamedTopic("t"))
    other = tuple(plain)
    found: list[Any] = []
    native.take_records(ConsumerRecord, found, iter([plain, headers, named, other, 5]), 9)
    assert found == [plain, headers, named, other, 5]
    assert [gc.is_tracked(one) for one in found[:3]] == [False, True, True]
    assert plain._replace(offset=1) == fields_of(1)


def test_a_poll_of_many_records_returns_the_same(log: CommitLog) -> None:
    partition = log.create_topic("many").partition(0)
    partition.append_many([b"%d" % number for number in range(5_000)], keys=[b"k"] * 5_000)
    with log.consumer("many") as consumer:
        (few,), (more,) = consumer.poll(max_records=100).values(), consumer.poll(max_records=5_000).values()
    assert [one.value for one in few + more] == [one.value for one in partition.records()]
    assert gc.is_tracked(few[0])
    assert not gc.is_tracked(more[0])


# --- keys ----------------------------------------------------------------------------------------


def divided(keys: Any, given_columns: list[Any], partitions: int, chooser: Any) -> list[Any]:
    parts = topic.divide(given_columns, keys, chooser, partitions)
    return [
        (part.number, [column and list(column) for column in part.columns], part.rows and part.rows())
        for part in parts
    ]


def slow_chooser() -> HashPartitioner:
    return HashPartitioner(xxhash.xxh3_64_intdigest, partitioner.xxhash_many)


@given(
    st.lists(st.one_of(st.binary(max_size=300), odd), min_size=1, max_size=40),
    st.sampled_from([1, 2, 4, 7, 1000, 65_536, 70_000]),
    st.booleans(),
    st.booleans(),
)
def test_records_are_divided_the_same(keys: list[Any], partitions: int, as_tuple: bool, timed: bool) -> None:
    values = [b"%d" % row for row in range(len(keys))]
    given_columns = [values, tuple(keys) if as_tuple else keys, None, range(len(keys)) if timed else None]
    found, expected = (
        outcome(divided, keys, given_columns, partitions, chooser)
        for chooser in (partitioner.make_partitioner("xxhash"), slow_chooser())
    )
    assert found == expected


def test_a_key_of_every_length_is_hashed_the_same() -> None:
    keys = [os.urandom(length) for length in range(400) for _ in range(5)]
    rows = [number.to_bytes(2) for number in range(len(keys))]
    found = native.divide_by_key(keys, [rows], 65_536, xxhash.xxh3_64_intdigest)
    numbers = {row: number for number, (share,) in found for row in share}
    assert [numbers[row] for row in rows] == [xxhash.xxh3_64_intdigest(key) % 65_536 for key in keys]


def test_columns_that_change_while_a_long_key_is_hashed_are_left_to_python() -> None:
    keys, values = [b"k" * 200] * 3, [b"v"] * 3

    def shorten(key: bytes) -> int:
        del values[1:]
        return 0

    assert native.divide_by_key(keys, [values], 2, shorten) is None

    def shorten_keys(key: bytes) -> int:
        del keys[1:]
        return 0

    assert native.divide_by_key(keys, [[b"v"] * 3], 2, shorten_keys) is None


class Looking:
    """Looks at every list when the garbage collector removes it, as a heap profiler does."""

    def __init__(self) -> None:
        self.cycle = self

    def __del__(self) -> None:
        for one in gc.get_objects():
            if type(one) is list and one:
                one[0]


def test_no_list_is_seen_before_it_is_filled() -> None:
    keys, threshold = [b"k%d" % number for number in range(200)], gc.get_threshold()
    gc.set_threshold(20, 1, 1)
    try:
        for _ in range(100):
            Looking()
            found = native.divide_by_key(keys, [keys, None], 16, xxhash.xxh3_64_intdigest)
            assert sum(len(share[0]) for _, share in found) == 200
    finally:
        gc.set_threshold(*threshold)
    assert all(gc.is_tracked(share[0]) for _, share in found)


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
        (lambda: native.join_parts(b"1234", np.array([0]), np.array([5])), ValueError),
        (lambda: native.join_parts(b"1234", np.array([0]), "text"), TypeError),
        (lambda: native.batch_starts(b"", None, 0), TypeError),
        (lambda: native.take_records(ConsumerRecord, (), iter([]), 1), TypeError),
        (lambda: native.take_records(ConsumerRecord, [], [1], 1), TypeError),
        (lambda: native.take_records(ConsumerRecord, [], iter([]), None), TypeError),
        (lambda: native.take_records(5, [], iter([]), 1), TypeError),
        (lambda: native.divide_by_key([b"k"], [[b"v"]], "4", hash), TypeError),
        (lambda: native.divide_by_key([b"k"], [[b"v"]], 4), TypeError),
        (lambda: native.divide_by_key([b"k" * 129], [[b"v"]], 4, len(b"no function")), TypeError),
        (lambda: native.divide_by_key([b"k" * 129], [[b"v"]], 4, lambda key: -1), OverflowError),
        (lambda: native.divide_by_key([b"k" * 129], [[b"v"]], 4, bytes), TypeError),
        (lambda: native.encode_plain([b"v"], None), TypeError),
        (lambda: native.single_append(print, print, None, int, -1, 0), TypeError),
        (lambda: native.single_append(print, print, None, 5, 0, 0), TypeError),
        (lambda: native.single_append(print, print, None, int, 0, 0)(b"v"), AttributeError),
        (lambda: native.fast_send(print, [], print, RecordFuture, {}), TypeError),
        (lambda: native.fast_send(print, {"t": 5}, print, RecordFuture, {})("t", b"v"), AttributeError),
    ],
)
def test_arguments_that_make_no_sense_are_refused(call: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_places_outside_of_the_buffer_hold_nothing() -> None:
    for position, limit in [(-1, 1600), (5000, 9000), (0, -1), (2**62, 2**63 - 1)]:
        assert native.read_ones(Record, RUN, position, limit, FAR) == ([], position)
        assert native.batch_starts(RUN, position, limit) == b""


class Box:
    """A part of a cycle; the garbage collector clears it last."""

    cycle: list[Any]
    late: Any


class Late:
    """Calls a function when it is removed, if the function is still there."""

    def __init__(self, function: Callable[..., Any], args: list[Any]) -> None:
        self.function, self.args = weakref.ref(function), args

    def __del__(self) -> None:
        function = self.function()
        if function is not None:
            called.append(outcome(function, *self.args))


class First:
    """Puts a Late into a box when the garbage collector finalizes it."""

    box: Box
    function: Any
    args: list[Any]

    def __del__(self) -> None:
        self.box.late = Late(self.function, self.args)


called: list[Any] = []


@pytest.mark.parametrize("kind", ["append", "send"])
def test_a_function_that_the_garbage_collector_has_cleared_raises(kind: str) -> None:
    first = First()
    if kind == "append":
        first.function, first.args = native.single_append(first, print, Box(), int, 0, 0), [b"v"]
    else:
        first.function, first.args = native.fast_send(first, {}, print, Box, {}), ["t", b"v"]
    first.box = box = Box()
    box.cycle = kept = [first.function, box]
    kept.append(kept)  # it is cleared after the box, and keeps the function until then
    called.clear()
    del first, box, kept
    gc.collect()
    assert called == [ReferenceError]


def test_no_call_keeps_memory_or_its_buffer(mapped: Partition, log: CommitLog) -> None:
    append, log_producer = mapped.append, log.producer(linger_ms=60_000, batch_size=10_000)
    send, log_topic = log_producer.send, mapped.name.rpartition("-")[0]
    raw, hash_long = bytearray(RUN + one(b"", None, 0, 0, 50, 0)[:-1] + b"\xff"), xxhash.xxh3_64_intdigest
    before = None
    for turn in range(20):
        for _ in range(2_000):
            native.read_ones(Record, raw, 0, len(raw), FAR)
            native.walk_ones(raw, 0, len(raw), 0, 0, [])
            native.batch_starts(raw, 0, len(raw))
            native.crc32c_many(raw, np.array([0]), np.array([80]))
            outcome(native.crc32c_many, raw, np.array([0]), np.array([1 << 40]))
            native.join_parts(raw, np.array([0, 5]), np.array([80, 9]))
            outcome(native.join_parts, raw, np.array([0]), b"short")
            outcome(native.read_ones, Record, raw, 0, 0, None)
            append(b"value", key=b"key")
            outcome(append, b"value", b"key")
            send(log_topic, b"value", b"key")
            outcome(send, log_topic, b"value", 5)
            native.pack_strings([b"a", b"bc"] * 20)
            native.pack_strings((b"a", 5))
            native.pack_strings((b"a", None))
            native.encode_plain([b"a", None] * 20, [b"k", b"key"] * 20, 77, 16, (5, 1, 0), False, 100)
            native.encode_plain([b"a", None], [b"k", b"key"], 77, 16, (5, 1, 0), False, 1)
            native.encode_plain([b"a", 5], None, 77, 16, (5, 1, 0), False, 100)
            native.divide_by_key([b"a", b"b" * 200] * 3, [[b"v"] * 6, None], 3, hash_long)
            native.divide_by_key([b"a", None], [[b"v"] * 2], 3, hash_long)
            native.take_records(ConsumerRecord, [], consumer_records(3), 2)
            outcome(native.take_records, ConsumerRecord, [], consumer_records(1, fail=True), 5)
            outcome(native.divide_by_key, [b"a", b"b" * 200], [[b"v"] * 2], 3, len(raw))
        gc.collect()
        if turn == 5:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert before is not None
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4_000
    )  # kilobytes, after 28,000 turns
    raw.append(0)  # BufferError if a call had kept it
