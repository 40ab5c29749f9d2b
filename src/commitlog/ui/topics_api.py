"""Topics and partitions: sizes, rates, and segments as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request

import commitlog
from commitlog.inspect.describe import describe_partition, has_gaps, records_between
from commitlog.partition import Partition
from commitlog.topic import Topic
from commitlog.ui import segments_view
from commitlog.ui.requests import JsonAnswer, Ui, isolation_of, key_of, limit, number, partition_of, ui_of
from commitlog.ui.transactions_api import open_in

_BARS_OF_A_ROW = 64
_BARS_OF_A_PAGE = 250


def about(request: Request) -> JsonAnswer:
    """Return the path of the log and whether the page may change it."""
    ui = ui_of(request)
    return JsonAnswer({"path": ui.log.path, "writable": ui.writable, "version": commitlog.__version__})


def topics(request: Request) -> JsonAnswer:
    """List topics whose name contains `search`, from number `from` on."""
    ui, search = ui_of(request), request.query_params.get("search", "").lower()
    names = [name for name in ui.log.topics() if search in name.lower()]
    first = number(request, "from", 0) or 0
    chosen = names[first : first + limit(request, 50, 200)]
    listed = [_topic(ui, ui.log.topic(name)) for name in chosen]
    return JsonAnswer({"topics": listed, "from": first, "total": len(names)})


def _topic(ui: Ui, topic: Topic) -> dict[str, Any]:
    found = [
        describe_partition(number, one, count_records=False) for number, one in enumerate(topic.partitions)
    ]
    return {
        "name": topic.name,
        "partitions": len(found),
        "segments": sum(one.segments for one in found),
        "records": sum(one.records for one in found),
        "has_gaps": any(has_gaps(one) for one in topic.partitions),
        "bytes": sum(one.bytes for one in found),
        "cleanup_policy": topic.config.cleanup_policy,
        "rates": _rates(ui, topic.name, topic.partitions),
    }


def _rates(ui: Ui, name: str, partitions: Sequence[Partition]) -> dict[str, Any]:
    found = ui.rates.look(name, partitions)
    return {"records": [one.records for one in found], "bytes": [one.bytes for one in found]}


def topic(request: Request) -> JsonAnswer:
    """Describe a topic and its partitions from number `from` on."""
    ui = ui_of(request)
    found = ui.log.topic(request.path_params["topic"])
    first = number(request, "from", 0) or 0
    chosen = list(enumerate(found.partitions))[first : first + limit(request, 50, 200)]
    return JsonAnswer(
        {
            **_topic(ui, found),
            "config": found.config.overrides(),
            "from": first,
            "listed": [_partition(ui, found.name, index, one, _BARS_OF_A_ROW) for index, one in chosen],
        }
    )


def partition(request: Request) -> JsonAnswer:
    """Describe one partition, and count the records from offset `since` on."""
    ui, name, one = ui_of(request), request.path_params["topic"], partition_of(request)
    level, since = isolation_of(request), number(request, "since")
    found = _partition(ui, name, request.path_params["partition"], one, _BARS_OF_A_PAGE)
    topic = ui.log.topic(name)
    extra = {
        "topic": name,
        "partitions": len(topic.partitions),
        "compacts": topic.config.compacts,
        "open_transactions": open_in(ui.log, one),
        "newer": 0 if since is None else records_between(one, since, one.end_offset(level), level),
    }
    return JsonAnswer({**found, **extra})


def _partition(ui: Ui, topic_name: str, index: int, found: Partition, most: int) -> dict[str, Any]:
    return {
        **asdict(describe_partition(index, found, count_records=False)),
        "clean_offset": found.clean_offset,
        "has_gaps": has_gaps(found),
        "rates": _rates(ui, f"{topic_name}/{index}", [found]),
        "bars": [asdict(one) for one in segments_view.bars(found, most)],
    }


def place(request: Request) -> JsonAnswer:
    """Return the partition that the topic's partitioner chooses for a key."""
    found = ui_of(request).log.topic(request.path_params["topic"])
    ((index, _),) = found.places([key_of(request)], {})
    return JsonAnswer({"partition": index})


def details(request: Request) -> JsonAnswer:
    """Describe the segments in [base_offset, end_offset) in detail."""
    base = number(request, "base_offset", 0) or 0
    end = number(request, "end_offset", base) or base
    return JsonAnswer(segments_view.details(partition_of(request), base, end))
