from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import contents, decoded, encoded, gappy, tree

from commitlog import CommitLog, InvalidRecordError, Partition, Record, RecordTooLargeError
from commitlog.config import CompressionType
from commitlog.errors import BatchTooLargeError

pa = pytest.importorskip("pyarrow")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = ["offset", "timestamp", "key", "value", "headers"]


def rows(table: Any) -> list[Record]:
    """An Arrow table as records."""
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((pair["key"], pair["value"]) for pair in row["headers"]),
        )
        for row in table.set_column(1, "timestamp", table.column("timestamp").cast(pa.int64())).to_pylist()
    ]


# --- reading


def test_a_partition_is_read_as_an_arrow_table(partition: Partition) -> None:
    partition.append(b"alone", key=b"k", timestamp=5)
    partition.append_many(
        [b"a", None, b""],
        keys=[None, b"k", b""],
        headers=[(), [("h", b"1"), ("h", None)], ()],
        timestamps=[1, 2, 3],
    )
    partition.append_many([b"x"] * 2_000, timestamps=range(2_000))
    table = partition.to_arrow()
    assert table.column_names == SCHEMA
    assert table.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert table.schema.field("value").type == pa.binary()
    assert rows(table) == contents(partition)
    table.validate(full=True)


def test_every_range_of_a_partition_is_read_as_arrow(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 1_000}).partition(0)
    for number in range(10):
        partition.append_many([b"%d" % number, None, b"x" * number], timestamps=[number, 1, 2])
    whole = contents(partition)
    for start in range(0, 31, 4):
        for end in (*range(start, 31, 3), None):
            table = partition.to_arrow(start, end)
            table.validate(full=True)
            assert rows(table) == whole[start:end]


def test_an_empty_partition_is_an_empty_table_of_the_same_schema(partition: Partition) -> None:
    table = partition.to_arrow()
    assert table.num_rows == 0
    assert table.column_names == SCHEMA


@pytest.mark.parametrize(
    "columns", [["value"], ["offset", "key"], ["headers", "timestamp"], SCHEMA[::-1], []]
)
@pytest.mark.parametrize("count", [3, 2_000])
def test_only_the_columns_asked_for_are_read_in_their_order(
    partition: Partition, columns: list[str], count: int
) -> None:
    partition.append_many([b"v"] * count)
    partition.append(b"v")
    table = partition.to_arrow(columns=columns)
    assert table.column_names == columns
    assert not columns or table.num_rows == count + 1


def test_a_column_that_is_not_there_is_refused_by_name(partition: Partition) -> None:
    partition.append(b"v")
    with pytest.raises(ValueError, match="no column 'valeu'; there are offset"):
        partition.to_arrow(columns=["valeu"])


def test_small_batches_are_put_together(partition: Partition) -> None:
    for number in range(500):
        partition.append(b"%d" % number)
    table = partition.to_arrow()
    assert table.column("value").num_chunks == 1
    assert rows(table) == contents(partition)


def test_large_values_are_not_copied(partition: Partition) -> None:
    partition.append_many([bytes(100)] * 5_000)
    (batch,) = partition.batches()
    before = pa.total_allocated_bytes()
    table = batch.to_arrow(["value"])
    assert pa.total_allocated_bytes() - before < 100_000
    assert table.num_rows == 5_000


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_slices_of_a_batch_are_arrow_slices(codec: CompressionType) -> None:
    from commitlog import TopicConfig

    batch = decoded(
        encoded(
            [b"aa", None, b"", b"dd"],
            keys=[None, b"k1", b"k2", b"k3"],
            headers=[[("h", b"1")], (), [("i", None), ("j", b"")], ()],
            timestamps=[4, 3, 2, 1],
            config=TopicConfig(compression_type=codec),
        ),
        10,
    )
    whole = list(batch.records())
    for start in range(9, 16):
        for end in range(start, 16):
            part = pa.Table.from_batches([batch.slice(start, end).to_arrow()])
            part.validate(full=True)
            assert rows(part) == [record for record in whole if start <= record.offset < end]


def test_gaps_show_in_the_offsets() -> None:
    table = pa.Table.from_batches([decoded(gappy([0, 3, 9], 12), 100).to_arrow()])
    assert table.column("offset").to_pylist() == [100, 103, 109]
    assert decoded(gappy([], 12), 100).to_arrow().num_rows == 0


# --- writing


def appended(partition: Partition, **columns: Any) -> list[tuple[Any, ...]]:
    table = pa.table(columns)
    count = partition.next_offset
    assert partition.append_arrow(table) == range(count, count + table.num_rows)
    return [tuple(record[2:4]) for record in partition.records(count)]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary()),
        pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int16(), pa.large_binary()),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_binary_or_text_column_can_be_a_value_or_a_key(partition: Partition, kind: Any) -> None:
    plain = [b"a", None, b"", b"a longer one than fits inline", b"a"]
    given: list[Any] = plain
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if "string" in str(inner):
        given = [None if one is None else one.decode() for one in plain]
    column = pa.array(given, inner).cast(kind) if inner is not kind else pa.array(given, kind)
    assert appended(partition, value=column, key=column) == [(one, one) for one in plain]
    part = column.slice(1, 3)
    assert appended(partition, value=part, key=part) == [(one, one) for one in plain[1:4]]


def test_a_fixed_size_column_can_be_a_value(partition: Partition) -> None:
    column = pa.array([b"abc", None, b"def"], pa.binary(3))
    assert appended(partition, value=column) == [(None, b"abc"), (None, None), (None, b"def")]


def test_a_column_of_nothing_but_nulls_is_tombstones(partition: Partition) -> None:
    for column in (pa.nulls(3), pa.array([None] * 3, pa.binary())):
        assert appended(partition, value=column, key=[b"a", b"b", b"c"]) == [
            (b"a", None), (b"b", None), (b"c", None),
        ]  # fmt: skip


def test_nulls_that_cover_bytes_in_their_column_are_stored_as_nulls(partition: Partition) -> None:
    ends = np.array([0, 2, 4, 6, 8], np.int32)
    buffers = [pa.py_buffer(b"\x0a"), pa.py_buffer(ends), pa.py_buffer(b"aabbccdd")]
    covered = pa.Array.from_buffers(pa.binary(), 4, buffers)
    assert covered.to_pylist() == [None, b"bb", None, b"dd"]
    assert [value for _, value in appended(partition, value=covered)] == [None, b"bb", None, b"dd"]
    assert [value for _, value in appended(partition, value=covered.slice(1, 2))] == [b"bb", None]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5, 2**62]), [5, 2**62]),
        (pa.array([5, 7], pa.uint8()), [5, 7]),
        (pa.array([5, 7], pa.timestamp("s")), [5_000, 7_000]),
        (pa.array([5, 7], pa.timestamp("ms", "UTC")), [5, 7]),
        (pa.array([5_000, 7_999], pa.timestamp("us", "Europe/Berlin")), [5, 7]),
        (pa.array([5_000_000, 7_999_999], pa.timestamp("ns")), [5, 7]),
    ],
    ids=lambda column: str(getattr(column, "type", "")),
)
def test_timestamps_may_be_times_of_any_unit_or_integers(
    partition: Partition, column: Any, expected: Any
) -> None:
    partition.append_arrow(pa.table({"value": [b"a", b"b"], "timestamp": column}))
    assert [record.timestamp for record in partition.records()] == expected


def test_without_timestamps_the_time_of_the_append_counts(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 5_000_000_000)
    partition.append_arrow(pa.table({"value": [b"a", b"b"]}))
    assert [record.timestamp for record in partition.records()] == [5_000, 5_000]


def test_headers_are_taken_from_a_list_of_pairs(partition: Partition) -> None:
    given = [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        None,
        [],
        [{"key": "", "value": b""}],
    ]
    column = pa.array(given, HEADERS)
    parts: list[Any] = [(column, given), (column.slice(1, 3), given[1:]), (column.slice(3), given[3:])]
    for part, expected in parts:
        start = partition.next_offset
        partition.append_arrow(pa.table({"value": [b"v"] * len(part), "headers": part}))
        found = [record.headers for record in partition.records(start)]
        assert found == [tuple((pair["key"], pair["value"]) for pair in row or ()) for row in expected]


@pytest.mark.parametrize(
    "headers", [pa.nulls(2), pa.array([[], []], HEADERS), pa.array([None, None], HEADERS)]
)
def test_no_headers_are_no_headers(partition: Partition, headers: Any) -> None:
    partition.append_arrow(pa.table({"value": [b"a", b"b"], "headers": headers}))
    assert [record.headers for record in partition.records()] == [(), ()]


def test_what_was_read_as_arrow_can_be_appended_again(log: CommitLog, partition: Partition) -> None:
    partition.append_many(
        [b"a", None, b""],
        keys=[None, b"k", b""],
        headers=[(), [("h", b"1"), ("h", None)], ()],
        timestamps=[1, 2, 3],
    )
    partition.append_many([b"x"] * 2_000, timestamps=range(2_000))
    other = log.create_topic("copy").partition(0)
    other.append_arrow(partition.to_arrow().drop_columns(["offset"]))
    assert contents(other) == contents(partition)


def test_a_chunked_table_becomes_one_batch_a_chunk_in_order(partition: Partition) -> None:
    chunks = [
        pa.table({"value": pa.array([b"%d" % number] * number, pa.binary())}) for number in (1, 0, 2, 3)
    ]
    assert partition.append_arrow(pa.concat_tables(chunks)) == range(6)
    assert [len(batch) for batch in partition.batches()] == [1, 2, 3]
    assert [record.value for record in partition.records()] == [b"1", b"2", b"2", b"3", b"3", b"3"]


def test_columns_chunked_differently_are_put_side_by_side(partition: Partition) -> None:
    table = pa.table(
        {
            "value": pa.chunked_array([[b"a"], [b"b", b"c"], [b"d"]]),
            "key": pa.chunked_array([[b"1", b"2"], [b"3", b"4"]]),
        }
    )
    partition.append_arrow(table)
    pairs = [(record.key, record.value) for record in partition.records()]
    assert pairs == [(b"1", b"a"), (b"2", b"b"), (b"3", b"c"), (b"4", b"d")]


def test_a_record_batch_is_taken_as_well_as_a_table(partition: Partition) -> None:
    batch = pa.record_batch({"value": [b"a", b"b", b"c"]})
    assert partition.append_arrow(batch) == range(3)
    assert partition.append_arrow(batch.slice(1, 1), sync=True) == range(3, 4)
    assert partition.durable_offset == 4
    assert [record.value for record in partition.records()] == [b"a", b"b", b"c", b"b"]


def test_more_chunks_than_an_index_has_entries_are_all_stored(log: CommitLog) -> None:
    config = {"segment_index_bytes": 64, "index_interval_bytes": 0}
    partition = log.create_topic("t", config=config).partition(0)
    table = pa.concat_tables([pa.table({"value": [b"%d" % number]}) for number in range(30)])
    for _ in range(3):
        partition.append_arrow(table)
    assert [record.value for record in partition.records()] == [b"%d" % number for number in range(30)] * 3
    assert [partition.get(offset).offset for offset in range(90)] == list(range(90))


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_arrow_data_is_compressed_as_the_topic_says(log: CommitLog, codec: CompressionType) -> None:
    partition = log.create_topic("t", config={"compression_type": codec}).partition(0)
    partition.append_arrow(pa.table({"value": [b"again and " * 50] * 20}))
    (batch,) = partition.batches()
    assert batch.header.compression_type == codec
    assert batch.values() == [b"again and " * 50] * 20


def test_an_empty_table_appends_nothing(partition: Partition) -> None:
    table = pa.table({"value": pa.array([], pa.binary())})
    assert partition.append_arrow(table) == range(0, 0)
    partition.append(b"x")
    assert partition.append_arrow(table) == range(1, 1)
    assert partition.append_arrow(pa.Table.from_batches([], schema=table.schema)) == range(1, 1)


def with_headers(kind: Any, value: Any) -> Any:
    return pa.table({"value": [b"v"], "headers": pa.array([value], kind)})


BAD_TABLES = {
    "no value": lambda: pa.table({"key": [b"k"]}),
    "unknown column": lambda: pa.table({"value": [b"v"], "colour": ["red"]}),
    "offset": lambda: pa.table({"value": [b"v"], "offset": [7]}),
    "value twice": lambda: pa.Table.from_arrays(
        [pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"]
    ),
    "value of numbers": lambda: pa.table({"value": [5]}),
    "key of lists": lambda: pa.table({"value": [b"v"], "key": [[b"k"]]}),
    "null timestamp": lambda: pa.table({"value": [b"v", b"w"], "timestamp": pa.array([1, None], pa.int64())}),
    "negative timestamp": lambda: pa.table({"value": [b"v", b"w"], "timestamp": [5, -1]}),
    "timestamp too late": lambda: pa.table({"value": [b"v"], "timestamp": pa.array([2**63], pa.uint64())}),
    "time too late": lambda: pa.table({"value": [b"v"], "timestamp": pa.array([2**62], pa.timestamp("s"))}),
    "timestamp of text": lambda: pa.table({"value": [b"v"], "timestamp": ["now"]}),
    "timestamp of fractions": lambda: pa.table({"value": [b"v"], "timestamp": [1.5]}),
    "headers as text": lambda: pa.table({"value": [b"v"], "headers": ["h"]}),
    "headers of other fields": lambda: with_headers(
        pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])), [{"name": "a", "value": b""}]
    ),
    "header name is null": lambda: with_headers(HEADERS, [{"key": None, "value": b""}]),
    "header is null": lambda: with_headers(HEADERS, [None]),
    "header name is not UTF-8": lambda: with_headers(
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])), [{"key": b"\xff", "value": b""}]
    ),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_arrow_data_that_cannot_be_stored_is_refused_and_leaves_nothing_behind(
    log: CommitLog, name: str
) -> None:
    partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
    partition.append(b"good")
    before = tree(log.path)
    with pytest.raises(InvalidRecordError):
        partition.append_arrow(BAD_TABLES[name]())
    assert tree(log.path) == before
    assert partition.next_offset == 1
    assert [record.value for record in partition.records()] == [b"good"]


@pytest.mark.parametrize(
    "wrong", [None, [b"v"], {"value": [b"v"]}, b"v", pa.array([b"v"])], ids=lambda one: type(one).__name__
)
def test_what_is_not_arrow_data_is_refused(partition: Partition, wrong: Any) -> None:
    with pytest.raises((TypeError, InvalidRecordError), match=type(wrong).__name__):
        partition.append_arrow(wrong)
    assert partition.next_offset == 0


def test_a_bad_row_is_counted_over_all_chunks(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"max_message_bytes": 10}).partition(0)
    chunks = [pa.table({"value": [b"v"] * 3}), pa.table({"value": [b"v", bytes(11)]})]
    with pytest.raises(RecordTooLargeError) as caught:
        partition.append_arrow(pa.concat_tables(chunks))
    assert caught.value.args == (4, 11, 10)
    assert partition.next_offset == 0


def test_a_table_that_fits_in_no_segment_is_refused_whole(log: CommitLog) -> None:
    partition = log.create_topic("t", config={"segment_bytes": 1_000}).partition(0)
    chunks = [pa.table({"value": [bytes(400)]}) for _ in range(3)]
    with pytest.raises(BatchTooLargeError):
        partition.append_arrow(pa.concat_tables(chunks))
    assert partition.next_offset == 0
    assert partition.size_bytes == 0


def test_without_pyarrow_the_error_says_what_to_install(log_path: Path) -> None:
    program = """
import sys
sys.modules["pyarrow"] = None
import commitlog
from commitlog.config import CompressionType
with commitlog.open(sys.argv[1]) as log:
    partition = log.create_topic("t").partition(0)
    partition.append(b"x")
    batch = next(partition.batches())
    for call in (partition.to_arrow, lambda: partition.append_arrow(None), batch.to_arrow):
        try:
            call()
        except commitlog.errors.MissingDependencyError as error:
            assert "pip install pyarrow" in str(error), error
        else:
            raise AssertionError("no error")
"""
    command = [sys.executable, "-c", program, str(log_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
