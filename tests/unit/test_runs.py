"""Small batches that are checked and read together are what they are one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from helpers import decoded, encoded, gappy, stored, write_segment
from hypothesis import given
from hypothesis import strategies as st

from commitlog import CorruptionError, Record, RecordBatch, TopicConfig
from commitlog import segment as segments
from commitlog.batches import compression, format, runs
from commitlog.batches.encode import NO_STRINGS, Columns, EncodedBatch, assemble, numbered
from commitlog.batches.format import MAGIC_BYTES
from commitlog.batches.runs import Joining, Run, extent_of_run, joinable_run, joined, sound_run
from commitlog.config import CompressionType
from commitlog.errors import MissingDependencyError, UnsupportedFormatError
from commitlog.segment import Segment

STAMPED = TopicConfig(message_timestamp_type="LogAppendTime")
CODECS: list[CompressionType] = ["none", "zstd"]
FAR, MOST = 1 << 62, 16 << 20
ANY = Joining(FAR, 64 * 1024, MOST)
REWRITABLE = ANY._replace(rewritable=True)
TIMES = st.sampled_from([0, 5, 1 << 20, 1 << 40, (1 << 63) - 1])
TEXT = st.one_of(st.none(), st.binary(max_size=5), st.binary(min_size=250, max_size=260))


@st.composite
def batches(draw: st.DrawFn, codec: CompressionType) -> EncodedBatch:
    """A batch of a few records, of any kind that a writer may write."""
    if codec == "none" and draw(st.integers(0, 5)) == 0:
        deltas = draw(st.lists(st.integers(0, 20), max_size=4, unique=True).map(sorted))
        return gappy(deltas, (max(deltas) if deltas else 0) + draw(st.integers(1, 300)))
    count = draw(st.integers(1, 6))
    column = st.lists(TEXT, min_size=count, max_size=count)
    values, keys = draw(column), draw(st.one_of(st.none(), column))
    headers = None
    if draw(st.booleans()):
        names = st.sampled_from(["", "name", "\u00fc"])
        one = st.lists(st.tuples(names, TEXT), max_size=3)
        headers = draw(st.lists(one, min_size=count, max_size=count))
    times = draw(st.lists(TIMES, min_size=count, max_size=count))
    return encoded(
        values, keys=keys, headers=headers, timestamps=times, config=TopicConfig(compression_type=codec)
    )


def laid_out(contents: list[EncodedBatch], offset: int = 0) -> list[bytes]:
    pieces = []
    for one in contents:
        pieces.append(stored(one, offset))
        offset += one.span
    return pieces


def reading(raw: bytes) -> list[Record] | None:
    try:
        return list(RecordBatch.decode(raw).records())
    except (CorruptionError, UnsupportedFormatError):
        return None


def one_by_one(pieces: list[bytes]) -> list[Record]:
    return [record for raw in pieces for record in RecordBatch.decode(raw).records()]


def together(raw: bytes, start: int = 0) -> tuple[list[Record], int]:
    """Read everything in runs of alike batches, or alone where there is no run, and say where that ends."""
    found: list[Record] = []
    while start < len(raw):
        result = joined(joinable_run(raw, start, len(raw), ANY), raw, "file", 0, ANY)
        if result is None:
            alone = reading(raw[start:])
            if alone is None:
                break
            found += alone
            start += RecordBatch.decode(raw, start).size_bytes
        else:
            batch, run = result
            assert (batch.base_offset, batch.position) == (int(run.headers["base_offset"][0]), start)
            found += batch.records()
            start = run.end
    return found, start


@given(data=st.data(), offset=st.sampled_from([0, 7, 1 << 40]))
def test_batches_read_together_are_the_same_records(data: Any, offset: int) -> None:
    some = st.sampled_from(CODECS).flatmap(batches)
    pieces = laid_out(data.draw(st.lists(some, min_size=1, max_size=12)), offset)
    raw = b"".join(pieces)
    assert together(raw) == (one_by_one(pieces), len(raw))
    assert together(bytes(24) + raw, 24) == (one_by_one(pieces), len(raw) + 24)


@given(data=st.data())
def test_columns_and_slices_of_a_joined_batch_are_those_of_its_records(data: Any) -> None:
    pytest.importorskip("pyarrow")
    raw = b"".join(laid_out(data.draw(st.lists(batches("none"), min_size=2, max_size=12))))
    result = joined(joinable_run(raw, 0, len(raw), ANY), raw, "file", 0, ANY)
    assert result is not None
    batch, _ = result
    records = list(batch.records())
    middle = data.draw(st.integers(0, batch.next_offset))
    part = batch.slice(middle, batch.next_offset)
    for piece, expected in ((batch, records), (part, [one for one in records if one.offset >= middle])):
        rows = piece.to_arrow()
        rows.validate(full=True)
        assert rows.column("offset").to_pylist() == [one.offset for one in expected]
        assert rows.column("timestamp").cast("int64").to_pylist() == [one.timestamp for one in expected]
        assert rows.column("key").to_pylist() == piece.keys() == [one.key for one in expected]
        assert rows.column("value").to_pylist() == piece.values() == [one.value for one in expected]
        pairs = [
            tuple((pair["key"], pair["value"]) for pair in one) for one in rows.column("headers").to_pylist()
        ]
        assert pairs == piece.headers() == [one.headers for one in expected]


def test_gaps_that_compaction_left_are_kept() -> None:
    raw = b"".join(laid_out([gappy([0, 3, 9], 12), gappy([1], 5), gappy([], 5)], 100))
    records, end = together(raw)
    assert ([record.offset for record in records], end) == ([100, 103, 109, 113], len(raw))


# --- where a run ends


def small(count: int, first: int = 0, size: int = 5) -> list[bytes]:
    return [stored(encoded([b"v" * (number % size)], keys=[b"k"]), first + number) for number in range(count)]


def test_a_run_has_the_whole_batches_before_the_end() -> None:
    pieces = small(20, 7)
    raw = b"".join(pieces)
    assert (len(sound_run(raw, 0, len(raw)).starts), sound_run(raw, 0, len(raw)).end) == (20, len(raw))
    run = sound_run(raw, 0, len(raw) - 1)
    assert (len(run.starts), run.end) == (19, len(raw) - len(pieces[-1]))
    for end in (0, 1, 79, len(pieces[0]) - 1):
        assert len(sound_run(raw, 0, end).starts) == 0


@pytest.mark.parametrize("size", [5, 3000])  # found by their magic, and by their sizes
def test_every_flipped_bit_ends_the_run_before_its_batch(size: int) -> None:
    pieces = [stored(encoded([b"v" * size] * 2), 2 * number) for number in range(3)]
    raw = b"".join(pieces)
    start, end = len(pieces[0]), len(pieces[0]) + len(pieces[1])
    for place in range(start, end, 1 if size == 5 else 97):
        hurt = bytearray(raw)
        hurt[place] ^= 1 << place % 8
        run = sound_run(bytes(hurt), 0, len(raw))
        assert (len(run.starts), run.end) == (1, start), place


def test_what_does_not_follow_ends_the_run() -> None:
    (one,) = small(1)
    for other in (one, bytes(100), b"", b"x" * 200, stored(encoded([b"a"]), 2)):
        assert len(sound_run(one + other, 0, len(one + other)).starts) == 1


def test_a_record_that_looks_like_a_batch_hides_none() -> None:
    inner = b"".join(small(3))
    contents = [encoded([b"a" * number + inner, bytes(16) + MAGIC_BYTES * 8]) for number in range(12)]
    pieces = laid_out(contents)
    assert len(sound_run(b"".join(pieces), 0, sum(map(len, pieces))).starts) == 12
    assert together(b"".join(pieces)) == (one_by_one(pieces), sum(map(len, pieces)))


@pytest.mark.parametrize("claimed", [0, 8, 64, 72, 80, 84, 1 << 20, (1 << 32) - 1])
@pytest.mark.parametrize("behind", [0, 8, 40, 100])
def test_a_header_that_is_cut_off_or_claims_an_odd_size_ends_the_run(claimed: int, behind: int) -> None:
    raw = b"".join(small(20)) + bytes(16) + MAGIC_BYTES + claimed.to_bytes(4, "little") + bytes(behind)
    assert len(sound_run(raw, 0, len(raw)).starts) == 20


def kinds_of_end() -> list[bytes]:
    """Batches at the offset 16 that cannot be joined with small plain ones before it."""
    return [
        stored(encoded([b"a"], config=STAMPED), 16),
        stored(encoded([b"a"]), 16, leader_epoch=1),
        stored(encoded([b"a"] * 1024), 16),
        stored(encoded([b"a" * 70_000]), 16),
    ]


def joinable(raw: bytes, wanted: Joining = ANY) -> Run:
    return joinable_run(raw, 0, len(raw), wanted)


def extent(raw: bytes, start: int, fewest: int, wanted: Joining = ANY) -> int:
    return extent_of_run(raw, start, len(raw), wanted, fewest)[0]


def test_a_run_ends_where_the_size_the_epoch_or_the_kind_of_timestamps_changes() -> None:
    for other in kinds_of_end():
        raw = b"".join(small(16)) + other
        assert len(sound_run(raw, 0, len(raw)).starts) == 17
        assert len(joinable(raw).starts) == 16
        assert extent_of_run(raw, 0, len(raw), ANY, 16) == (len(raw) - len(other), 16)
        assert extent_of_run(raw, len(small(1)[0]), len(raw), ANY, 16) == (0, 15)


def test_a_run_ends_at_the_offset_that_ends_the_read() -> None:
    raw = b"".join(small(30))
    assert len(joinable(raw, ANY._replace(end_offset=12)).starts) == 12
    assert extent(raw, 0, 16, ANY._replace(end_offset=16)) > 0
    assert extent(raw, 0, 16, ANY._replace(end_offset=15)) == 0


def test_a_run_stays_on_one_side_of_the_offset_that_keeps_batches_apart() -> None:
    raw = b"".join(small(30))
    apart = REWRITABLE._replace(apart=12)
    run = joinable(raw, apart)
    assert len(run.starts) == 12
    assert len(joinable_run(raw, run.end, len(raw), apart).starts) == 18
    assert (extent(raw, 0, 12, apart) > 0, extent(raw, 0, 13, apart)) == (True, 0)


def test_a_run_has_as_many_rows_as_may_be_read_at_once() -> None:
    raw = b"".join(laid_out([encoded([b"v"] * 1_000)] * 20))
    assert len(joinable(raw).starts) == 16
    assert len(joinable(raw, ANY._replace(most_bytes=5_000 * 16)).starts) == 5


def test_a_run_takes_no_more_offsets_than_a_batch_can() -> None:
    """They are put together as one batch by compaction."""
    raw = b"".join(laid_out([gappy([0], 1 << 31)] * 10))
    assert len(sound_run(raw, 0, len(raw)).starts) == 10
    assert len(joinable(raw).starts) == 2


def test_records_that_can_be_rewritten_have_no_producer_codec_or_horizon() -> None:
    packed = TopicConfig(compression_type="zstd")
    marked = assemble(Columns(NO_STRINGS, NO_STRINGS), 1, 5, 0, delete_horizon=9)
    for other, read in (
        (encoded([b"a" * 999], config=packed), 17),
        (numbered(encoded([b"a"]), (5, 0, 0)), 17),
        (numbered(encoded([b"a"]), (-1, -2, -1)), 17),
        (numbered(encoded([b"a"]), (-1, -1, 7)), 17),
        (marked, 17),
    ):
        raw = b"".join(small(16)) + stored(other, 16)
        assert len(joinable(raw).starts) == read
        assert len(joinable(raw, REWRITABLE).starts) == 16
        second = len(small(1)[0])
        assert bool(extent(raw, second, 16)) == (read == 17)
        assert extent(raw, second, 16, REWRITABLE) == 0


PACKED = TopicConfig(compression_type="zstd")


def test_compressed_batches_are_joined_up_to_what_they_unpack_to() -> None:
    raw = b"".join(laid_out([encoded([bytes(100_000)], config=PACKED)] * 20))
    wanted = ANY._replace(small_bytes=200_000)
    for most, count in ((1 << 20, 10), (250_000, 2), (1 << 40, 20)):
        result = joined(joinable(raw, wanted), raw, "file", 0, wanted._replace(most_bytes=most))
        assert result is not None
        assert (len(result[1].starts), len(result[0])) == (count, count)
    assert joined(joinable(raw, wanted), raw, "file", 0, wanted._replace(most_bytes=199_999)) is None
    assert joined(joinable(raw), raw, "file", 0, ANY) is None  # each is too large to be joined


def test_a_joined_batch_knows_its_size_on_disk_and_in_memory() -> None:
    raw = b"".join(laid_out([encoded([bytes(5_000)], config=PACKED)] * 20))
    result = joined(joinable(raw), raw, "file", 0, ANY)
    assert result is not None
    for batch in (result[0], result[0].slice(3, 7)):
        assert batch.size_bytes == len(raw) < 5_000
        assert 100_000 < batch.body_bytes < 101_000
        assert batch.unpacked_bytes == batch.body_bytes


def test_a_codec_that_is_not_installed_hides_no_record_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = small(5)
    raw = b"".join(pieces) + stored(encoded([bytes(500)], config=PACKED), 5)

    def missing(codec_id: int) -> Any:
        raise MissingDependencyError("zstd", "zstandard")

    monkeypatch.setattr(compression, "get", missing)
    result = joined(joinable(raw), raw, "file", 0, ANY)
    assert result is not None
    assert list(result[0].records()) == one_by_one(pieces)


# --- batches with a right checksum and wrong contents


def resealed(raw: bytearray) -> bytes:
    base_offset, epoch = format.STAMP.unpack_from(raw)[:2]
    raw[:16] = format.stamp(base_offset, epoch, crc32c(raw[16:]))
    return bytes(raw)


@given(data=st.data(), place=st.integers(32, 200), byte=st.integers(0, 255))
def test_a_forged_batch_is_read_as_it_is_alone_or_ends_the_run(data: Any, place: int, byte: int) -> None:
    pieces = laid_out(data.draw(st.lists(batches("none"), min_size=3, max_size=6)))
    number = data.draw(st.integers(0, len(pieces) - 1))
    forged = bytearray(pieces[number])
    forged[place if place < len(forged) else 32] = byte
    pieces[number] = resealed(forged)
    alone = [reading(raw) for raw in pieces]
    records, end = together(b"".join(pieces))
    ends = [sum(map(len, pieces[: count + 1])) for count in range(len(pieces))]
    read = 0 if end == 0 else ends.index(end) + 1
    assert None not in alone[:read]
    assert records == [record for found in alone[:read] for record in found or []]


def with_field(raw: bytes, place: int, value: bytes) -> bytes:
    forged = bytearray(raw)
    forged[place : place + len(value)] = value
    return resealed(forged)


COUNT, BODY = 52, 64  # where the record count stands in a batch, and where its body starts
FORGED = {
    "more records than offsets": with_field(stored(encoded([b"a", b"b"]), 5), COUNT, b"\x03"),
    "a negative offset": resealed(bytearray((-5).to_bytes(8, "little", signed=True) + small(1)[0][8:])),
    "an unknown form of keys": with_field(stored(encoded([b"a"]), 5), BODY, b"\x09"),
    "an unknown form of timestamps": with_field(stored(encoded([b"a"]), 5), BODY + 2, b"\x09"),
    "unknown nulls": with_field(stored(encoded([b"a"]), 5), BODY + 4, b"\x03"),
    "two kinds of headers": with_field(stored(encoded([b"a"]), 5), BODY + 6, b"\x02"),
    "headers that are not there": with_field(stored(encoded([b"a"]), 5), BODY + 6, b"\x01"),
    "a value longer than the batch": with_field(stored(encoded([b"a"]), 5), BODY + 12, b"\xff"),
    "bytes after the last column": with_field(stored(encoded([b"a" * 50]), 5), BODY + 12, b"\x01"),
    "offsets that do not grow": with_field(stored(gappy([0, 3, 9], 12), 5), BODY + 17, b"\x09"),
    "an offset behind the batch": with_field(stored(gappy([0, 3, 9], 12), 5), BODY + 18, b"\x0c"),
    "values that are all missing and take bytes": with_field(stored(encoded([b"a"]), 5), BODY + 5, b"\x01"),
    "a header's name that is not UTF-8": with_field(
        stored(encoded([b"a"], headers=[[("name", b"v")]]), 5), BODY + 33, b"\xff"
    ),
    "a timestamp of more than 63 bits": with_field(
        stored(encoded([b"a", b"b"], timestamps=[0, 1 << 40]), 5), BODY + 24, b"\xff" * 8
    ),
    "a timestamp above the latest": with_field(
        stored(encoded([b"a", b"b"], timestamps=[0, 1 << 40]), 5), BODY + 29, b"\x02"
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_is_refused_alone_ends_a_run(what: str) -> None:
    forged = FORGED[what]
    assert reading(forged) is None
    before, after = small(5), small(5, 7)
    raw = b"".join([*before, forged, *after])
    assert together(raw) == (one_by_one(before), sum(map(len, before)))


@pytest.mark.parametrize("what", FORGED)
def test_a_run_has_the_batches_that_are_sound_one_by_one(what: str) -> None:
    raw = small(1, 4)[0] + FORGED[what]
    start = len(raw) - len(FORGED[what])
    try:
        alone = 1 + (format.check(raw, start, len(raw), "file", 0).base_offset == 5)
    except (CorruptionError, UnsupportedFormatError):
        alone = 1
    assert len(sound_run(raw, 0, len(raw)).starts) == alone
    assert len(sound_run(raw, start, len(raw)).starts) == alone - 1


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 129, 200])
def test_missing_values_of_many_rows_stay_missing(rows: int) -> None:
    values = [None if row % 3 else b"%d" % row for row in range(rows)]
    pieces = laid_out([encoded(values, keys=[b"k"] * rows), encoded(values[::-1])] * 3)
    assert together(b"".join(pieces)) == (one_by_one(pieces), sum(map(len, pieces)))


def test_a_run_has_no_more_headers_than_a_batch_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MAX_HEADERS", 30)
    pieces = laid_out([encoded([b"a"], headers=[[("name", b"v")] * 10])] * 5)
    result = joined(joinable(b"".join(pieces)), b"".join(pieces), "file", 0, ANY)
    assert result is not None
    assert len(result[1].starts) == 3


@pytest.mark.parametrize("stamped", [False, True])
def test_a_joined_batch_has_the_header_of_its_batches(stamped: bool) -> None:
    times = [500, 900, 100]
    config = STAMPED if stamped else TopicConfig()
    contents = [encoded([b"v"], timestamps=[time], now_ms=time, config=config) for time in times]
    raw = b"".join(stored(one, number, leader_epoch=3) for number, one in enumerate(contents))
    result = joined(joinable(raw), raw, "file", 0, ANY)
    assert result is not None
    header, alone = result[0].header, RecordBatch.decode(raw).header
    assert (header.leader_epoch, header.flags) == (3, alone.flags)
    assert (header.base_timestamp, header.max_timestamp) == (100, 900)
    assert [record.timestamp for record in result[0].records()] == times


# --- through a segment


def test_batches_that_do_not_follow_one_another_are_damage(tmp_path: Path) -> None:
    pieces = [*small(40), *small(40, 42)]
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"".join(pieces))
    segment = Segment(str(path), 0, sum(map(len, pieces)))
    ways: list[Iterator[Iterable[Record]]] = [
        (one.records() for one in segment.batches()),
        (one.records() for one, _ in segment.combined_batches(0)),
        (records for records, _ in segment.record_runs(0, FAR)),
    ]
    for way in ways:
        found: list[Record] = []
        with pytest.raises(CorruptionError, match="offset 42 where 40 was expected"):
            for records in way:
                found += records
        assert len(found) == 40


@pytest.mark.parametrize("start", [0, 1, 100, 180])
def test_batches_are_where_they_say_they_are(tmp_path: Path, start: int) -> None:
    """Also where the end of a segment is read instead of mapped."""
    path = write_segment(tmp_path, [encoded([b"v" * 30, b"w"])] * 200)
    segment = Segment(str(path), 0, Path(path).stat().st_size)
    places = {one.base_offset: one.position for one in segment.batches()}
    list(segment.record_runs(0, 2 * start))  # the next read begins where this one ends
    found = list(segment.combined_batches(2 * start))
    assert [one.position for one, _ in found] == [places[one.base_offset] for one, _ in found]
    assert [after for _, after in found] == [one.next_offset for one, _ in found]
    if found:
        assert (found[0][0].base_offset, found[-1][1]) == (2 * start, 400)


def test_a_joined_batch_stands_for_at_least_two(tmp_path: Path) -> None:
    """Compaction takes one that stands for a single stored batch to have its bytes."""
    path = write_segment(tmp_path, [encoded([b"a", b"b"], keys=[b"k", b"l"])] * 8)
    raw = bytearray(Path(path).read_bytes())
    raw[len(raw) // 8 + 70] ^= 1
    Path(path).write_bytes(raw)
    batch, count = next(Segment.open(path).rewritable_batches(0, FAR))
    assert (count, len(batch.raw)) == (1, batch.size_bytes)


@pytest.mark.parametrize("per_batch", [1, 2, 30])
def test_a_segment_of_small_batches_is_read_the_same_in_every_way(tmp_path: Path, per_batch: int) -> None:
    contents = [encoded([b"%d %d" % (n, row) for row in range(per_batch)]) for n in range(3_000)]
    segment = Segment.open(write_segment(tmp_path, contents))
    expected = [record for one in segment.batches() for record in one.records()]
    assert len(expected) == 3_000 * per_batch
    for start, end in ((0, FAR), (1, 7), (1_000, 2_001), (2_990, FAR), (17, 17)):
        wanted = [one for one in expected if start <= one.offset < end]
        assert [one for run, _ in segment.record_runs(start, end) for one in run] == wanted
        parts = [one.slice(start, end) for one, _ in segment.combined_batches(start, end)]
        assert [record for one in parts for record in one.records()] == wanted
    assert sum(count for _, count in segment.rewritable_batches(0, FAR)) == 3_000
    assert sum(1 for _ in segment.combined_batches(0)) < 60


def test_damage_in_a_run_is_met_after_all_records_before_it(tmp_path: Path) -> None:
    contents = [encoded([b"%d" % number]) for number in range(3_000)]
    path = write_segment(tmp_path, contents)
    raw = bytearray(Path(path).read_bytes())
    raw[2_000 * 88 + 81] ^= 1
    Path(path).write_bytes(raw)
    segment = Segment.open(path)
    found: list[Record] = []
    with pytest.raises(CorruptionError) as caught:
        for run, _ in segment.record_runs(0, FAR):
            found += run
    assert (caught.value.position, len(found)) == (2_000 * 88, 2_000)


def test_batches_that_cannot_be_joined_are_read_alone(tmp_path: Path) -> None:
    """Timestamps before the epoch: no writer writes them, and a run does not take them."""
    pieces = []
    for number in range(500):
        raw = bytearray(stored(encoded([b"v"], timestamps=[5]), number))
        raw[32:48] = (-5).to_bytes(8, "little", signed=True) * 2
        pieces.append(resealed(raw))
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"".join(pieces))
    found = [record for run, _ in Segment.open(path).record_runs(0, FAR) for record in run]
    assert [record.timestamp for record in found] == [-5] * 500


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each run was looked for in."""
    looked: list[int] = []

    def counting(buffer: Any, start: int, end: int, wanted: Joining) -> Run:
        looked.append(end - start)
        return joinable_run(buffer, start, end, wanted)

    monkeypatch.setattr(segments, "joinable_run", counting)
    return looked


def test_batches_of_very_different_sizes_are_found_from_each_of_them_on() -> None:
    """By their magic where they are small on average, and otherwise each by the one before."""
    sizes = [0, 0, 9_000, 0, 9_000, *[0] * 20, *[9_000] * 20, 0]
    pieces = laid_out([encoded([b"v" * size]) for size in sizes])
    raw = b"".join(pieces)
    starts = [sum(map(len, pieces[:number])) for number in range(len(pieces))]
    for number, start in enumerate(starts):
        assert runs.pure_starts(memoryview(raw), start, len(raw)).tolist() == starts[number:]
        assert runs.pure_starts(memoryview(raw), start, len(raw) - 8).tolist() == starts[number:-1]


def mixed_kinds() -> list[EncodedBatch]:
    """A run of 20 plain batches, then one that cannot be joined with them, again and again."""
    stamped, plain = (
        encoded([b"v"], config=TopicConfig(message_timestamp_type="LogAppendTime")),
        encoded([b"v"]),
    )
    return ([plain] * 20 + [stamped]) * 300


def sized_like_others() -> list[EncodedBatch]:
    inner = encoded([b"a" * 40 + bytes(16) + MAGIC_BYTES * 8])
    return [encoded([b"v"]), encoded([b"w"]), inner] * 2_000


@pytest.mark.parametrize("contents", [mixed_kinds, sized_like_others])
def test_no_byte_is_looked_at_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: Any
) -> None:
    segment = Segment.open(write_segment(tmp_path, contents()))
    for read in (lambda: segment.combined_batches(0), lambda: segment.rewritable_batches(0, FAR)):
        looked = counted(monkeypatch)
        found = [one for one, _ in read()]
        assert found[-1].next_offset == segment.find_next_offset()
        assert sum(looked) < 8 * segment.size_bytes


def test_a_run_is_looked_for_where_the_one_before_would_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: it ended because of its rows, and headers of twice as many batches were read for nothing."""
    segment = Segment.open(write_segment(tmp_path, [encoded([b"v" * 90] * 150)] * 600))
    looked = counted(monkeypatch)
    assert sum(len(one) for one, _ in segment.combined_batches(0)) == 90_000
    assert sum(looked[1:]) < 1.3 * segment.size_bytes


def test_few_arrow_batches_come_of_many_small_batches_of_mixed_kinds(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from commitlog.batches import arrow

    stamped, plain = (
        encoded([b"v"], config=TopicConfig(message_timestamp_type="LogAppendTime")),
        encoded([b"v"]),
    )
    segment = Segment.open(write_segment(tmp_path, [plain, stamped] * 1_500))
    found = list(arrow.stream(one for one, _ in segment.combined_batches(0)))
    assert sum(one.num_rows for one in found) == 3_000
    assert len(found) == 1


def test_a_joined_batch_says_what_it_is() -> None:
    raw = b"".join(small(9, 3))
    result = joined(sound_run(raw, 0, len(raw)), raw, "file", 1_000, ANY)
    assert result is not None
    batch, _ = result
    assert (batch.base_offset, batch.next_offset, len(batch), batch.position) == (3, 12, 9, 1_000)
    assert decoded(encoded([b"v"])).header.flags == batch.header.flags
