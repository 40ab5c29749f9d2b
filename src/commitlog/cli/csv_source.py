"""Records from a CSV file. Needs the extra `arrow`."""

from __future__ import annotations

import base64
import csv as plain_csv
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from commitlog.batches import arrow
from commitlog.cli.import_rows import ROWS, BadRowError, Chunk, pairs_of
from commitlog.cli.json_records import headers_of
from commitlog.cli.options import timestamp

import pyarrow as pa  # isort: skip - commitlog.batches.arrow says what to install if it is missing
import pyarrow.compute as pc  # isort: skip
from pyarrow import csv  # isort: skip

_BLOCK_BYTES = 1 << 20


class CsvSource:
    """CSV with a header line. An empty field is null without quotes, and an empty string with quotes."""

    unit = "bytes"

    def __init__(self, path: str, skip: int) -> None:
        self._path, self._skip, self.total = path, skip, os.path.getsize(path)
        self._passed_over = 0  # malformed rows among the skipped ones, which the reader does not count
        with open(path, encoding="utf-8-sig", newline="", errors="replace") as file:
            names = next(plain_csv.reader(file), [])
        self._file = pa.OSFile(path)
        self._wrong: list[BadRowError] = []  # rows with too many or too few fields
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
        number = row.number - 2  # the reader counts from 1, and the header line too
        if number < self._skip:
            self._passed_over += 1
        else:
            reason = f"{row.actual_columns} fields instead of {row.expected_columns}"
            self._wrong.append(BadRowError(number, reason))
        return "skip"  # rows before it in the same block still follow

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over the rows."""
        read = 0  # rows, without those passed over
        for block in self._reader:
            first = min(max(self._skip - self._passed_over - read, 0), block.num_rows)
            row = read + first + self._passed_over  # the number in the file of the first row to take
            last = self._wrong[0].row - row if self._wrong else block.num_rows
            wanted = block.slice(first, max(last, 0))
            for rows, bad in (_read(wanted.slice(at, ROWS)) for at in range(0, wanted.num_rows, ROWS)):
                yield Chunk(row, rows, self._file.tell())
                if bad is not None:
                    raise BadRowError(row + bad.row, bad.reason)
                row += rows.num_rows
            if self._wrong and row >= self._wrong[0].row:
                break
            read += block.num_rows
        if self._wrong:
            raise self._wrong[0]

    def place(self, row: int) -> str:
        """Return the line on which a row begins; a field may span several lines."""
        with open(self._path, encoding="utf-8-sig", newline="", errors="replace") as file:
            reader = plain_csv.reader(file)
            filled = -2  # the header line comes first
            while filled < row:
                before = reader.line_num
                filled += bool(next(reader, ["end"]))
        return f"line {before + 1}"


def _read(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, BadRowError | None]:
    """Parse the fields of rows, up to the first row that is not a record."""
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
        if coded is not None:  # base64 wins where a row has both
            columns[name] = pc.coalesce(coded, columns[name]) if name in columns else coded
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


def _from_base64(field: bytes) -> bytes:
    return base64.b64decode(field, validate=True)


_FIELDS: dict[str, tuple[Callable[[bytes], Any], pa.DataType]] = {
    "partition": (int, pa.int64()),
    "timestamp": (lambda field: timestamp(field.decode()), pa.int64()),
    "key_base64": (_from_base64, pa.binary()),
    "value_base64": (_from_base64, pa.binary()),
    "headers": (lambda field: pairs_of(headers_of(json.loads(field))), arrow.HEADER_TYPE),
}
