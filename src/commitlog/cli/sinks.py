"""Files to export to: Parquet, Arrow, CSV and JSON lines. Needs the extra `arrow`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from commitlog.batches import arrow
from commitlog.cli.json_records import bytes_field, header_objects
from commitlog.record import Header

import pyarrow as pa  # isort: skip - commitlog.batches.arrow says what to install if it is missing
from pyarrow import csv, parquet  # isort: skip

SCHEMA = arrow.PARTITIONED_SCHEMA
_TEXT_SCHEMA = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64())]
    + [(name, pa.string()) for name in ("key", "key_base64", "value", "value_base64", "headers")]
)
_GROUP_ROWS, _GROUP_BYTES = 128 * 1024, 32 * 1024 * 1024  # of a row group in Parquet
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


class Sink(Protocol):
    """A file to write batches of SCHEMA to."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""

    def close(self) -> None:
        """Write the rest, and close the file."""


class ArrowSink:
    """Arrow's IPC file format, which Polars, pandas and others map into memory."""

    def __init__(self, path: str) -> None:
        self._file = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(self._file, SCHEMA)
        self.write = self._writer.write_batch

    def close(self) -> None:
        """Write the footer, and close the file."""
        self._writer.close()
        self._file.close()


class ParquetSink:
    """Parquet, in row groups of a useful size."""

    def __init__(self, path: str) -> None:
        self._writer = parquet.ParquetWriter(path, SCHEMA, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Buffer a batch until a row group is full."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        table = pa.Table.from_batches(self._waiting, SCHEMA)
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        """Write the last row group and the footer, and close the file."""
        if self._waiting:
            self._write_group()
        self._writer.close()


class CsvSink:
    """CSV with a header line. An empty field is null; an empty string is quoted, like every string."""

    def __init__(self, path: str) -> None:
        self._file = pa.OSFile(path, "wb")
        self._writer = csv.CSVWriter(self._file, _TEXT_SCHEMA)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        headers = [
            None if not pairs else _encode(header_objects(_pairs(pairs)))
            for pairs in batch["headers"].to_pylist()
        ]
        columns = [batch["partition"], batch["offset"], batch["timestamp"].cast(pa.int64())]
        columns += [*_texts(batch["key"]), *_texts(batch["value"]), pa.array(headers, pa.string())]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_TEXT_SCHEMA))

    def close(self) -> None:
        """Write the rest, and close the file."""
        self._writer.close()
        self._file.close()


def _pairs(pairs: list[dict[str, Any]]) -> list[Header]:
    return [(pair["key"], pair["value"]) for pair in pairs]


def _texts(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return a column of text, and one of base64 for bytes that are not UTF-8, which most columns lack."""
    try:
        return column.cast(pa.string()), pa.nulls(len(column), pa.string())
    except pa.ArrowInvalid:
        fields = [bytes_field("key", data) for data in column.to_pylist()]
        return tuple(
            pa.array([one.get(name) for one in fields], pa.string()) for name in ("key", "key_base64")
        )


class JsonSink:
    """A JSON object on each line, as `consume --json` prints it."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 - until close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch."""
        plain = batch.set_column(2, "timestamp", batch["timestamp"].cast(pa.int64()))
        rows = zip(*(column.to_pylist() for column in plain.columns), strict=True)
        lines = [_encode(_object(*row)) for row in rows]
        self._file.write("\n".join([*lines, ""]))

    def close(self) -> None:
        """Write the rest, and close the file."""
        self._file.close()


def _object(
    partition: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None, pairs: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {"partition": partition, "offset": offset, "timestamp": timestamp}
    found |= bytes_field("key", key) | bytes_field("value", value)
    return found | {"headers": header_objects(_pairs(pairs))} if pairs else found


SINKS: dict[str, Callable[[str], Sink]] = {
    "parquet": ParquetSink,
    "arrow": ArrowSink,
    "csv": CsvSink,
    "jsonl": JsonSink,
}
