"""pandas, Polars and DuckDB read a partition where it lies, and what they make of it goes back as records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import CommitLog, CorruptionError, Partition, RecordTooLargeError, Topic

pa = pytest.importorskip("pyarrow")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

COUNT = 10_000
BATCHES = 3


@pytest.fixture
def pages(log: CommitLog) -> Partition:
    """Three batches of keys and values that are too long to be kept within a view of them."""
    partition: Partition = log.create_topic("pages").partition(0)
    for _ in range(BATCHES):
        partition.append_many(
            [b"/a/page/of/the/shop/%d" % (number % 100) for number in range(COUNT)],
            keys=[b"visitor number %d" % (number % 7) for number in range(COUNT)],
        )
    return partition


def segment_maps(path: str) -> list[range]:
    """Where the kernel has mapped the segments of a partition into this process."""
    line = rf"^(\w+)-(\w+) .* {re.escape(path)}/\d+\.log$"
    found = re.findall(line, Path("/proc/self/maps").read_text(), re.MULTILINE)
    return [range(int(start, 16), int(end, 16)) for start, end in found]


def blobs_are_mapped(column: Any, partition: Partition) -> bool:
    """Whether the bytes of all strings of a column lie in the mapped segments."""
    maps = segment_maps(partition.path)
    assert maps
    blobs = [buffer for chunk in column.chunks for buffer in chunk.buffers()[2:]]
    assert sum(blob.size for blob in blobs) > COUNT * BATCHES * 10
    return all(any(blob.address in one for one in maps) for blob in blobs)


# --- a reader


def test_a_reader_gives_what_the_table_has(pages: Partition) -> None:
    assert pages.to_reader().read_all().equals(pages.to_arrow())
    part = pages.to_reader(5, 20_007, ["value", "offset"])
    assert part.schema.names == ["value", "offset"]
    assert part.read_all().equals(pages.to_arrow(5, 20_007, ["value", "offset"]))


def test_a_log_that_is_open_for_reading_has_readers_too(log: CommitLog, pages: Partition) -> None:
    with commitlog.open(log.path, mode="r") as reading:
        found = reading.topic("pages").partition(0)
        assert found.to_reader().read_all().equals(pages.to_arrow())
        assert blobs_are_mapped(found.to_arrow()["value"], pages)


def test_a_reader_of_an_empty_partition_has_a_schema_and_no_batch(partition: Partition) -> None:
    reader = partition.to_reader()
    assert reader.schema.names == ["offset", "timestamp", "key", "value", "headers"]
    assert list(reader) == []


def test_a_reader_reads_as_it_is_asked(pages: Partition) -> None:
    """A batch is checked when its turn comes, so what is damaged behind it does not keep it back."""
    pages.sync()
    with open(pages.segments[0].path, "r+b") as file:
        file.seek(-10, 2)
        byte = file.read(1)
        file.seek(-10, 2)
        file.write(bytes([byte[0] ^ 1]))
    reader = pages.to_reader()
    assert [next(reader).num_rows for _ in range(BATCHES - 1)] == [COUNT] * (BATCHES - 1)
    with pytest.raises(CorruptionError):
        next(reader)


# --- without a copy


def test_arrow_tables_and_readers_lie_in_the_mapped_files(pages: Partition) -> None:
    for table in (pages.to_arrow(), pages.to_reader().read_all()):
        assert blobs_are_mapped(table["key"], pages)
        assert blobs_are_mapped(table["value"], pages)


def test_the_check_of_copies_sees_one(pages: Partition) -> None:
    copied = pa.table({"value": pa.array(pages.to_arrow()["value"].to_pylist(), pa.binary())})
    assert not blobs_are_mapped(copied["value"], pages)


def test_pandas_reads_without_a_copy(pages: Partition) -> None:
    frame = pages.to_arrow().to_pandas(types_mapper=pandas.ArrowDtype)
    assert blobs_are_mapped(frame["value"].array.__arrow_array__(), pages)
    assert frame.groupby("key").size().tolist() == [
        len([n for n in range(COUNT) if n % 7 == key]) * BATCHES for key in range(7)
    ]


def test_polars_reads_without_a_copy(pages: Partition) -> None:
    for source in (pages.to_arrow(), pages.to_reader()):
        frame = polars.from_arrow(source, rechunk=False)
        views = frame.to_arrow(compat_level=polars.CompatLevel.newest())
        assert blobs_are_mapped(views["value"], pages)
        assert frame["key"].n_unique() == 7


def test_duckdb_reads_batch_by_batch(pages: Partition) -> None:
    """No more of the log is in Arrow's memory at a time than a few batches have."""
    before, most = pa.total_allocated_bytes(), 0

    def watched() -> Any:
        nonlocal most
        for batch in pages.to_reader():
            most = max(most, pa.total_allocated_bytes() - before)
            yield batch

    reader = pa.RecordBatchReader.from_batches(pages.to_reader().schema, watched())
    seen = duckdb.from_arrow(reader)
    assert seen.aggregate("count(*), count(DISTINCT value)").fetchall() == [(30_000, 100)]
    assert most < 1 << 20


# --- and back


def results(source: Partition) -> dict[str, Any]:
    """The same counts, as each of them makes them."""
    frame = polars.from_arrow(source.to_reader(columns=["key"]))
    counted = frame.group_by("key").len("value").with_columns(polars.col("value").cast(polars.String))
    visits = source.to_reader(columns=["key"])  # noqa: F841 - DuckDB finds it by its name
    query = duckdb.sql("SELECT key, count(*)::VARCHAR AS value FROM visits GROUP BY key")
    sizes = source.to_arrow(columns=["key"]).to_pandas(types_mapper=pandas.ArrowDtype).groupby("key").size()
    pandas_frame = sizes.astype(str).rename("value").reset_index()
    return {
        "polars": counted,
        "duckdb": query,
        "pandas": pandas_frame,
        "reader": pa.table(counted).to_reader(),
        "batch": pa.table(counted).combine_chunks().to_batches()[0],
    }


@pytest.mark.parametrize("name", ["polars", "duckdb", "pandas", "reader", "batch"])
def test_the_result_of_a_query_is_appended_as_records(log: CommitLog, pages: Partition, name: str) -> None:
    counts = log.create_topic("counts").partition(0)
    assert counts.append_arrow(results(pages)[name]) == range(7)
    found = {record.key: record.value for record in counts.records()}
    assert found == {
        b"visitor number %d" % key: b"%d" % (len([n for n in range(COUNT) if n % 7 == key]) * BATCHES)
        for key in range(7)
    }


@pytest.fixture
def topic(log: CommitLog) -> Topic:
    return log.create_topic("several", partitions=3, config={"max_message_bytes": 100})


def test_a_topic_takes_arrow_data_as_it_takes_lists(log: CommitLog, topic: Topic) -> None:
    keys, values = [b"%d" % (number % 10) for number in range(100)], [b"%d" % number for number in range(100)]
    offsets = topic.append_arrow(polars.DataFrame({"key": keys, "value": values}))
    other = log.create_topic("other", partitions=3)
    assert other.append_many(values, keys=keys) == offsets
    for ours, theirs in zip(topic.partitions, other.partitions, strict=True):
        assert [(one.key, one.value) for one in ours.records()] == [
            (one.key, one.value) for one in theirs.records()
        ]


def test_arrow_data_without_keys_goes_to_one_partition(topic: Topic) -> None:
    (offsets,) = topic.append_arrow(pa.table({"value": [b"a", b"b"]})).values()
    assert offsets == range(2)
    assert topic.append_arrow(pa.table({"value": [b"c"], "key": [b"k"]}), partition=2)[2].stop > 0
    assert topic.append_arrow(pa.table({"value": pa.array([], pa.binary())})) == {}


def test_a_row_that_a_topic_refuses_is_named_and_nothing_is_appended(topic: Topic) -> None:
    keys = [b"%d" % number for number in range(50)]
    values = [b"v"] * 37 + [b"v" * 200] + [b"v"] * 12
    with pytest.raises(RecordTooLargeError, match="record 37"):
        topic.append_arrow(pa.table({"key": keys, "value": values}))
    assert [partition.next_offset for partition in topic.partitions] == [0, 0, 0]


def test_a_column_by_itself_is_no_table(partition: Partition) -> None:
    with pytest.raises(TypeError, match="ChunkedArray"):
        partition.append_arrow(pa.chunked_array([[b"v"]]))
