"""Checked parameters of requests, and answers: JSON, with errors as one sentence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from commitlog.config import IsolationLevel
from commitlog.errors import (
    CommitLogError,
    GroupNotEmptyError,
    OffsetOutOfRangeError,
    TransactionStateError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.inspect.rates import RateHistory
from commitlog.log import CommitLog
from commitlog.partition import Partition

_MOST_BODY_BYTES = 4 * 1024 * 1024
_LARGEST = 2**63 - 1
_STATUS: dict[tuple[type[Exception], ...], int] = {
    (UnknownTopicError, UnknownPartitionError, UnknownGroupError): 404,
    (GroupNotEmptyError, OffsetOutOfRangeError, TransactionStateError): 409,
    (CommitLogError,): 422,
    (OSError,): 500,
}


class BadRequestError(ValueError):
    """A request has a missing or invalid parameter."""


class JsonAnswer(JSONResponse):
    """JSON in ASCII: a name may contain a lone surrogate, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True, slots=True)
class Ui:
    """What every request handler needs."""

    log: CommitLog
    writable: bool
    rates: RateHistory


def ui_of(request: Request) -> Ui:
    """Return the Ui that the application was made with."""
    found: Ui = request.app.state.ui
    return found


def partition_of(request: Request) -> Partition:
    """Return the partition that the path names."""
    topic = ui_of(request).log.topic(request.path_params["topic"])
    return topic.partition(request.path_params["partition"])


def number(
    request: Request, name: str, default: int | None = None, *, low: int = 0, high: int = _LARGEST
) -> int | None:
    """Return a number from the query, or the default."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    return checked(name, text, low, high)


def key_of(request: Request) -> bytes | None:
    """Return the key in the query, given as text or, with key_format=hex, in hex."""
    key = request.query_params.get("key")
    if key is None or request.query_params.get("key_format") != "hex":
        return None if key is None else key.encode()
    try:
        return bytes.fromhex(key)
    except ValueError:
        raise BadRequestError(f"{key!r} is not hex") from None


def isolation_of(request: Request) -> IsolationLevel:
    """Return the isolation level in the query; read_committed if there is none."""
    match request.query_params.get("isolation_level"):
        case None | "" | "read_committed":
            return "read_committed"
        case "read_uncommitted":
            return "read_uncommitted"
    raise BadRequestError("isolation_level must be read_committed or read_uncommitted")


def limit(request: Request, default: int, most: int) -> int:
    """Return the limit in the query, but at most `most`."""
    found = number(request, "limit", default, low=1)
    assert found is not None
    return min(found, most)


def checked(name: str, value: object, low: int = 0, high: int = _LARGEST) -> int:
    """Return a whole number in [low, high]; BadRequestError if the value is not one."""
    try:
        if isinstance(value, bool | float) or not isinstance(value, int | str):
            raise ValueError
        found = int(value)
    except ValueError:
        raise BadRequestError(f"{name} must be a whole number") from None
    if not low <= found <= high:
        raise BadRequestError(f"{name} must be between {low} and {high}")
    return found


async def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body."""
    data = bytearray()
    try:
        async for piece in request.stream():
            data += piece
            if len(data) > _MOST_BODY_BYTES:
                raise BadRequestError(f"the body is larger than {_MOST_BODY_BYTES} bytes")
        found = json.loads(data)
        json.dumps(found, ensure_ascii=False).encode()  # refuses lone surrogates
    except ClientDisconnect:
        raise BadRequestError("the body ends too early") from None
    except (UnicodeError, RecursionError, json.JSONDecodeError):
        raise BadRequestError("the body is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise BadRequestError("the body must be a JSON object")
    return found


def answer_error(request: Request, error: Exception) -> JsonAnswer:
    """Answer an error with a sentence and a status."""
    status = next((status for kinds, status in _STATUS.items() if isinstance(error, kinds)), 400)
    return JsonAnswer({"error": str(error)}, status)


def answer_refusal(request: Request, error: Exception) -> JsonAnswer:
    """Answer a request that no route takes."""
    assert isinstance(error, HTTPException)
    return JsonAnswer({"error": error.detail}, error.status_code)
