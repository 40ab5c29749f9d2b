from __future__ import annotations

import gc
import os
import pickle
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers import decoded, encoded
from pyspark.sql.types import StructType

import commitlog
from commitlog import CommitLog, Partition, RecordBatch, TopicConfig
from commitlog.batches import arrow
from commitlog.errors import DataLossError, PathNotMountedError
from commitlog.spark import worker
from commitlog.spark.arrow_rows import MOST_BYTES, MOST_ROWS, SMALL_ROWS, TARGET_ROWS, schema_of, sliced
from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Range
from commitlog.spark.schema import _TYPES, Field, fields_of, full_schema

ALL = fields_of(full_schema(headers=True))
T = "t"
SETTLE_DOWN = worker.settle_down


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a worker process may keep for good, a test must not."""
    monkeypatch.setattr(worker, "settle_down", lambda: None)
    yield
    for path in list(worker._handles):
        worker.forget_log(path)


def read(path: Path, *wanted: tuple[int, int], fields: tuple[Field, ...] = ALL, **given: str) -> list[Any]:
    options = ReadOptions.of({"path": str(path), **given})
    ranges = [Range(T, 0, start, end) for start, end in wanted]
    return list(worker.read_ranges(options, fields, ranges))


def rows(batches: list[Any]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


# --- columns and types


def test_batches_have_exactly_the_schema_that_spark_checks(partition: Partition, log_path: Path) -> None:
    partition.append(b"v", key=b"k", timestamp=1_234, headers=[("h", b"1"), ("i", None)])
    partition.append(None)
    (batch,) = read(log_path, (0, 2))
    assert batch.schema.equals(schema_of(ALL))
    assert batch.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    batch.validate(full=True)
    first, second = batch.to_pylist()
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "i", "value": None}]
    assert first["timestamp"].timestamp() == 1.234
    del first["headers"], first["timestamp"], second["timestamp"]
    here = {"topic": T, "partition": 0, "timestampType": 0}
    assert first == {"key": b"k", "value": b"v", "offset": 0, **here}
    assert second == {"key": None, "value": None, "offset": 1, "headers": None, **here}


def test_only_the_columns_asked_for_are_read_in_their_order(partition: Partition, log_path: Path) -> None:
    partition.append_many([b"v"] * 10)
    for names in (
        ["topic"],
        ["partition", "topic"],
        ["timestampType"],
        ["offset", "key"],
        ["headers", "value"],
    ):
        (batch,) = read(log_path, (0, 10), fields=tuple(map(Field, names)))
        assert batch.schema.names == names
        assert batch.num_rows == 10


def test_a_column_that_is_never_null_may_be_declared_so(partition: Partition, log_path: Path) -> None:
    partition.append(b"v")
    (batch,) = read(log_path, (0, 1), fields=(Field("offset", nullable=False), Field("key")))
    assert not batch.schema.field("offset").nullable
    assert batch.schema.field("key").nullable


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_headers_of_every_slice_are_its_own(log: CommitLog, log_path: Path, compression: str) -> None:
    partition = log.create_topic(T, config={"compression_type": compression}).partition(0)
    headers = [[("h", b"%d" % one)] * (one % 3) for one in range(50)]
    partition.append_many([b"v"] * 50, headers=headers)
    for start, end in [(0, 50), (7, 9), (48, 50), (3, 4), (0, 1)]:
        batches = read(log_path, (start, end), fields=(Field("headers"), Field("offset")))
        for row in rows(batches):
            expected = [{"key": name, "value": value} for name, value in headers[row["offset"]]]
            assert row["headers"] == (expected or None)
        for batch in batches:
            batch.validate(full=True)


def test_the_type_of_timestamps_is_that_of_each_batch(log: CommitLog, log_path: Path) -> None:
    topic = log.create_topic(T)
    topic.append(b"created", timestamp=5)
    topic.alter_config(message_timestamp_type="LogAppendTime")
    topic.append(b"appended")
    assert [row["timestampType"] for row in rows(read(log_path, (0, 2)))] == [0, 1]


def test_a_schema_of_other_columns_or_types_is_refused() -> None:
    def refused(schema: Any) -> str:
        with pytest.raises(commitlog.ConfigError) as caught:
            fields_of(schema)
        return str(caught.value)

    def typed(name: str, kind: str, nullable: bool = True) -> StructType:
        return StructType().add(name, kind, nullable)

    assert refused(typed("Key", "binary")).startswith(
        "schema = 'Key': no such column; the columns are key, value"
    )
    assert refused(typed("value", "string")) == "schema = 'value string': value is binary"
    assert refused(typed("key", "binary", nullable=False)) == "schema = 'key NOT NULL': key may be null"
    # batches without columns have no rows, and Spark would count none
    assert (
        refused(StructType())
        == f"schema = 'struct<>': must have a column; the columns are {', '.join(_TYPES)}"
    )
    twice = StructType().add("key", "binary").add("key", "binary")
    assert refused(twice) == "schema = 'key': must not occur twice"


def test_a_time_that_spark_cannot_hold_is_its_last_one(partition: Partition, log_path: Path) -> None:
    last = (1 << 63) // 1_000_000 * 1_000
    partition.append_many([b"v"] * 3, timestamps=[5, 1 << 60, last])
    (batch,) = read(log_path, (0, 3), fields=(Field("timestamp"),))
    found = batch.column(0).cast("int64").to_pylist()
    assert found == [5_000, (1 << 63) // 1_000 * 1_000, last * 1_000]


# --- sizes


def grouped(batches: list[RecordBatch]) -> list[list[RecordBatch]]:
    return list(arrow.grouped(batches, SMALL_ROWS, TARGET_ROWS, MOST_BYTES))


def test_small_batches_are_put_together_and_large_ones_cut() -> None:
    batches = [
        decoded(encoded([b"v"] * size)) for size in (1, 5, 100_000, 10, 3_000, 3_000, 3_000, 10_000, 1)
    ]
    sizes = [[len(batch) for batch in group] for group in grouped(batches)]
    assert sizes == [[1, 5], [100_000], [10, 3_000, 3_000, 3_000], [10_000], [1]]
    whole = pa.record_batch({"n": range(100_000)})
    assert [batch.num_rows for batch in sliced(whole)] == [*[14_286] * 6, 14_284]
    assert pa.Table.from_batches(sliced(whole)).equals(pa.Table.from_batches([whole]))


def test_no_batch_has_more_bytes_than_the_jvm_should_hold_at_once() -> None:
    for count, size in [(5, 3 << 20), (5_000, 10_000), (1, 20 << 20), (20_000, 100)]:
        found = list(sliced(pa.record_batch({"n": pa.array([bytes(size)] * count)})))
        assert sum(batch.num_rows for batch in found) == count
        assert all(batch.nbytes <= MOST_BYTES * 1.01 or batch.num_rows == 1 for batch in found)
    uneven = [bytes(3 << 20)] * 5 + [b"x"] * 9_000 + [bytes(1 << 20)] * 50 + [bytes(20 << 20), b"y"]
    found = list(sliced(pa.record_batch({"n": pa.array(uneven)})))
    assert [value for batch in found for value in batch.column(0).to_pylist()] == uneven
    assert all(batch.nbytes <= MOST_BYTES * 1.01 or batch.num_rows == 1 for batch in found)
    assert len(found) < 60
    large = [decoded(encoded([bytes(1 << 20)] * 3, config=TopicConfig(compression_type="zstd")))] * 9
    assert [len(group) for group in grouped(large)] == [3, 3, 3]


def test_a_batch_of_many_bytes_is_put_together_with_no_other() -> None:
    """Together they could be more than Arrow counts in 31 bits, however few rows there are."""
    small, large = decoded(encoded([b"x"] * 3)), decoded(encoded([bytes(1 << 20)] * 8))
    assert [len(group) for group in grouped([small, small, large, large, small])] == [2, 1, 1, 1]


@pytest.mark.parametrize("count", [1, 10, 1_000, 10_000, 50_000])
def test_stored_batches_of_any_size_are_read_in_batches_spark_likes(
    partition: Partition, log_path: Path, count: int
) -> None:
    total = 50_000 if count > 1 else 12_000
    for start in range(0, total, count):
        partition.append_many([b"%d" % one for one in range(start, start + count)])
    batches = read(log_path, (0, total))
    assert all(8_192 <= batch.num_rows <= MOST_ROWS for batch in batches[:-1])
    assert [row["value"] for row in rows(batches)] == [b"%d" % one for one in range(total)]


def test_values_are_not_copied(partition: Partition, log_path: Path) -> None:
    partition.append_many([bytes(1_000)] * 10_000)
    read(log_path, (0, 10))
    before = pa.total_allocated_bytes()
    batches = read(log_path, (0, 10_000))
    assert sum(batch.nbytes for batch in batches) > 10_000_000
    assert pa.total_allocated_bytes() - before < 500_000


# --- ranges


def test_a_range_is_exact_on_both_sides(partition: Partition, log_path: Path) -> None:
    for start in range(0, 100, 10):
        partition.append_many([b"%d" % one for one in range(start, start + 10)])
    for start, end in [(0, 100), (13, 57), (99, 100), (10, 20)]:
        assert [row["offset"] for row in rows(read(log_path, (start, end)))] == list(range(start, end))
    assert len(rows(read(log_path, (3, 5), (20, 30)))) == 12
    assert read(log_path, (5, 5)) == []


def test_what_retention_removed_before_it_was_read_is_lost(partition: Partition, log_path: Path) -> None:
    for _ in range(10):
        partition.append_many([b"v"] * 10)
    partition.trim_before(45)
    with pytest.raises(DataLossError, match=r"t-0: offsets \[20, 45\) are outside \[45, 100\)"):
        read(log_path, (20, 60))
    found = rows(read(log_path, (20, 60), failOnDataLoss="false"))
    assert [row["offset"] for row in found] == list(range(45, 60))
    assert read(log_path, (20, 40), failOnDataLoss="false") == []


def test_what_retention_removes_while_it_is_read_is_lost(log: CommitLog, log_path: Path) -> None:
    partition = log.create_topic(T, config={"segment_bytes": 512}).partition(0)
    for _ in range(10):
        partition.append_many([bytes(100)] * 3)

    def overtaken(**given: str) -> Iterator[Any]:
        options = ReadOptions.of({"path": str(log_path), **given})
        batches = worker._batches(options, Range(T, 0, partition.start_offset, 30))
        yield next(batches).base_offset
        partition.trim_before(partition.start_offset + 12)
        yield from (batch.base_offset for batch in batches)

    with pytest.raises(DataLossError, match=r"offsets \[3, 12\) are outside"):
        list(overtaken())
    assert list(overtaken(failOnDataLoss="false")) == [12, 24, 27]


def test_what_was_truncated_is_lost(partition: Partition, log_path: Path) -> None:
    partition.append_many([b"v"] * 10)
    partition.append_many([b"v"] * 10)
    partition.truncate_from(10)
    with pytest.raises(DataLossError, match="its end moved back to 10"):
        read(log_path, (0, 20))
    assert len(rows(read(log_path, (0, 20), failOnDataLoss="false"))) == 10


def test_an_end_that_went_back_only_while_it_was_read_is_told_too(
    partition: Partition, log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.append_many([b"x"] * 10)
    found = worker._partition

    class Behind:
        """A partition of a cluster, whose new leader knows of ten records at first."""

        name, marks = "t-0", [10, 20]

        def end_offset(self, isolation_level: str) -> int:
            return self.marks.pop(0)

        def combined_batches(self, start: int, end: int, *, isolation_level: str) -> Iterator[Any]:
            return found(ReadOptions.of({"path": str(log_path)}), Range(T, 0, 0, 10)).combined_batches(0, 10)

    monkeypatch.setattr(worker, "_partition", lambda options, wanted: Behind())
    with pytest.raises(DataLossError, match="its end moved back to 10"):
        read(log_path, (0, 20))


def test_a_deleted_topic_is_lost(log: CommitLog, partition: Partition, log_path: Path) -> None:
    partition.append_many([b"v"] * 10)
    read(log_path, (0, 10))
    log.delete_topic(T)
    with pytest.raises(DataLossError, match="t-0: no topic 't'"):
        read(log_path, (0, 10))
    assert read(log_path, (0, 10), failOnDataLoss="false") == []


# --- handles


def test_a_log_stays_open_from_task_to_task(partition: Partition, log_path: Path) -> None:
    first = worker.open_log(str(log_path))
    assert worker.open_log(str(log_path)) is first


def test_another_log_at_the_same_path_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for value in (b"one", b"two"):
        shutil.rmtree(path, ignore_errors=True)
        with commitlog.open(path) as log:
            log.create_topic(T).append(value)
        assert [row["value"] for row in rows(read(path, (0, 1)))] == [value]


def test_only_so_many_logs_stay_open(tmp_path: Path) -> None:
    for number in range(worker._MOST_LOGS + 3):
        commitlog.open(tmp_path / str(number)).close()
        worker.open_log(str(tmp_path / str(number)))
    assert len(worker._handles) == worker._MOST_LOGS
    open_files = [os.readlink(f"/proc/self/fd/{one.directory}") for one in worker._handles.values()]
    assert str(tmp_path / "0") not in open_files


@pytest.mark.parametrize("gone", ["trimmed", "compacted", "deleted"])
def test_files_that_are_gone_are_let_go_by_whoever_reads_another_topic(
    log: CommitLog, log_path: Path, gone: str
) -> None:
    config = {"segment_bytes": 100_000, "file_delete_delay_ms": 0, "cleanup_policy": "compact,delete"}
    partition = log.create_topic(T, config=config).partition(0)
    for _ in range(10):
        partition.append_many([bytes(1_000)] * 90, keys=[b"k"] * 90)
    log.create_topic("other").append_many([bytes(1_000)] * 90)
    read(log_path, (0, 900))
    assert mapped(log_path)
    if gone == "deleted":
        log.delete_topic(T)
    elif gone == "compacted":
        partition.compact()
    else:
        partition.trim_before(800)
    assert gone_ones(log_path)
    options = ReadOptions.of({"path": str(log_path)})
    list(worker.read_ranges(options, ALL, [Range("other", 0, 0, 90)]))
    assert gone_ones(log_path) == []


def gone_ones(path: Path) -> list[str]:
    """The mapped files of a log that are no segments any more: renamed, in a renamed folder, or removed."""
    here = [path / "t-0", path / "other-0"]
    return [one for one in mapped(path) if not (one.endswith(".log") and Path(one).parent in here)]


def mapped(path: Path) -> list[str]:
    """The files of a log's segments that this process has mapped for reading."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [
        line.split(maxsplit=5)[5]
        for line in lines
        if f"{path}/" in line and " r--s " in line and ".log" in line
    ]


def test_a_path_that_a_worker_does_not_see_is_told_with_its_host(tmp_path: Path) -> None:
    with pytest.raises(PathNotMountedError) as caught:
        read(tmp_path / "nowhere", (0, 1))
    assert str(caught.value) == (
        f"{tmp_path}/nowhere cannot be read on host {socket.gethostname()} (it does not exist); "
        "it must be mounted at that path on all hosts"
    )


def test_options_and_ranges_travel_to_workers() -> None:
    options = ReadOptions.of({"path": "p", "startingOffsets": '{"t": {"0": 5}}'})
    for one in (options, Range(T, 0, 1, 2), ALL):
        assert pickle.loads(pickle.dumps(one)) == one


def test_what_is_loaded_is_exempt_from_collection_once() -> None:
    SETTLE_DOWN.cache_clear()
    try:
        SETTLE_DOWN()
        frozen = gc.get_freeze_count()
        assert frozen > 0
        keep: list[Any] = [[] for _ in range(1_000)]
        SETTLE_DOWN()
        assert gc.get_freeze_count() == frozen
        assert keep
    finally:
        gc.unfreeze()
