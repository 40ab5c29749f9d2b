"""The records every engine is given: made once, the same for all, sliced before any clock runs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice
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


def make(
    name: str, records: int, shortest: int, longest: int, seed: int = 1, batch_records: int = BATCH_RECORDS
) -> Dataset:
    """Make records with 10-byte keys and values of `shortest` to `longest` bytes.

    Values are random bytes, so that no engine gains from compression, and separate objects spread over
    memory, as an application would hold them.
    """
    chance = random.Random(seed)
    pool = chance.randbytes(1 << 20)
    top = len(pool) - longest
    lengths = range(shortest, longest + 1)
    keys = random_keys(chance, records)
    starts = (chance.randrange(top) for _ in range(records))
    values = (pool[at : at + chance.choice(lengths)] for at in starts)
    return Dataset(name, batches_of(keys, values, records, batch_records))


def random_keys(chance: random.Random, records: int) -> Iterator[bytes]:
    return (b"%010d" % chance.randrange(10**6) for _ in range(records))


def batches_of(
    keys: Iterator[bytes], values: Iterator[bytes], records: int, batch_records: int = BATCH_RECORDS
) -> list[Batch]:
    batches = []
    for base in range(0, records, batch_records):
        count = min(batch_records, records - base)
        stamps = [FIRST_TIMESTAMP + offset // RECORDS_PER_MS for offset in range(base, base + count)]
        batches.append(Batch(base, stamps, list(islice(keys, count)), list(islice(values, count))))
    return batches


WORDS = ("order", "payment", "created", "shipped", "cancelled", "returned", "customer", "express", "standard")


def json_like(records: int, seed: int = 1) -> Dataset:
    """Make records as applications write them: the same names again and again, numbers and words."""
    chance = random.Random(seed)
    values = (
        json.dumps(
            {
                "event_id": f"{chance.getrandbits(64):016x}", "created_at": FIRST_TIMESTAMP + number,
                "type": chance.choice(WORDS), "status": chance.choice(WORDS),
                "customer_id": chance.randrange(100_000), "amount_cents": chance.randrange(1_000_000),
                "tags": chance.choices(WORDS, k=3),
            }
        ).encode()
        for number in range(records)
    )  # fmt: skip
    return Dataset("JSON", batches_of(random_keys(chance, records), values, records))


def repeated(batches: Iterable[Batch], size_bytes: int) -> Iterator[Batch]:
    """Give the same batches over and over, at growing offsets, until they have `size_bytes` together."""
    offset = written = 0
    for batch in cycle(batches):
        if written >= size_bytes:
            return
        yield batch._replace(base_offset=offset)
        offset += len(batch.values)
        written += sum(map(len, batch.values)) + sum(map(len, batch.keys))
