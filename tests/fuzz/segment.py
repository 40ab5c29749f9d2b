"""Segments: damaged .log files, read by themselves in every way, and now and then as part of a log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from struct import pack_into, unpack_from

from crc32c import crc32c

from commitlog import CommitLogError, Record, Segment
from commitlog.batches import compression
from commitlog.batches.batch import RecordBatch
from commitlog.batches.format import CODEC_MASK, COMPRESSED, HEADER_BYTES, MAGIC_BYTES, MAGIC_POSITION, stamp
from commitlog.batches.scan import check_batches
from commitlog.repair import verify_segments
from commitlog.segment import segment_path
from fuzz import world
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.mutations import mutated, number
from fuzz.world import GAPS, HIGH, LOW, Logs, check_log, check_run, segment_name, segment_seeds

_WHOLE_LOG = 100  # one input in this many is opened as part of a log


class SegmentTarget(Target):
    """A .log file [40, 80) of a partition."""

    name = "segment"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._path = segment_path(str(directory), LOW)
        self._logs = Logs(directory)
        self._ways: tuple[Callable[[Segment, Input], str], ...] = (
            _read_records, _read_from_the_middle, _read_batches, _read_combined, _read_columns, _read_headers,
            _check, _verify, _find_times,
        )  # fmt: skip

    def seeds(self) -> list[Input]:
        return [Input(data) for data in segment_seeds()]

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        if random.random() < 0.15:
            return _shuffled(random, data, donor)
        return mutated(random, data, donor)

    def forge(self, random: Random, data: bytes) -> bytes | None:
        return forged(random, data)

    def run(self, given: Input) -> str:
        if given.choice % _WHOLE_LOG == 0:
            return self._run_whole(given)
        with open(self._path, "wb") as file:
            file.write(given.data)
        segment = Segment.open(self._path)
        way = self._ways[given.choice // _WHOLE_LOG % len(self._ways)]
        return way(segment, given)

    def _run_whole(self, given: Input) -> str:
        template = given.choice // _WHOLE_LOG % len(self._logs.templates)
        mode = world.MODES[given.choice // 1000 % len(world.MODES)]
        path = self._logs.lay_out(template, segment_name(LOW), given.data)
        if given.forged:
            return read_forged(path, mode)
        return check_log(path, mode, self._logs.durable[template])


def read_forged(path: Path, mode: dict[str, object]) -> str:
    """Open a log whose checksums are right, whatever it says: it can be read, or says why not."""
    import commitlog

    with commitlog.open(path, **mode) as log:  # type: ignore[arg-type]
        partition = log.topic(world.TOPIC).partition(0)
        for count, _ in enumerate(partition.records()):
            if count > 100_000:
                raise WrongAnswer("more records than there can be")
        partition.verify()
    return "opened"


# --- ways of reading ---------------------------------------------------------------------------------


def _read_records(segment: Segment, given: Input) -> str:
    return _runs(segment, given, LOW)


def _read_from_the_middle(segment: Segment, given: Input) -> str:
    return _runs(segment, given, LOW + given.choice // 7 % (HIGH - LOW))


def _runs(segment: Segment, given: Input, start: int) -> str:
    expected = start
    for records, after in segment.record_runs(start, 1 << 62):
        if given.forged:
            _count(records)
            continue
        check_run(records, expected, after)
        expected = after
    return f"to {expected}"


def _read_batches(segment: Segment, given: Input) -> str:
    expected = LOW
    for one in segment.batches():
        if given.forged:
            _count(one.records())
            continue
        if one.base_offset != expected:
            raise WrongAnswer("a batch stands where another should", f"{one.base_offset} for {expected}")
        expected = one.next_offset
        check_run(one.records(), one.base_offset, expected)
    return f"to {expected}"


def _read_combined(segment: Segment, given: Input) -> str:
    expected = LOW
    for one, _ in segment.combined_batches(LOW):
        if given.forged:
            _count(one.records())
            continue
        check_run(one.records(), expected, one.next_offset)
        expected = one.next_offset
    return f"to {expected}"


def _read_columns(segment: Segment, given: Input) -> str:
    """Read columns by themselves: each must say what the records say."""
    for one in segment.batches():
        part = one.slice(one.base_offset + given.choice // 7 % 3, one.next_offset)
        offsets, times = part.offsets.tolist(), part.timestamps.tolist()
        keys, values, headers = part.keys(), part.values(), part.headers()
        lengths = (part.key_lengths.tolist(), part.value_lengths.tolist())
        if not len(part) == len(offsets) == len(times) == len(keys) == len(values) == len(headers):
            raise WrongAnswer("columns of different lengths")
        for column, its in zip((keys, values), lengths, strict=True):
            if [-1 if item is None else len(item) for item in column] != its:
                raise WrongAnswer("lengths that are not those of the column")
        table = part.to_arrow()
        if (
            table.num_rows != len(part)
            or table["value"].to_pylist() != values
            or table["key"].to_pylist() != keys
        ):
            raise WrongAnswer("Arrow says something else")
        if not given.forged:
            found = zip(offsets, times, keys, values, headers, strict=True)
            check_run([Record(*row) for row in found], part.base_offset, part.next_offset)
    return "columns"


def _read_headers(segment: Segment, given: Input) -> str:
    places = [position for position, _ in segment.headers()]
    return f"{len(places)} headers"


def _check(segment: Segment, given: Input) -> str:
    """Check it as recovery does: what is sound reaches as far as what can be read."""
    expected, damage, *_ = check_batches(segment.path, 0, segment.size_bytes, LOW)
    if not given.forged:
        if not LOW <= expected <= HIGH:
            raise WrongAnswer("sound batches beyond the end", expected)
        read = LOW
        try:
            for one in segment.batches(LOW):
                read = one.next_offset
        except CommitLogError as error:
            if damage is None:
                raise WrongAnswer("no damage to recovery, but to a reader", error) from None
        if read < expected:
            raise WrongAnswer("not all that is sound is read", f"{read} of {expected}")
    if damage is not None:
        raise damage
    return f"to {expected}"


def _verify(segment: Segment, given: Input) -> str:
    report = verify_segments([segment], HIGH)
    if report.ok and not given.forged:
        _runs(segment, given, LOW)
        if report.batches == 0:
            raise WrongAnswer("nothing is there, and that is fine")
    for one in report.damage:
        if not one.path.startswith(segment.path.removesuffix(".log")):
            raise WrongAnswer("damage that names another file", one.path)
    return f"{len(report.damage)} damaged"


def _find_times(segment: Segment, given: Input) -> str:
    """Retention asks for the latest timestamp, and deletes on its word."""
    latest = segment.max_timestamp
    if not given.forged:
        there = [one.timestamp for batch in segment.batches() for one in batch.records()]
        if there and latest != max(there) and not GAPS:
            raise WrongAnswer(f"the latest timestamp is {max(there)}, not {latest}")
        if latest not in _TIMES:
            raise WrongAnswer("no record has the latest timestamp", latest)
    return "times"


_TIMES = {-1, *(world.timestamp(offset) for offset in range(world.END))}


def _count(records: Iterable[object]) -> None:
    for count, _ in enumerate(records):
        if count > 100_000:
            raise WrongAnswer("more records than there can be")


# --- structure ---------------------------------------------------------------------------------------


def batches_of(data: bytes) -> list[bytes]:
    """The batches at the start of a file, as far as their sizes can be believed."""
    found, place = [], 0
    while data[place + MAGIC_POSITION : place + MAGIC_POSITION + 4] == MAGIC_BYTES:
        (size,) = unpack_from("<I", data, place + 20) if len(data) >= place + 24 else (0,)
        if size < HEADER_BYTES or place + size > len(data):
            break
        found.append(data[place : place + size])
        place += size
    return found


def _shuffled(random: Random, data: bytes, donor: bytes) -> bytes:
    """Whole, sound batches, but in another order, doubled, left out, or from another file."""
    batches, others = batches_of(data), batches_of(donor)
    if not batches:
        return mutated(random, data, donor)
    for _ in range(random.randrange(1, 3)):
        place, kind = random.randrange(len(batches)), random.randrange(4)
        if kind == 0 and len(batches) > 1:
            del batches[place]
        elif kind == 1:
            batches.insert(place, random.choice(batches))
        elif kind == 2:
            other = random.randrange(len(batches))
            batches[place], batches[other] = batches[other], batches[place]
        elif others:
            batches[place] = random.choice(others)
    return b"".join(batches)


_FIELDS = ((0, 8), (8, 4), (20, 4), (24, 8), (32, 8), (40, 8), (48, 4), (52, 4), (56, 4), (60, 2), (62, 2))


def forged(random: Random, data: bytes) -> bytes | None:
    """Change a field of a header, or some bytes of a body, and make the checksum right again."""
    batches = batches_of(data)
    if not batches:
        return None
    place = random.randrange(len(batches))
    one = bytearray(batches[place])
    if random.random() < 0.4:
        position, width = random.choice(_FIELDS)
        one[position : position + width] = number(random, width).to_bytes(width, "little")
    else:
        one = _with_other_body(random, one)
    size = random.choice((len(one), *unpack_from("<I", one, 20))) if random.random() < 0.1 else len(one)
    pack_into("<I", one, 20, size)
    base_offset, leader_epoch = unpack_from("<qi", one)
    one[:16] = stamp(base_offset, leader_epoch, crc32c(bytes(one[16:])))
    batches[place] = bytes(one)
    return b"".join(batches)


def _with_other_body(random: Random, one: bytearray) -> bytearray:
    (flags,) = unpack_from("<H", one, 62)
    body = bytes(one[HEADER_BYTES:])
    if flags & CODEC_MASK and flags & CODEC_MASK <= compression.ZSTD and random.random() < 0.8:
        packing = compression.get(flags & CODEC_MASK)
        raw = body
        with contextlib.suppress(Exception):  # each package has its own
            raw_size, stored_size = COMPRESSED.unpack_from(body)
            raw = packing.decompress(body[8 : 8 + stored_size], min(raw_size, 1 << 16))
        raw = _mutated_body(random, raw)
        stored = packing.compress([raw])
        size = number(random, 4) if random.random() < 0.1 else len(raw)
        body = COMPRESSED.pack(size, len(stored)) + stored
    else:
        body = _mutated_body(random, body)
    found = one[:HEADER_BYTES] + body
    return found + bytes(-len(found) % 8)


def _mutated_body(random: Random, body: bytes) -> bytes:
    if body and random.random() < 0.5:  # the descriptor, or the columns behind it
        start = bytearray(body[:64])
        start[random.randrange(len(start))] = random.choice((0, 1, 2, 3, 4, 5, 127, 128, 255))
        return bytes(start) + body[64:]
    return mutated(random, body, body[::-1])


def decoded(data: bytes) -> RecordBatch:
    """The first batch of some bytes."""
    return RecordBatch.decode(data, path="bytes")
