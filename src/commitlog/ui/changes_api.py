"""Changes that a writable page offers: append, trim, roll, compact, reset a group, abort a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from commitlog.record import Header
from commitlog.ui.requests import BadRequestError, JsonAnswer, Ui, body_of, checked, partition_of, ui_of

Change = Callable[[Ui, Request, dict[str, Any]], dict[str, Any]]


def changing(change: Change) -> Callable[[Request], Awaitable[JsonAnswer]]:
    """Return the endpoint for a change; it refuses unless the page is writable."""

    async def endpoint(request: Request) -> JsonAnswer:
        ui = ui_of(request)
        if not ui.writable:
            raise HTTPException(403, "this page is read-only; start it with commitlog ui --writable")
        body = await body_of(request)
        return JsonAnswer(await run_in_threadpool(change, ui, request, body))

    return endpoint


def append(ui: Ui, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Append a record and sync it, to the given partition or to that of its key."""
    headers: list[Header] = [_header(one) for one in body.get("headers") or []]
    number = body.get("partition")
    partition, offset = ui.log.topic(request.path_params["topic"]).append(
        _bytes(body, "value"),
        key=_bytes(body, "key"),
        headers=headers,
        partition=None if number is None else checked("partition", number),
        sync=True,
    )
    return {"partition": partition, "offset": offset}


def _bytes(body: dict[str, Any], name: str) -> bytes | None:
    """Return the bytes in the field `name` (text or null) or `name`_hex."""
    text, hexadecimal = body.get(name), body.get(f"{name}_hex")
    if hexadecimal is not None:
        try:
            return bytes.fromhex(hexadecimal)
        except (ValueError, TypeError):
            raise BadRequestError(f"{name} is not hex") from None
    if text is not None and not isinstance(text, str):
        raise BadRequestError(f"{name} must be text or null")
    return None if text is None else text.encode()


def _header(pair: Any) -> Header:
    if not isinstance(pair, dict) or not isinstance(pair.get("name"), str):
        raise BadRequestError("a header must have a name")
    return pair["name"], _bytes(pair, "value")


def trim(ui: Ui, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Remove the records below an offset."""
    partition = partition_of(request)
    partition.trim_before(checked("before", body.get("before")))
    return {"start_offset": partition.start_offset}


def roll(ui: Ui, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Seal the active segment and start a new one."""
    partition = partition_of(request)
    partition.roll()
    return {"segments": len(partition.segments)}


def compact(ui: Ui, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Keep only the latest record of each key, below the active segment."""
    return asdict(partition_of(request).compact())


def reset(ui: Ui, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Set what a group without members has committed: to earliest, latest, an offset or a time."""
    group_id, to = body.get("group_id"), body.get("to")
    if not isinstance(group_id, str):
        raise BadRequestError("group_id is missing")
    how: dict[str, Any] = {}
    if to in ("offset", "timestamp"):
        how[to] = checked(to, body.get(to), 0 if to == "offset" else -(2**63))
    elif to in ("earliest", "latest"):
        how["to"] = to
    else:
        raise BadRequestError("to must be earliest, latest, offset or timestamp")
    offsets = ui.log.reset_offsets(group_id, dry_run=bool(body.get("dry_run")), **how)
    return {"offsets": {str(name): offset for name, offset in offsets.items()}}


def abort(ui: Ui, request: Request, body: dict[str, Any]) -> dict[str, Any]:
    """Abort the open transaction of an id."""
    transactional_id = body.get("transactional_id")
    if not isinstance(transactional_id, str):
        raise BadRequestError("transactional_id is missing")
    ui.log.abort_transaction(transactional_id)
    return {"transactional_id": transactional_id, "aborted": True}
