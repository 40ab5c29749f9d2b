"""Random ids of logs, topics and clusters: 22 characters, as Kafka writes a UUID."""

from __future__ import annotations

import base64
import re
import uuid

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}")


def new_id() -> str:
    """Return a new random id; it never starts with "-", which a command line would take for an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def is_id(value: object) -> bool:
    """Say whether `value` has the form of an id."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None
