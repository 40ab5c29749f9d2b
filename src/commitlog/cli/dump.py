"""`commitlog dump`: show the contents of a log's files, like Kafka's dump-log tool."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import click

from commitlog import aborted_index
from commitlog.batches.batch import RecordBatch
from commitlog.batches.format import LOG_APPEND_TIME, BatchHeader
from commitlog.batches.markers import first_offset_of
from commitlog.cli import options
from commitlog.cli.json_records import bytes_field, header_objects
from commitlog.cli.output import write_bytes
from commitlog.index import OffsetIndex, TimeIndex
from commitlog.partitions import epochs, producer_state
from commitlog.partitions.page import NAME as PAGE_NAME
from commitlog.partitions.page import StatePage
from commitlog.repair import Damage, sound_batches
from commitlog.segment import LOG_SUFFIX, Segment

Entry = dict[str, Any]
_FREE_TEXT = ("key", "value")
_STARTS = {"record": "| ", "damage": "DAMAGE ", "marker": "MARKER ", "transaction": "OPEN "}
_PAGE_FIELDS = (
    "start_offset", "next_offset", "high_watermark", "last_stable_offset", "durable_offset", "clean_offset",
    "base_offset", "end_position", "generation", "truncations", "has_transactions", "undecided_offset",
    "aborts",
)  # fmt: skip


@click.command(
    epilog=options.example(
        "commitlog dump data/orders-0/00000000000000000000.log --records",
        "commitlog dump data/orders-0/*.index --json",
    )
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False)
)
@click.option("--records", is_flag=True, help="Also show the records of each batch.")
@options.as_json
def dump(files: Sequence[str], records: bool, as_json: bool) -> None:
    """Show the batches and markers of segments and the entries of indexes.

    FILE is a .log, .index, .timeindex, .txnindex or .snapshot file, a state page or a
    leader-epoch-checkpoint. Records are shown whether or not their transaction is committed. With --json
    every line is an object whose `kind` is batch, marker, record, damage, entry, aborted, snapshot,
    transaction, published, state, checkpoint or epoch. The exit code is 1 if there is damage.
    """
    damaged = False
    for path in files:
        if not as_json:
            _print(f"Dumping {path}")
        for entry in entries_of(path, records):
            damaged = damaged or entry["kind"] == "damage"
            _print(json.dumps({"file": path, **entry}) if as_json else _line(entry))
    if damaged:
        raise click.exceptions.Exit(1)


def _print(line: str) -> None:
    write_bytes(line.encode(errors="surrogateescape") + b"\n")


def entries_of(path: str, records: bool) -> Iterator[Entry]:
    """Iterate over the entries of a file."""
    name = os.path.basename(path)
    if name == PAGE_NAME:
        return _state(path)
    if name == epochs.NAME:
        return _epochs(path)
    if name[:1].isdecimal() and LOG_SUFFIX in name:
        return _batches(path, records)
    if name[:1].isdecimal() and name.endswith((OffsetIndex.suffix, TimeIndex.suffix)):
        return _index(path)
    if name[:1].isdecimal() and aborted_index.SUFFIX in name:
        return _aborted(path)
    if name[:1].isdecimal() and name.endswith(producer_state.SUFFIX):
        return _snapshot(path)
    raise click.ClickException(
        f"{path} is not a .log, .index, .timeindex, .txnindex or .snapshot file, a state page or an epoch "
        "checkpoint"
    )


def _line(entry: Entry) -> str:
    """Return an entry as a line of names and values; the start tells a record, and others, from a batch."""
    start = _STARTS.get(entry["kind"], "")
    return start + " ".join(
        f"{name}: {_shown(name, value)}" for name, value in entry.items() if name != "kind"
    )


def _shown(name: str, value: Any) -> str:
    quoted = not isinstance(value, str) or name in _FREE_TEXT  # so that a record stays on one line
    return json.dumps(value, ensure_ascii=False) if quoted else value


def _batches(path: str, records: bool) -> Iterator[Entry]:
    segment = Segment.open(path)
    buffer = segment.buffer() if segment.size_bytes else memoryview(b"")
    for position, _, found in sound_batches(segment, None):
        if isinstance(found, Damage):
            where = {"position": found.position, "end_position": found.end_position}
            yield {"kind": "damage", **where, "reason": found.reason}
            continue
        batch = RecordBatch.decode(buffer, position, path=path)
        if found.is_marker:
            yield _marker(batch, found, first_offset_of(found, buffer, position))
            continue
        yield _batch(batch, found)
        if records:
            yield from map(_record, batch.records())


def _batch(batch: RecordBatch, header: BatchHeader) -> Entry:
    last = header.base_sequence + header.record_count - 1 if header.base_sequence >= 0 else -1
    return {
        "kind": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.next_offset - 1,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": last,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "transactional": header.is_transactional,
        "leader_epoch": header.leader_epoch,
        "delete_horizon": batch.delete_horizon,
        "position": batch.position,
        "timestamp_type": "LogAppendTime" if header.flags & LOG_APPEND_TIME else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "size": header.size,
        "compression_type": header.compression_type,
        "crc": f"{header.crc:08x}",
        "valid": True,
    }


def _marker(batch: RecordBatch, header: BatchHeader, first_offset: int) -> Entry:
    return {
        "kind": "marker",
        "offset": header.base_offset,
        "decision": "commit" if header.commits else "abort",
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "first_offset": first_offset,
        "leader_epoch": header.leader_epoch,
        "delete_horizon": batch.delete_horizon,
        "position": batch.position,
        "timestamp": header.max_timestamp,
        "size": header.size,
        "crc": f"{header.crc:08x}",
        "valid": True,
    }


def _record(record: Any) -> Entry:
    return {
        "kind": "record",
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key_size": -1 if record.key is None else len(record.key),
        "value_size": -1 if record.value is None else len(record.value),
        "headers": header_objects(record.headers),
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
    }


def _index(path: str) -> Iterator[Entry]:
    index = (TimeIndex if path.endswith(TimeIndex.suffix) else OffsetIndex).open(path)
    for number in range(len(index)):
        entry = index[number]
        time = {} if entry.timestamp is None else {"timestamp": entry.timestamp}
        yield {"kind": "entry", **time, "offset": entry.offset, "position": entry.position}
    log = os.path.splitext(path)[0] + LOG_SUFFIX
    if os.path.exists(log) and not Segment.open(log).confirms_all(index):
        yield {"kind": "damage", "reason": f"the entries do not match {os.path.basename(log)}"}


def _aborted(path: str) -> Iterator[Entry]:
    """List the aborted transactions; the state page tells how many the active segment has."""
    folder, name = os.path.split(path)
    log = os.path.join(folder, name.replace(aborted_index.SUFFIX, LOG_SUFFIX))
    if not os.path.exists(log):
        yield {"kind": "damage", "reason": f"there is no {os.path.basename(log)}"}
        return
    segment = Segment.open(log)
    found = aborted_index.load(log, segment.size_bytes)
    page = StatePage.open(folder or ".")
    if found is None and page is not None and page.base_offset == segment.base_offset:
        found = aborted_index.load(log, segment.size_bytes, page.aborts)
    if found is None:
        yield {
            "kind": "damage",
            "reason": "the list is not known to be complete; readers look for the markers",
        }
        return
    for entry in found:
        yield {"kind": "aborted", **entry._asdict()}


def _snapshot(path: str) -> Iterator[Entry]:
    producers = producer_state.Producers.load(path)
    if producers is None:
        yield {"kind": "damage", "reason": "it is not a snapshot of producers, or its checksum is wrong"}
        return
    yield {"kind": "snapshot", "next_offset": producers.next_offset, "producers": len(producers)}
    for one in producers.open_transactions():
        yield {"kind": "transaction", **one._asdict()}
    if producers.published is not None:
        yield {"kind": "published", **producers.published._asdict()}


def _state(path: str) -> Iterator[Entry]:
    page = StatePage.open(os.path.dirname(path) or ".")
    if page is None:
        yield {"kind": "damage", "reason": "it is not a state page"}
        return
    yield {"kind": "state", **{name: getattr(page, name) for name in _PAGE_FIELDS}}
    if page.checkpoint is None:
        yield {"kind": "damage", "reason": "no checkpoint has a valid checksum"}
    else:
        yield {"kind": "checkpoint", **page.checkpoint._asdict()}


def _epochs(path: str) -> Iterator[Entry]:
    history = epochs.load(os.path.dirname(path) or ".")
    if history is None:
        yield {"kind": "damage", "reason": "it is not a leader-epoch-checkpoint, or its checksum is wrong"}
        return
    for epoch, start_offset in history.starts:
        yield {"kind": "epoch", "leader_epoch": epoch, "start_offset": start_offset}
