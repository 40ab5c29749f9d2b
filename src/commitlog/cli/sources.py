"""Files that records are imported from: Parquet, Arrow, CSV and JSON lines. Needs the extra `arrow`."""

from __future__ import annotations

import base64
import csv as plain_csv
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import click
import numpy as np
from numpy.typing import NDArray

from commitlog.batches import arrow
from commitlog.cli.json_records import GivenRecord, headers_of, parse_record
from commitlog.cli.options import timestamp
from commitlog.errors import InvalidRecordError
from commitlog.topics.topic import Topic

import pyarrow as pa  # isort: skip - arrow tells what to install where it is missing
import pyarrow.compute as pc  # isort: skip
from pyarrow import csv, parquet  # isort: skip

ROWS = 8192
_BLOCK_BYTES = 1 << 20


class Chunk(NamedTuple):
    """Rows of a file, and how far it is read with them, in the unit of its source."""

    rows: pa.RecordBatch
    done: int


class BadRowError(Exception):
    """A row that is no record: its number in the file, or in a chunk, and why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(row, reason)
        self.row, self.reason = row, reason


class Source(Protocol):
    """A file of records. What is right before a bad row is given before BadRowError is raised."""

    unit: str
    total: int

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over the rows of the file."""

    def place(self, row: int) -> str:
        """Tell where a row is, for people."""


class _ColumnSource:
    """A file of Arrow's kind: rows have numbers, and no lines."""

    unit = "records"

    def place(self, row: int) -> str:
        """Name a row, counted from 1."""
        return f"row {row + 1}"


class ParquetSource(_ColumnSource):
    """A Parquet file."""

    def __init__(self, path: str) -> None:
        self._file = parquet.ParquetFile(path)
        self.total = self._file.metadata.num_rows

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over its rows."""
        done = 0
        for batch in self._file.iter_batches(batch_size=ROWS):
            done += batch.num_rows
            yield Chunk(batch, done)


class ArrowSource(_ColumnSource):
    """Arrow's IPC format, as a file or as a stream."""

    unit = "batches"

    def __init__(self, path: str) -> None:
        mapped = pa.memory_map(path)
        try:
            file = pa.ipc.open_file(mapped)
            self.total = file.num_record_batches
            self._batches = (Chunk(file.get_batch(number), number + 1) for number in range(self.total))
        except pa.ArrowInvalid:
            mapped.seek(0)
            self.unit, self.total = "bytes", mapped.size()
            self._batches = (Chunk(batch, mapped.tell()) for batch in pa.ipc.open_stream(mapped))

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over its rows."""
        for batch, done in self._batches:
            for first in range(0, batch.num_rows, ROWS):
                yield Chunk(batch.slice(first, ROWS), done)


class JsonSource:
    """A JSON object on each line, as `consume` prints it and `produce` takes it; empty lines are none."""

    unit = "bytes"

    def __init__(self, path: str) -> None:
        self._path, self.total = path, os.path.getsize(path)
        self._skipped: list[int] = []  # rows before which an empty line stands

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over its rows."""
        records: list[GivenRecord] = []
        done = row = 0
        with open(self._path, "rb") as file:
            for line in file:
                done += len(line)
                if not line.strip():
                    self._skipped.append(row)
                    continue
                try:
                    records.append(parse_record(line, row))
                except (InvalidRecordError, click.BadParameter) as problem:
                    yield Chunk(_rows_of(records), done)
                    reason = problem.message if isinstance(problem, click.BadParameter) else problem.args[1]
                    raise BadRowError(row, reason) from None
                row += 1
                if len(records) == ROWS:
                    yield Chunk(_rows_of(records), done)
                    records = []
        yield Chunk(_rows_of(records), done)

    def place(self, row: int) -> str:
        """Name the line of a row."""
        return f"line {row + 1 + sum(before <= row for before in self._skipped)}"


def _rows_of(records: list[GivenRecord]) -> pa.RecordBatch:
    """Return records as columns; times and partitions that nobody gave are null."""
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([one.key for one in records], pa.binary()),
            "value": pa.array([one.value for one in records], pa.binary()),
            "headers": pa.array([_pairs(one.headers) for one in records], arrow.HEADER_TYPE),
            "timestamp": pa.array([one.timestamp for one in records], pa.int64()),
            "partition": pa.array([one.partition for one in records], pa.int64()),
        }
    )


def _pairs(headers: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": value} for name, value in headers]


class CsvSource:
    """CSV with a line of names. An empty field without quotes is null, one with quotes an empty string."""

    unit = "bytes"

    def __init__(self, path: str) -> None:
        self._path, self.total = path, os.path.getsize(path)
        with open(path, encoding="utf-8-sig", newline="", errors="replace") as file:
            names = next(plain_csv.reader(file), [])
        self._file = pa.OSFile(path)
        self._wrong: list[Any] = []  # rows that have too many fields, or too few
        self._reader = csv.open_csv(
            self._file,
            csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES),
            csv.ParseOptions(newlines_in_values=True, invalid_row_handler=self._note),
            csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.binary()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,
            ),
        )

    def _note(self, row: Any) -> str:
        self._wrong.append(row)
        return "skip"  # what stands before it in the same block is still to be had

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over its rows."""
        first = 0
        for block in self._reader:
            batch = block.slice(0, max(self._wrong_at().row - first, 0)) if self._wrong else block
            for start in range(0, batch.num_rows, ROWS):
                rows, bad = _read(batch.slice(start, ROWS))
                yield Chunk(rows, self._file.tell())
                if bad is not None:
                    raise BadRowError(first + start + bad.row, bad.reason)
            first += batch.num_rows
            if batch.num_rows < block.num_rows:
                break
        if self._wrong:
            raise self._wrong_at()

    def _wrong_at(self) -> BadRowError:
        row = self._wrong[0]
        reason = f"{row.actual_columns} fields, and not {row.expected_columns}"
        return BadRowError(row.number - 2, reason)  # which counts the names, and from 1

    def place(self, row: int) -> str:
        """Name the line on which a row begins; a field may have several lines."""
        with open(self._path, encoding="utf-8-sig", newline="", errors="replace") as file:
            reader = plain_csv.reader(file)
            filled = -2  # the names come first
            while filled < row:
                before = reader.line_num
                filled += bool(next(reader, ["end"]))
        return f"line {before + 1}"


def _read(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, BadRowError | None]:
    """Turn fields into what they stand for, up to the first row that is no record."""
    columns: dict[str, Any] = {}
    bad: BadRowError | None = None
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        columns[name], problem = _parsed(name, column)
        if problem is not None and (bad is None or problem.row < bad.row):
            bad = problem
    count = batch.num_rows if bad is None else bad.row
    columns = {name: column[:count] for name, column in columns.items()}
    for name in ("key", "value"):
        coded = columns.pop(name + "_base64", None)
        if coded is not None:
            columns[name] = _together(columns.get(name), coded)
    return pa.RecordBatch.from_pydict(columns), bad


def _parsed(name: str, column: pa.Array) -> tuple[pa.Array, BadRowError | None]:
    if name not in _FIELDS:
        return column, None
    parse, kind = _FIELDS[name]
    values: list[Any] = []
    bad: BadRowError | None = None
    for row, field in enumerate(column.to_pylist()):
        try:
            values.append(None if field is None else parse(field))
        except (ValueError, click.BadParameter) as problem:
            reason = problem.message if isinstance(problem, click.BadParameter) else problem
            bad = BadRowError(row, f"{name}: {reason}")
            break
    return pa.array(values, kind), bad


def _together(plain: pa.Array | None, coded: pa.Array) -> pa.Array:
    """Return bytes from where they stand; whoever gives both means what is coded."""
    return coded if plain is None else pc.coalesce(coded, plain)


def _from_base64(field: bytes) -> bytes:
    return base64.b64decode(field, validate=True)


_FIELDS: dict[str, tuple[Callable[[bytes], Any], pa.DataType]] = {
    "partition": (int, pa.int64()),
    "timestamp": (lambda field: timestamp(field.decode()), pa.int64()),
    "key_base64": (_from_base64, pa.binary()),
    "value_base64": (_from_base64, pa.binary()),
    "headers": (lambda field: _pairs(headers_of(json.loads(field))), arrow.HEADER_TYPE),
}

SOURCES: dict[str, Callable[[str], Source]] = {
    "parquet": ParquetSource,
    "arrow": ArrowSource,
    "csv": CsvSource,
    "jsonl": JsonSource,
}


def open_source(path: str, file_format: str) -> Source:
    """Open a file of records; a sentence for people if it is none."""
    try:
        return SOURCES[file_format](path)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        raise click.ClickException(f"{path} cannot be read as {file_format}: {problem}") from None


def numbers_of(rows: pa.RecordBatch, topic: Topic, by_key: bool) -> NDArray[np.int64]:
    """Return the partition of each row: what the row says, or else what its key does."""
    given = None if by_key or "partition" not in rows.schema.names else rows["partition"]
    if given is not None and given.null_count == 0:
        numbers: NDArray[np.int64] = given.cast(pa.int64()).to_numpy()
    else:
        keys = rows["key"] if "key" in rows.schema.names else pa.nulls(rows.num_rows, pa.binary())
        numbers = topic.partition_numbers(keys)
        if given is not None:
            said = given.is_valid().to_numpy(zero_copy_only=False)
            numbers[said] = given.drop_null().cast(pa.int64()).to_numpy()
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(topic.partitions)))
    if len(wrong):
        row, count = int(wrong[0]), len(topic.partitions)
        raise BadRowError(row, f"there is no partition {numbers[row]}: the topic has {count}")
    return numbers


def with_times(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose times are all there: now, where none was given."""
    if "timestamp" not in rows.schema.names or rows["timestamp"].null_count == 0:
        return rows
    times = rows["timestamp"]
    if times.null_count == rows.num_rows:
        return rows.drop_columns(["timestamp"])
    now = pa.scalar(time.time_ns() // 1_000_000, pa.int64()).cast(times.type)
    return rows.set_column(rows.schema.names.index("timestamp"), "timestamp", times.fill_null(now))
