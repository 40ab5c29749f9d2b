"""Topics and partitions: what there is, how large, how fast, and their segments as bars."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

import commitlog
from commitlog.topic import Topic
from commitlog.ui import segments_view
from commitlog.ui.requests import JsonAnswer, Ui, key_of, limit, number, partition_of, ui_of

_BARS_OF_A_ROW = 64
_BARS_OF_A_PAGE = 250


def about(request: Request) -> JsonAnswer:
    """Tell which log this is."""
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
    sizes = [_sizes(one) for one in topic.partitions]
    size, end = sum(one["bytes"] for one in sizes), sum(one["next_offset"] for one in sizes)
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "segments": sum(one["segments"] for one in sizes),
        "records": sum(one["next_offset"] - one["start_offset"] for one in sizes),
        "bytes": size,
        "cleanup_policy": topic.config.cleanup_policy,
        "rates": ui.rates.look(topic.name, end, size),
    }


def _sizes(partition: Any) -> dict[str, int]:
    segments = partition.segments
    return {
        "start_offset": partition.start_offset,
        "next_offset": partition.next_offset,
        "segments": len(segments),
        "bytes": sum(one.size_bytes for one in segments),
    }


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
    """Describe one partition."""
    ui, name = ui_of(request), request.path_params["topic"]
    found = _partition(ui, name, request.path_params["partition"], partition_of(request), _BARS_OF_A_PAGE)
    config = ui.log.topic(name).config
    return JsonAnswer(
        {
            **found,
            "topic": name,
            "partitions": len(ui.log.topic(name).partitions),
            "compacts": config.compacts,
        }
    )


def _partition(ui: Ui, topic_name: str, index: int, found: Any, most: int) -> dict[str, Any]:
    sizes, drawn = _sizes(found), segments_view.bars(found, most)
    return {
        "partition": index,
        **sizes,
        "high_watermark": found.high_watermark,
        "durable_offset": found.durable_offset,
        "clean_offset": found.clean_offset,
        "dirty_ratio": segments_view.dirty_ratio(drawn),
        "rates": ui.rates.look(f"{topic_name}/{index}", sizes["next_offset"], sizes["bytes"]),
        "bars": [segments_view.plain(one) for one in drawn],
    }


def place(request: Request) -> JsonAnswer:
    """Tell to which partition the topic's partitioner gives a key."""
    found = ui_of(request).log.topic(request.path_params["topic"])
    ((index, _),) = found.places([key_of(request)], {})
    return JsonAnswer({"partition": index})


def closer(request: Request) -> JsonAnswer:
    """Tell more about the segments in [base_offset, end_offset)."""
    base = number(request, "base_offset", 0) or 0
    end = number(request, "end_offset", base) or base
    return JsonAnswer(segments_view.closer(partition_of(request), base, end))
