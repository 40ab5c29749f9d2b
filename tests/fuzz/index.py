"""Indexes: damaged .index and .timeindex files beside a sound segment. They may never give a wrong answer."""

from __future__ import annotations

from pathlib import Path
from random import Random
from struct import pack_into, unpack_from

from crc32c import crc32c

from commitlog import Segment
from commitlog.index import OffsetIndex, TimeIndex
from fuzz import world
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.mutations import mutated
from fuzz.segment import batches_of, read_forged
from fuzz.world import BASES, END, HIGH, LOW, Logs, check_log, segment_name

_WHOLE_LOG = 100
_SEAL_BYTES = 24


class IndexTarget(Target):
    """The indexes of [40, 80), which is sealed, and of [80, 100), which is active."""

    name = "index"
    kinds = 4

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._logs = Logs(directory)
        files = self._logs.templates[0]
        self._seeds = {
            (base, suffix): _trimmed(files[segment_name(base, suffix)])
            for base in (LOW, HIGH)
            for suffix in (OffsetIndex.suffix, TimeIndex.suffix)
        }
        self._places: dict[int, dict[int, int]] = {}  # of each segment: where the batch of an offset starts
        self._latest: dict[int, int] = {}
        for base, end in ((LOW, HIGH), (HIGH, END)):
            data, position = files[segment_name(base)], 0
            self._path(base, ".log").write_bytes(data.rstrip(b"\0") if base == HIGH else data)
            self._places[base] = {}
            for offset, one in zip(range(base, end), batches_of(data), strict=True):
                self._places[base][offset] = position
                position += len(one)
            self._path(base, ".log").write_bytes(data[:position])
            self._latest[base] = max(map(world.timestamp, range(base, end)))

    def _path(self, base: int, suffix: str) -> Path:
        return self.directory / Path(segment_name(base, suffix)).name

    def seeds(self) -> list[Input]:
        order = [
            (LOW, OffsetIndex.suffix),
            (HIGH, OffsetIndex.suffix),
            (LOW, TimeIndex.suffix),
            (HIGH, TimeIndex.suffix),
        ]
        return [Input(self._seeds[one], 4 + number) for number, one in enumerate(order)]

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        if random.random() < 0.3:  # whole entries that are moved
            words = [data[place : place + 8] for place in range(0, len(data), 8)]
            if words:
                source, target = random.randrange(len(words)), random.randrange(len(words))
                words[target] = words[source] if random.random() < 0.6 else bytes(8)
            return b"".join(words)
        return mutated(random, data, donor)

    def forge(self, random: Random, data: bytes) -> bytes | None:
        if len(data) < _SEAL_BYTES + 8:
            return None
        found = bytearray(mutated(random, data, data))
        if len(found) >= _SEAL_BYTES:
            _seal(found, random.choice((1, 2)))
        return bytes(found)

    def run(self, given: Input) -> str:
        choice = given.choice
        base = (LOW, HIGH)[choice % 2]
        suffix = (OffsetIndex.suffix, TimeIndex.suffix)[choice // 2 % 2]
        if choice // 4 % _WHOLE_LOG == 0:
            template = choice // 1000 % len(self._logs.templates)
            path = self._logs.lay_out(template, segment_name(base, suffix), given.data)
            mode = world.MODES[choice // 5000 % len(world.MODES)]
            if given.forged:
                return read_forged(path, mode)
            return check_log(path, mode, END)
        for other in self._seeds:
            if other[0] == base:
                self._path(*other).write_bytes(given.data if other[1] == suffix else self._seeds[other])
        end = HIGH if base == LOW else END
        segment = Segment.open(self._path(base, ".log"))
        segment.active = base == HIGH
        self._look_up(segment, base, end, given)
        return f"{base}{suffix}"

    def _look_up(self, segment: Segment, base: int, end: int, given: Input) -> None:
        random = Random(given.choice)
        for offset in (base, end - 1, *(random.randrange(base, end) for _ in range(4))):
            position = segment.position_of(offset)
            if position != self._places[base][offset] and not given.forged:
                raise WrongAnswer("an offset is elsewhere", f"{offset} at {position}")
        for offset in (base, end - 1, *(random.randrange(base, end) for _ in range(4))):
            asked = world.timestamp(offset) + random.choice((-1, 0, 0, 1))
            position = segment.position_of_time(asked)
            first = next((one for one in range(base, end) if world.timestamp(one) >= asked), None)
            if first is not None and position > self._places[base][first] and not given.forged:
                raise WrongAnswer("a record as late lies before", f"{asked}: {first} before {position}")
        if segment.active or given.forged:
            return
        if segment.max_timestamp != self._latest[base]:
            raise WrongAnswer("another latest timestamp", segment.max_timestamp)
        if segment.find_next_offset() != end:
            raise WrongAnswer("it ends elsewhere")


def _trimmed(data: bytes) -> bytes:
    """An index with fewer of the zeros at its end, which make most damage harmless."""
    return data[: len(data.rstrip(b"\0")) + 7 & ~7] + bytes(64)


def _seal(data: bytearray, words: int) -> None:
    """Make the seal of an index right."""
    entries = len(data) - _SEAL_BYTES
    count = 0
    while (count + 1) * 8 * words <= entries:
        (place,) = unpack_from("<Q", data, _SEAL_BYTES + 8 * words * (count + 1) - 8)
        if not place & 0xFFFF_FFFF:
            break
        count += 1
    size, next_offset = unpack_from("<QQ", data)
    raw = bytearray(24)
    pack_into("<QQQ", raw, 0, size, next_offset, count)
    crc = crc32c(bytes(raw), crc32c(bytes(data[_SEAL_BYTES : _SEAL_BYTES + count * 8 * words])))
    pack_into("<Q", data, 16, crc << 32 | count)


assert BASES == (0, LOW, HIGH)
