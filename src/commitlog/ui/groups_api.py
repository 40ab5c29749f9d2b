"""Consumer groups: their members, committed offsets and lag."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from commitlog.groups.admin import GroupDescription
from commitlog.inspect.describe import summarize_group
from commitlog.ui.requests import BadRequestError, JsonAnswer, limit, number, ui_of


def groups(request: Request) -> JsonAnswer:
    """List groups whose name contains `search`, from number `from` on."""
    log, search = ui_of(request).log, request.query_params.get("search", "").lower()
    names = [name for name in log.groups() if search in name.lower()]
    first = number(request, "from", 0) or 0
    chosen = names[first : first + limit(request, 50, 200)]
    listed = [_summary(log.describe_group(name)) for name in chosen]
    return JsonAnswer({"groups": listed, "from": first, "total": len(names)})


def _summary(group: GroupDescription) -> dict[str, Any]:
    found = asdict(summarize_group(group))
    return {**found, "lag": found["lag"] or 0}


def group(request: Request) -> JsonAnswer:
    """Describe one group: its members, and its partitions from number `from` on."""
    group_id = request.query_params.get("group_id")
    if group_id is None:
        raise BadRequestError("group_id is missing")
    found = ui_of(request).log.describe_group(group_id)
    first = number(request, "from", 0) or 0
    chosen = found.partitions[first : first + limit(request, 100, 500)]
    return JsonAnswer(
        {
            **_summary(found),
            "generation": found.generation,
            "strategy": found.strategy,
            "listed_members": [asdict(one) for one in found.members[:200]],
            "from": first,
            "listed": [asdict(one) for one in chosen],
        }
    )
