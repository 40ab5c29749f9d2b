"""What is derived from batches: snapshots of producers, and the leader epochs."""

from __future__ import annotations

from pathlib import Path
from random import Random
from struct import Struct

from crc32c import crc32c

from commitlog.partitions import epochs
from commitlog.partitions.epochs import EpochHistory, EpochStart
from commitlog.partitions.producer_state import KEPT_BATCHES, Producers, snapshot_path
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.mutations import mutated, number

_OFFSET, _NOW = 41_250, 1_700_000_000_000
_CRC = Struct("<I")


class SnapshotTarget(Target):
    """A `.snapshot`: who has sent what. One that is not whole is not believed."""

    name = "snapshot"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._path = Path(snapshot_path(str(directory), _OFFSET))
        self._known: dict[bytes, str] = {}
        for producers in (0, 1, 3):
            for published in (False, True):
                self._add(producers, published)

    def _add(self, count: int, published: bool) -> None:
        producers = Producers()
        producers.next_offset = _OFFSET
        for number_ in range(count):
            for sent in range(1 + 3 * number_):
                producers.note((1 << 40 | number_, number_, sent * 10), 10, sent * 100, _NOW + sent)
        if published:
            producers.note((0xF3A1, -2, 500), 20, 40_000, 0)
        self._path.unlink(missing_ok=True)
        producers.save(str(self.directory))
        self._known[self._path.read_bytes()] = _shown(producers)

    def seeds(self) -> list[Input]:
        return [Input(data) for data in self._known]

    def forge(self, random: Random, data: bytes) -> bytes | None:
        body = bytearray(data[8:-4])
        if body and random.random() < 0.6:
            place = random.randrange(len(body) // 8) * 8
            place, width = random.choice(((place, 8), (place, 4), (place, 2), (place + 2, 1)))
            body[place : place + width] = number(random, width).to_bytes(width, "little")
        else:
            body = bytearray(mutated(random, bytes(body), data))
        return data[:8] + bytes(body) + _CRC.pack(crc32c(bytes(body), _OFFSET))

    def run(self, given: Input) -> str:
        self._path.write_bytes(given.data)
        found = Producers.load(str(self._path))
        if found is None:
            return "not believed"
        if not given.forged and _shown(found) != self._known.get(given.data):
            raise WrongAnswer("other producers than those that were saved")
        self._use(found)
        return f"{len(found)}"

    def _use(self, producers: Producers) -> None:
        """Do what a partition does with them."""
        for producer_id, one in list(producers._known.items()):
            if not 1 <= len(one.batches) <= KEPT_BATCHES:
                raise WrongAnswer("a producer with no batch, or too many", one.batches)
            sequence = one.next_sequence
            producers.find((producer_id, one.epoch, sequence), 1, self.named)
            producers.note((producer_id, one.epoch, sequence), 1, _OFFSET, _NOW)
        producers.forget_before(_NOW)
        self._path.unlink()
        producers.save(str(self.directory))
        if Producers.load(str(self._path)) is None:
            raise WrongAnswer("what is saved is not believed")


def _shown(producers: Producers) -> str:
    known = {key: (one.epoch, one.batches) for key, one in producers._known.items()}
    return f"{known} {producers.published} {producers.next_offset}"


class EpochsTarget(Target):
    """The file leader-epoch-checkpoint."""

    name = "leader-epochs"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._path = directory / epochs.NAME
        starts = ((), ((0, 0),), ((0, 0), (5, 41_250)), tuple((one, one * one * 7) for one in range(20)))
        histories = [EpochHistory(tuple(EpochStart(*one) for one in some)) for some in starts]
        self._known = {epochs.to_text(one).encode(): one for one in histories}

    def seeds(self) -> list[Input]:
        return [Input(data) for data in self._known]

    def forge(self, random: Random, data: bytes) -> bytes | None:
        lines = data.decode("ascii", "replace").splitlines()[:-1]
        if len(lines) < 2:
            return None
        values = (-1, 0, 5, 41_250, 1 << 31, 1 << 63, 10**40, "x", "", "1_0", "+1", " 1", "٣")
        for _ in range(random.randrange(1, 3)):
            place = random.randrange(len(lines))
            lines[place] = f"{random.choice(values)} {random.choice(values)}"
        if random.random() < 0.7:
            lines[1] = str(len(lines) - 2)
        body = "".join(line + "\n" for line in lines)
        return f"{body}{crc32c(body.encode()):08x}\n".encode()

    def run(self, given: Input) -> str:
        self._path.write_bytes(given.data)
        found = epochs.load(str(self.directory))
        if found is None:
            return "not believed"
        if not given.forged and found != self._known.get(given.data):
            raise WrongAnswer("other epochs than those that were stored")
        if any(one >= other for one, other in zip(found.starts, found.starts[1:], strict=False)):
            raise WrongAnswer("epochs that do not grow")
        for one in (*found.starts, EpochStart(0, 0), EpochStart(1 << 31, 1 << 62)):
            if found.starts and one.start_offset >= found.starts[0].start_offset:
                found.epoch_of(one.start_offset)
            found.end_of(one.epoch, 1 << 62)
            found.begun(one.epoch, one.start_offset).truncated_from(7).trimmed_before(3)
        return f"{len(found.starts)}"
