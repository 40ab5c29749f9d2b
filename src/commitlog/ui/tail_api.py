"""The live tail: new records of a topic, or of one partition, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from commitlog.config import IsolationLevel
from commitlog.errors import CommitLogError
from commitlog.inspect.describe import records_between
from commitlog.partition import Partition
from commitlog.ui import rendering
from commitlog.ui.requests import isolation_of, number, ui_of

_SECONDS = 0.2  # between two reads
_MOST_RECORDS = 200  # per event: nobody reads more in that time
_QUIET_LOOKS = 50  # after this many without a record, a comment is sent to detect a closed connection


async def tail(request: Request) -> StreamingResponse:
    """Send records as they are appended from now on."""
    topic = await run_in_threadpool(ui_of(request).log.topic, request.path_params["topic"])
    chosen = number(request, "partition")
    numbers = range(len(topic.partitions)) if chosen is None else [chosen]
    follower = Follower({one: topic.partition(one) for one in numbers}, isolation_of(request))
    return StreamingResponse(
        _events(follower, request, request.app.state.closing), media_type="text/event-stream"
    )


async def _events(follower: Follower, request: Request, closing: Callable[[], bool]) -> AsyncIterator[str]:
    yield _event("ready", {"partitions": len(follower.positions)})
    quiet = 0
    while not closing() and not await request.is_disconnected():
        try:
            news = await run_in_threadpool(follower.look)
        except (CommitLogError, OSError) as problem:  # for example, the topic was deleted
            yield _event("problem", {"error": str(problem)})
            return
        quiet = 0 if news else quiet + 1
        if news:
            yield _event("records", {"partitions": news})
        elif quiet % _QUIET_LOOKS == 0:
            yield ": nothing new\n\n"
        await asyncio.sleep(_SECONDS)


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


class Follower:
    """Keeps a position in each partition. Records that arrive too fast are skipped, and counted."""

    def __init__(
        self, partitions: Mapping[int, Partition], isolation_level: IsolationLevel = "read_committed"
    ) -> None:
        self._partitions = partitions
        self._level: IsolationLevel = isolation_level
        self.positions = self._ends()

    def _ends(self) -> dict[int, int]:
        return {number: one.end_offset(self._level) for number, one in self._partitions.items()}

    def look(self) -> list[dict[str, Any]]:
        """Return the new records of each partition that has some."""
        ends = self._ends()
        changed = [number for number, end in ends.items() if end != self.positions[number]]
        most = max(_MOST_RECORDS // max(len(changed), 1), 1)
        news = [self._news(number, ends[number], most) for number in changed]
        return [one for one in news if one["records"] or one["skipped"]]  # there may only be markers

    def _news(self, number: int, end: int, most: int) -> dict[str, Any]:
        partition, position, level = self._partitions[number], self.positions[number], self._level
        start = min(max(position, end - most, partition.start_offset), end)
        found = partition.records(start, end, isolation_level=level)
        records = [rendering.record(one, rendering.PREVIEW) for one in found]
        skipped = records_between(partition, position, start, level)
        self.positions[number] = end
        return {"partition": number, "skipped": skipped, "records": records}
