"""State pages: damaged `state` files, read by themselves, and now and then as part of a log in every mode."""

from __future__ import annotations

from pathlib import Path
from random import Random
from struct import pack_into

from crc32c import crc32c

from commitlog.partitions.page import NAME, Checkpoint, StatePage
from fuzz import world
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.mutations import mutated, number
from fuzz.segment import read_forged
from fuzz.world import PARTITION, Logs, check_log

_WHOLE_LOG = 100
_SLOTS, _MARKS = ((512, 64), (1024, 64)), ((1536, 16), (2048, 16))


class StatePageTarget(Target):
    """The state page of a partition of which all files are sound."""

    name = "state-page"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._logs = Logs(directory)
        self._page = directory / NAME
        self._seeds = [one[f"{PARTITION}/{NAME}"] for one in self._logs.templates]
        self._marked = [self._with_marks(data) for data in self._seeds]
        self._known: set[Checkpoint | None] = {None}
        self._marks: set[int | None] = {None, 70, 75}
        for data in self._seeds:
            self._page.write_bytes(data)
            page = StatePage.open(str(directory))
            assert page is not None
            self._known |= {one for _, one in page._checkpoints()}

    def _with_marks(self, data: bytes) -> bytes:
        self._page.write_bytes(data)
        page = StatePage.create(str(self.directory))
        page.publish_high_watermark(70)
        page.publish_high_watermark(75)
        page.close()
        return self._page.read_bytes()

    def seeds(self) -> list[Input]:
        return [Input(data, choice=1) for data in (*self._seeds, *self._marked)]

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        if random.random() < 0.5:  # where something stands, not in the zeros between
            start, size = random.choice(((0, 112), *_SLOTS, *_MARKS))
            size += 8
            found = mutated(random, data[start : start + size], donor[start : start + size])
            return data[:start] + found[:size].ljust(size, b"\0") + data[start + size :]
        return mutated(random, data, donor)

    def forge(self, random: Random, data: bytes) -> bytes | None:
        if len(data) < 4096:
            return None
        found = bytearray(data)
        for _ in range(random.randrange(1, 3)):
            start, size = random.choice((*_SLOTS, *_SLOTS, *_MARKS))
            word = random.randrange(size // 8)
            value = random.choice((number(random, 8), random.randrange(110), 100))
            found[start + 8 * word : start + 8 * word + 8] = value.to_bytes(8, "little")
            pack_into("<Q", found, start + size, crc32c(bytes(found[start : start + size])) | 1 << 32)
        return bytes(found)

    def run(self, given: Input) -> str:
        if given.choice % _WHOLE_LOG == 0:
            template = given.choice // _WHOLE_LOG % len(self._logs.templates)
            mode = world.MODES[given.choice // 1000 % len(world.MODES)]
            path = self._logs.lay_out(template, f"{PARTITION}/{NAME}", given.data)
            if given.forged:
                return read_forged(path, mode)
            return check_log(path, mode, world.END)
        self._page.write_bytes(given.data)
        page = StatePage.open(str(self.directory))
        if page is None:
            return "no page"
        checkpoint, mark = page.checkpoint, page.kept_high_watermark
        if not given.forged and (checkpoint not in self._known or mark not in self._marks):
            raise WrongAnswer("this was never kept", f"{checkpoint} {mark}")
        writer = StatePage.create(str(self.directory))
        writer.publish_layout(0, 4096, 100)  # as an open does, whatever the live words say
        writer.publish_start(0)
        writer.publish_clean(0)
        writer.publish_durable(90)
        writer.publish_high_watermark(60)
        kept = writer.kept_high_watermark == 60 and writer.checkpoint is not None
        if not given.forged and not kept:  # a forged sequence may leave no number above it
            raise WrongAnswer("what is kept is not there")
        return f"{checkpoint is None} {mark is None}"
