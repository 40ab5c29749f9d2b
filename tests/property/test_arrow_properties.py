from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers import decoded, encoded
from hypothesis import given
from hypothesis import strategies as st

import commitlog
from commitlog import Partition, TopicConfig

from .strategies import codecs, columns, rows

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
BINARY = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int16(), pa.binary())]
TIMES = [pa.int64(), pa.uint64(), pa.timestamp("ms"), pa.timestamp("ms", "UTC")]


@contextmanager
def partition(codec: str) -> Iterator[Partition]:
    with tempfile.TemporaryDirectory() as directory, commitlog.open(directory) as log:
        config = {"compression_type": codec, "flush_ms": -1, "segment_bytes": 1 << 20}
        yield log.create_topic("t", config=config).partition(0)


def as_table(given_columns: dict[str, list[Any]], binary: Any, time: Any) -> Any:
    def strings(items: list[Any]) -> Any:
        if pa.types.is_dictionary(binary):
            return pa.array(items, pa.binary()).dictionary_encode().cast(binary)
        return pa.array(items, binary)

    pairs = [[{"key": name, "value": value} for name, value in row] for row in given_columns["headers"]]
    return pa.table(
        {
            "value": strings(given_columns["values"]),
            "key": strings(given_columns["keys"]),
            "timestamp": pa.array(given_columns["timestamps"], time),
            "headers": pa.array(pairs, HEADERS),
        }
    )


def from_table(table: Any) -> list[tuple[Any, ...]]:
    table = table.set_column(1, "timestamp", table.column("timestamp").cast(pa.int64()))
    return [
        (
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"]),
        )
        for row in table.to_pylist()
    ]


@given(columns(), codecs, st.data())
def test_arrow_in_is_records_out_and_arrow_out(given_columns: Any, codec: str, data: st.DataObject) -> None:
    table = as_table(given_columns, data.draw(st.sampled_from(BINARY)), data.draw(st.sampled_from(TIMES)))
    expected = rows(given_columns)
    start = data.draw(st.integers(0, len(expected)))
    length = data.draw(st.integers(0, len(expected)))
    part = table.slice(start, length)
    wanted = [(number, *row[1:]) for number, row in enumerate(expected[start : start + length])]
    with partition(codec) as target:
        assert target.append_arrow(part) == range(len(wanted))
        assert list(target.records()) == wanted
        found = target.to_arrow()
        found.validate(full=True)
        assert from_table(found) == wanted


@given(st.lists(columns(least=0, most=6), min_size=1, max_size=6), codecs, st.data())
def test_a_chunked_table_is_appended_in_order_whatever_its_chunks(
    chunks: list[Any], codec: str, data: st.DataObject
) -> None:
    table = pa.concat_tables([as_table(chunk, pa.binary(), pa.int64()) for chunk in chunks])
    whole = {name: [item for chunk in chunks for item in chunk[name]] for name in chunks[0]}
    if data.draw(st.booleans()):  # one column chunked otherwise than the rest
        table = table.set_column(0, "value", pa.chunked_array([pa.array(whole["values"], pa.binary())]))
    with partition(codec) as target:
        assert target.append_arrow(table) == range(len(whole["values"]))
        assert list(target.records()) == rows(whole)
        assert from_table(target.to_arrow()) == rows(whole)


@given(columns(), codecs, st.integers(-3, 35), st.integers(-3, 35))
def test_arrow_slices_are_record_slices(given_columns: Any, codec: str, start: int, end: int) -> None:
    config = TopicConfig(compression_type=codec)  # type: ignore[arg-type]
    part = decoded(encoded(**given_columns, config=config), 0).slice(start, end)
    table = pa.Table.from_batches([part.to_arrow()])
    table.validate(full=True)
    assert from_table(table) == list(part.records())


@given(columns(), st.data())
def test_nulls_that_cover_bytes_are_stored_as_nulls(given_columns: Any, data: st.DataObject) -> None:
    filled = pa.array([value or b"hidden" for value in given_columns["values"]], pa.binary())
    present = [value is not None for value in given_columns["values"]]
    bits = pa.array(present).buffers()[1]
    covered = pa.Array.from_buffers(pa.binary(), len(filled), [bits, *filled.buffers()[1:]])
    start = data.draw(st.integers(0, len(covered)))
    part = covered.slice(start)
    with partition("none") as target:
        target.append_arrow(pa.table({"value": part}))
        assert [record.value for record in target.records()] == part.to_pylist()
