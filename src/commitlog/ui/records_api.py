"""Records: a page of them by offset, time, key or content, or one in full."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from commitlog.config import IsolationLevel
from commitlog.partition import Partition
from commitlog.ui import rendering
from commitlog.ui.outcomes import outcomes
from commitlog.ui.requests import (
    BadRequestError,
    JsonAnswer,
    isolation_of,
    key_of,
    limit,
    number,
    partition_of,
)
from commitlog.ui.search import Found, Wanted, newest_first, oldest_first


def records(request: Request) -> JsonAnswer:
    """Return a page of records.

    `order` is oldest (from `from` on) or newest (below `from`). `time`, in milliseconds, means the first
    offset at or after it. `key` (in hex with key_format=hex) and `contains` filter the records. With
    isolation_level=read_uncommitted, records of open and aborted transactions are there, too.
    """
    partition, order = partition_of(request), request.query_params.get("order", "oldest")
    if order not in ("oldest", "newest"):
        raise BadRequestError("order must be oldest or newest")
    wanted, count, level = _wanted(request), limit(request, 50, 200), isolation_of(request)
    start = _start(request, partition, level)
    if order == "newest":
        end = partition.end_offset(level) if start is None else start
        found = newest_first(partition, end, count, wanted, level)
    else:
        first = partition.start_offset if start is None else start
        found = oldest_first(partition, first, count, wanted, level)
    return JsonAnswer(_page(partition, found, order, level))


def _start(request: Request, partition: Partition, level: IsolationLevel) -> int | None:
    time = number(request, "time", low=-(2**63))
    if time is None:
        return number(request, "from")
    offset = partition.offset_for_timestamp(time, isolation_level=level)
    return partition.end_offset(level) if offset is None else offset


def _wanted(request: Request) -> Wanted:
    contains = request.query_params.get("contains")
    return Wanted(key_of(request), contains.encode() if contains else None)


def _page(partition: Partition, found: Found, order: str, level: IsolationLevel) -> dict[str, Any]:
    low, high = partition.start_offset, partition.end_offset(level)
    more = found.start > low if order == "newest" else found.end < high
    records = [rendering.record(one, rendering.PREVIEW) for one in found.records]
    if level == "read_uncommitted":
        undone = outcomes(partition, [one.offset for one in found.records])
        records = [{**one, "transaction": undone.get(one["offset"])} for one in records]
    return {
        "records": records,
        "looked_at": [found.start, found.end],
        "next": (found.start if order == "newest" else found.end) if more else None,
        "start_offset": low,
        "end_offset": high,
    }


def record(request: Request) -> JsonAnswer:
    """Return one record, in full up to a large limit."""
    offset, partition = request.path_params["offset"], partition_of(request)
    found = partition.get(offset, isolation_level=isolation_of(request))
    if found is None:
        why = "compaction removed it"
        if partition.has_transactions:
            why = "it was aborted, a marker is there, or " + why
        return JsonAnswer({"error": f"there is no record at offset {offset}; {why}"}, 404)
    return JsonAnswer(rendering.record(found, rendering.WHOLE))
