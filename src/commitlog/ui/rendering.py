"""Keys, values and headers for the page: as text, JSON or hex, and cut to a limit."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from commitlog.record import Record

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_MOST_HEX = 64 * 1024  # a dump takes four characters per byte


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many bytes of a record to show, and how many headers."""

    key_bytes: int
    value_bytes: int
    headers: int


PREVIEW = Bounds(key_bytes=512, value_bytes=2048, headers=16)
WHOLE = Bounds(key_bytes=64 * 1024, value_bytes=1024 * 1024, headers=1000)


def record(found: Record, bounds: Bounds) -> dict[str, Any]:
    """Return a record as JSON for the page."""
    shown = found.headers[: bounds.headers]
    return {
        "offset": found.offset,
        "timestamp": found.timestamp,
        "key": content(found.key, bounds.key_bytes),
        "value": content(found.value, bounds.value_bytes),
        "headers": [{"name": name, "value": content(value, bounds.key_bytes)} for name, value in shown],
        "more_headers": len(found.headers) - len(shown),
    }


def content(data: bytes | None, most: int) -> dict[str, Any]:
    """Return bytes as text, JSON (as text, so that no number is rounded) or hex, up to `most` bytes."""
    if data is None:
        return {"kind": "null", "bytes": 0}
    text = _text(data[:most], cut=len(data) > most)
    if text is None:
        part = data[: min(most, _MOST_HEX)]
        return {"kind": "binary", "bytes": len(data), "shown": len(part), "hex": part.hex()}
    whole = len(data) <= most
    kind = "json" if whole and _is_json(text) else "text"
    return {"kind": kind, "bytes": len(data), "shown": min(len(data), most), "text": text}


def _text(data: bytes, *, cut: bool) -> str | None:
    """Return bytes as text, or None if they are not text; a cut may have torn the last character."""
    for torn in range(4 if cut else 1):
        try:
            text = data[: len(data) - torn].decode()
        except UnicodeDecodeError:
            continue
        return None if _CONTROL.search(text) else text
    return None


def _is_json(text: str) -> bool:
    """Return whether text is a JSON object or array; other JSON values are shown as plain text."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text, parse_int=len, parse_float=len, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
