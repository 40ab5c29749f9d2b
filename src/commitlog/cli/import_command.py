"""`commitlog import`: append the records of a file to a topic."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from commitlog.cli import options
from commitlog.cli.file_formats import format_of, format_option
from commitlog.cli.open_log import writing
from commitlog.cli.output import answer, counted
from commitlog.cli.progress_bar import Report, progress_bar
from commitlog.errors import InvalidRecordError, RecordTooLargeError
from commitlog.topic import Topic, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlog.cli.import_rows import Source

_COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
_CHUNK_BYTES = 4 * 1024 * 1024


@click.command(
    "import",
    epilog=options.example(
        "commitlog import data orders orders.parquet",
        "commitlog import data users users.csv --by-key",
        "commitlog import data events events.jsonl --skip 12000",
    ),
)
@options.directory
@options.topic
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@format_option
@options.partition
@click.option("--by-key", is_flag=True, help="Choose partitions by key, and ignore those in FILE.")
@click.option(
    "--skip", type=click.IntRange(0), default=0, metavar="N", help="Skip the first N records of FILE."
)
@options.shared
@options.as_json
def import_command(
    directory: str, topic: str, file: str, file_format: str | None, partition: int | None, by_key: bool,
    skip: int, shared: bool, as_json: bool,
) -> None:  # fmt: skip
    """Append the records of FILE (Parquet, Arrow, CSV or JSON lines) to a topic.

    FILE needs a column value; key, timestamp, headers and partition are optional. The column offset is
    ignored: records get new offsets. Without a partition, the key decides. At a row that is not a record the
    import stops and names it; the rows before it stay appended. Everything is durable when the command ends.
    """
    if partition is not None and by_key:
        raise click.UsageError("--partition and --by-key cannot be combined")
    from commitlog.cli.sources import open_source  # pyarrow is a separate extra

    source = open_source(file, format_of(file, file_format), skip)
    with writing(directory, shared=shared) as log:
        target = Import(log.topic(topic), partition, by_key=by_key)
        with progress_bar("importing", unit=source.unit) as progress:
            _run(source, target, file, progress)
    counts = [{"partition": number, "records": count} for number, count in sorted(target.counts.items())]
    document = {"topic": topic, "file": file, "records": target.records, "partitions": counts}
    answer(as_json, document, f"imported {counted(target.records, 'record')} of {file} into topic {topic!r}")


def _run(source: Source, target: Import, file: str, progress: Report | None) -> None:
    from commitlog.cli.import_rows import BadRowError

    try:
        for first, rows, done in source.chunks():
            _check_columns(rows.schema.names, file)
            try:
                target.append(rows)
            except BadRowError as bad:
                raise BadRowError(first + bad.row, bad.reason) from None
            if progress is not None:
                progress(done, source.total)
    except BadRowError as bad:
        raise click.ClickException(
            f"{file}, {source.place(bad.row)}: {bad.reason}; the {target.records} records before it are "
            f"imported, continue after it with --skip {bad.row + 1}"
        ) from None


def _reason(error: InvalidRecordError | RecordTooLargeError) -> str:
    """Return why a record is refused, without its number, which counts from the start of a chunk."""
    if isinstance(error, InvalidRecordError):
        return str(error.args[1])
    return "it has {1} bytes, max_message_bytes is {2}".format(*error.args)


def _check_columns(names: list[str], file: str) -> None:
    unknown = [name for name in names if name not in _COLUMNS]
    if unknown or "value" not in names:
        found = f"a column {unknown[0]!r}" if unknown else "no column 'value'"
        raise click.ClickException(f"{file} has {found}; columns may be {', '.join(_COLUMNS)}")


class Import:
    """Appends rows to a topic, and counts those that are appended."""

    def __init__(self, topic: Topic, partition: int | None, *, by_key: bool) -> None:
        self.counts: Counter[int] = Counter()
        self._topic = topic
        self._partition, self._by_key = partition, by_key
        if partition is not None:
            topic.partition(partition)

    @property
    def records(self) -> int:
        """The number of appended records."""
        return self.counts.total()

    def append(self, rows: pa.RecordBatch) -> None:
        """Append rows; BadRowError at a bad one, after those before it are appended."""
        from commitlog.cli.import_rows import BadRowError

        most_bytes = min(_CHUNK_BYTES, self._topic.config.segment_bytes // 2)
        each = max(1, rows.num_rows * most_bytes // (rows.nbytes + 1))
        for first in range(0, rows.num_rows, each):
            part = rows.slice(first, each)
            try:
                self._append(part)
            except BadRowError as bad:
                if bad.row:
                    self.append(part.slice(0, bad.row))  # which raises for a bad row before this one
                raise BadRowError(first + bad.row, bad.reason) from None

    def _append(self, rows: pa.RecordBatch) -> None:
        """Append all rows or none: all are encoded before the first one is appended."""
        encoded = []
        for number, chosen in self._shares(rows):
            share = rows if chosen is None else rows.take(chosen)
            data = share.select([name for name in share.schema.names if name not in ("partition", "offset")])
            encoded.append((number, self._encode(number, data, chosen)))
        for number, batches in encoded:
            self.counts[number] += len(self._topic.partition(number).append_encoded(batches))

    def _encode(self, number: int, data: pa.RecordBatch, chosen: list[int] | None) -> Any:
        from commitlog.cli.import_rows import BadRowError, with_times

        try:
            return self._topic.partition(number).encode_arrow(with_times(data))
        except (InvalidRecordError, RecordTooLargeError) as error:
            row = error.args[0] if chosen is None else chosen[error.args[0]]
            raise BadRowError(row, _reason(error)) from None

    def _shares(self, rows: pa.RecordBatch) -> list[tuple[int, list[int] | None]]:
        """Return the partitions, and the rows that go to each; None means all."""
        from commitlog.cli.import_rows import numbers_of

        if self._partition is not None:
            return [(self._partition, None)]
        numbers = numbers_of(rows, self._topic, self._by_key)
        return [*rows_of(numbers)] if rows.num_rows else []
