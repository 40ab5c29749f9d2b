"""The records every engine is given: made once, the same for all, sliced before any clock runs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

BATCH_RECORDS = 10_000
KEY_BYTES = 10
FIRST_TIMESTAMP = 1_700_000_000_000
RECORDS_PER_MS = 20


class Batch(NamedTuple):
    """One batch as the caller of append_many has it: plain lists."""

    base_offset: int
    timestamps: list[int]
    keys: list[bytes]
    values: list[bytes]


class Seen(NamedTuple):
    """What a scan came across: compared with the data, so that nobody wins by doing less."""

    records: int
    value_bytes: int
    last: object


@dataclass(frozen=True, slots=True)
class Dataset:
    """Batches of records and the sums a complete scan must reproduce."""

    name: str
    batches: list[Batch]

    @property
    def records(self) -> int:
        return sum(len(batch.values) for batch in self.batches)

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values: what any engine has to keep."""
        return sum(sum(map(len, batch.keys)) + sum(map(len, batch.values)) for batch in self.batches)

    @property
    def value_bytes(self) -> int:
        return sum(sum(map(len, batch.values)) for batch in self.batches)

    def seen_by_records(self) -> Seen:
        last = self.batches[-1]
        record = (self.records - 1, last.timestamps[-1], last.keys[-1], last.values[-1])
        return Seen(self.records, self.value_bytes, record)

    def seen_by_values(self) -> Seen:
        return Seen(self.records, self.value_bytes, self.batches[-1].values[-1])


def make(name: str, records: int, shortest: int, longest: int, seed: int = 1) -> Dataset:
    """Make records with 10-byte keys and values of `shortest` to `longest` bytes.

    Values are random bytes, so that no engine gains from compression, and separate objects spread over
    memory, as an application would hold them.
    """
    chance = random.Random(seed)
    pool = chance.randbytes(1 << 20)
    top = len(pool) - longest
    lengths = range(shortest, longest + 1)
    keys = (b"%010d" % chance.randrange(10**6) for _ in range(records))
    starts = (chance.randrange(top) for _ in range(records))
    values = (pool[at : at + chance.choice(lengths)] for at in starts)
    batches = []
    for base in range(0, records, BATCH_RECORDS):
        count = min(BATCH_RECORDS, records - base)
        stamps = [FIRST_TIMESTAMP + offset // RECORDS_PER_MS for offset in range(base, base + count)]
        batches.append(Batch(base, stamps, list(islice(keys, count)), list(islice(values, count))))
    return Dataset(name, batches)
