"""Records: a page of them by offset, time, key or content, or one in full."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from commitlog.partition import Partition
from commitlog.ui import rendering
from commitlog.ui.requests import BadRequestError, JsonAnswer, key_of, limit, number, partition_of
from commitlog.ui.search import Found, Wanted, newest_first, oldest_first


def records(request: Request) -> JsonAnswer:
    """Return a page of records.

    `order` is oldest (from `from` on) or newest (below `from`). `time`, in milliseconds, means the first
    offset at or after it. `key` (in hex with key_format=hex) and `contains` filter the records.
    """
    partition, order = partition_of(request), request.query_params.get("order", "oldest")
    if order not in ("oldest", "newest"):
        raise BadRequestError("order must be oldest or newest")
    wanted, count = _wanted(request), limit(request, 50, 200)
    start = _start(request, partition)
    if order == "newest":
        end = partition.high_watermark if start is None else start
        found = newest_first(partition, end, count, wanted)
    else:
        found = oldest_first(partition, partition.start_offset if start is None else start, count, wanted)
    return JsonAnswer(_page(partition, found, order))


def _start(request: Request, partition: Partition) -> int | None:
    time = number(request, "time", low=-(2**63))
    if time is None:
        return number(request, "from")
    offset = partition.offset_for_timestamp(time)
    return partition.high_watermark if offset is None else offset


def _wanted(request: Request) -> Wanted:
    contains = request.query_params.get("contains")
    return Wanted(key_of(request), contains.encode() if contains else None)


def _page(partition: Partition, found: Found, order: str) -> dict[str, Any]:
    low, high = partition.start_offset, partition.high_watermark
    more = found.start > low if order == "newest" else found.end < high
    return {
        "records": [rendering.record(one, rendering.PREVIEW) for one in found.records],
        "looked_at": [found.start, found.end],
        "next": (found.start if order == "newest" else found.end) if more else None,
        "start_offset": low,
        "high_watermark": high,
    }


def record(request: Request) -> JsonAnswer:
    """Return one record, in full up to a large limit."""
    offset = request.path_params["offset"]
    found = partition_of(request).get(offset)
    if found is None:
        return JsonAnswer({"error": f"there is no record at offset {offset}; compaction removed it"}, 404)
    return JsonAnswer(rendering.record(found, rendering.WHOLE))
