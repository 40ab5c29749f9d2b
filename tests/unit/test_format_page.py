"""docs/format.md is the only description of the bytes, so what it shows must be true."""

from __future__ import annotations

import re
from pathlib import Path

from commitlog import Record, RecordBatch
from commitlog.batches.format import HEADER_BYTES, BatchHeader
from commitlog.partitions.epochs import EpochHistory, EpochStart, from_text

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def example() -> bytes:
    (block,) = re.findall(r"```hex\n(.*?)```", PAGE, re.DOTALL)
    return bytes.fromhex("".join(line.split("  ", 1)[1] for line in block.splitlines()))


def test_the_hex_example_decodes_to_the_records_it_tells_of() -> None:
    batch = RecordBatch.decode(example())
    assert list(batch.records()) == [
        Record(42, 1700000000000, b"alice", b"three apples"),
        Record(43, 1700000000003, b"bob", b"a pear"),
        Record(44, 1700000000250, b"alice", None),
    ]
    assert batch.size_bytes == len(example())


def test_the_example_of_leader_epochs_is_one() -> None:
    (block,) = re.findall(r"```\n(1\n.*?)```", PAGE, re.DOTALL)
    assert from_text(block) == EpochHistory((EpochStart(0, 0), EpochStart(5, 41250)))


def test_the_header_table_names_every_field_in_its_place() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ", PAGE, re.MULTILINE)
    names = [name for _, name in rows]
    assert names == [name.replace("crc", "checksum") for name in BatchHeader._fields]
    places = [int(place) for place, _ in rows]
    assert places[0] == 0 and places == sorted(places) and places[-1] + 2 == HEADER_BYTES
