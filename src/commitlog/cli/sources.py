"""Files to import: Parquet, Arrow and JSON lines; csv_source.py has CSV. Needs the extra `arrow`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import click

from commitlog.batches import arrow
from commitlog.cli.csv_source import CsvSource
from commitlog.cli.import_rows import ROWS, BadRowError, Chunk, Source, pairs_of
from commitlog.cli.json_records import GivenRecord, parse_record
from commitlog.errors import InvalidRecordError

import pyarrow as pa  # isort: skip - commitlog.batches.arrow says what to install if it is missing
from pyarrow import parquet  # isort: skip


class _ColumnSource:
    """A file of columns: its rows have numbers, but no lines."""

    unit = "batches"
    _batches: Iterator[tuple[pa.RecordBatch, int]]
    _skip: int

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over the rows."""
        row = 0
        for batch, done in self._batches:
            for first in range(min(max(self._skip - row, 0), batch.num_rows), batch.num_rows, ROWS):
                yield Chunk(row + first, batch.slice(first, ROWS), done)
            row += batch.num_rows

    def place(self, row: int) -> str:
        """Return the number of a row, counted from 1."""
        return f"row {row + 1}"


class ParquetSource(_ColumnSource):
    """A Parquet file."""

    unit = "records"

    def __init__(self, path: str, skip: int) -> None:
        self._skip = skip
        self._file = parquet.ParquetFile(path)
        self.total = self._file.metadata.num_rows
        self._batches = self._counted()

    def _counted(self) -> Iterator[tuple[pa.RecordBatch, int]]:
        done = 0
        for batch in self._file.iter_batches(batch_size=ROWS):
            done += batch.num_rows
            yield batch, done


class ArrowSource(_ColumnSource):
    """Arrow's IPC format, as a file or as a stream."""

    def __init__(self, path: str, skip: int) -> None:
        self._skip = skip
        mapped = pa.memory_map(path)
        try:
            file = pa.ipc.open_file(mapped)
            self.total = file.num_record_batches
            self._batches = ((file.get_batch(number), number + 1) for number in range(self.total))
        except pa.ArrowInvalid:
            mapped.seek(0)
            self.unit, self.total = "bytes", mapped.size()
            self._batches = ((batch, mapped.tell()) for batch in pa.ipc.open_stream(mapped))


class JsonSource:
    """A JSON object on each line, as `consume --json` prints it; empty lines are not rows."""

    unit = "bytes"

    def __init__(self, path: str, skip: int) -> None:
        self._path, self._skip, self.total = path, skip, os.path.getsize(path)
        self._empty: list[int] = []  # rows that follow an empty line

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over the rows."""
        records: list[GivenRecord] = []
        done = 0
        for row, line, done in self._lines():
            try:
                records.append(parse_record(line, row))
            except (InvalidRecordError, click.BadParameter) as problem:
                yield Chunk(row - len(records), _rows_of(records), done)
                reason = problem.message if isinstance(problem, click.BadParameter) else problem.args[1]
                raise BadRowError(row, reason) from None
            if len(records) == ROWS:
                yield Chunk(row + 1 - ROWS, _rows_of(records), done)
                records = []
        if records:
            yield Chunk(row + 1 - len(records), _rows_of(records), done)

    def _lines(self) -> Iterator[tuple[int, bytes, int]]:
        """Iterate over rows from the first wanted one on, with the bytes read so far."""
        done = row = 0
        with open(self._path, "rb") as file:
            for line in file:
                done += len(line)
                if not line.strip():
                    self._empty.append(row)
                    continue
                if row >= self._skip:
                    yield row, line, done
                row += 1

    def place(self, row: int) -> str:
        """Return the line of a row."""
        return f"line {row + 1 + sum(before <= row for before in self._empty)}"


def _rows_of(records: list[GivenRecord]) -> pa.RecordBatch:
    """Return records as columns; missing timestamps and partitions are null."""
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([one.key for one in records], pa.binary()),
            "value": pa.array([one.value for one in records], pa.binary()),
            "headers": pa.array([pairs_of(one.headers) for one in records], arrow.HEADER_TYPE),
            "timestamp": pa.array([one.timestamp for one in records], pa.int64()),
            "partition": pa.array([one.partition for one in records], pa.int64()),
        }
    )


_SOURCES: dict[str, Callable[[str, int], Source]] = {
    "parquet": ParquetSource,
    "arrow": ArrowSource,
    "csv": CsvSource,
    "jsonl": JsonSource,
}


def open_source(path: str, file_format: str, skip: int) -> Source:
    """Open a file of records, from row `skip` on; a ClickException if it is not in this format."""
    try:
        return _SOURCES[file_format](path, skip)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
        raise click.ClickException(f"{path} cannot be read as {file_format}: {problem}") from None
