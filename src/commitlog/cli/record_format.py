"""Render batches as text, JSON lines, hex or raw bytes, column by column where possible."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commitlog.batches.batch import RecordBatch
from commitlog.cli.json_records import bytes_field, header_objects
from commitlog.record import Header, TopicPartition

NULL = b"null"
_quoted = json.encoder.encode_basestring

Form = Literal["text", "json", "hex", "raw"]


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How to print records: the form, and the columns besides the value."""

    form: Form = "text"
    partitions: bool = False
    offsets: bool = False
    timestamps: bool = False
    headers: bool = False
    keys: bool = False
    separator: bytes = b"\t"

    def render(self, name: TopicPartition, batch: RecordBatch) -> bytes:
        """Return the text of the records of a batch."""
        if self.form == "json":
            return _json_lines(name, batch)
        if self.form == "raw":
            return b"".join(value for value in batch.values() if value is not None)
        columns = self._before(name, batch)
        values = self._texts(batch.values())
        lines = map(self.separator.join, zip(*columns, values, strict=True)) if columns else values
        return b"\n".join([*lines, b""])

    def _before(self, name: TopicPartition, batch: RecordBatch) -> list[list[bytes]]:
        """Return the columns before the value."""
        columns: list[list[bytes]] = []
        if self.partitions:
            columns.append([b"%d" % name.partition] * len(batch))
        if self.offsets:
            columns.append([b"%d" % offset for offset in batch.offsets.tolist()])
        if self.timestamps:
            columns.append([time.encode() for time in iso_times(batch)])
        if self.headers:
            columns.append([self._header_text(headers) for headers in batch.headers()])
        if self.keys:
            columns.append(self._texts(batch.keys()))
        return columns

    def _texts(self, strings: list[bytes | None]) -> list[bytes]:
        if self.form == "hex":
            return [NULL if one is None else one.hex().encode() for one in strings]
        return [NULL if one is None else one for one in strings] if None in strings else strings  # type: ignore[return-value]

    def _header_text(self, headers: tuple[Header, ...]) -> bytes:
        values = self._texts([value for _, value in headers])
        pairs = [name.encode() + b"=" + value for (name, _), value in zip(headers, values, strict=True)]
        return b",".join(pairs) or b"-"


def iso_times(batch: RecordBatch) -> list[str]:
    """Return the timestamps of a batch as ISO 8601 in UTC, to the millisecond."""
    times: list[str] = np.datetime_as_string(batch.timestamps.astype("M8[ms]"), timezone="UTC").tolist()
    return times


def _json_lines(name: TopicPartition, batch: RecordBatch) -> bytes:
    # measured: a third of the time of json.dumps() on a dictionary
    start = f'{{"topic": {_quoted(name.topic)}, "partition": {name.partition}, "offset": '
    lines = [
        f'{start}{record.offset}, "timestamp": {record.timestamp}, {_member("key", record.key)}, '
        f'{_member("value", record.value)}, "headers": {_headers_json(record.headers)}}}'
        for record in batch.records()
    ]
    return "\n".join([*lines, ""]).encode()


def _member(name: str, data: bytes | None) -> str:
    """Return bytes as a member of a JSON object; see json_records.py."""
    ((name, text),) = bytes_field(name, data).items()
    return f'"{name}": null' if text is None else f'"{name}": {_quoted(text)}'


def _headers_json(headers: tuple[Header, ...]) -> str:
    return json.dumps(header_objects(headers), ensure_ascii=False) if headers else "[]"
