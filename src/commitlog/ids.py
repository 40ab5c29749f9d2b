"""Random ids of logs, topics and clusters: 22 characters, as Kafka writes a UUID."""

from __future__ import annotations

import os
import re
from base64 import urlsafe_b64encode

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}")


def new_id() -> str:
    """Return a new random id; it never starts with "-", which a command line would take for an option."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80  # as in a UUID of version 4
        text = urlsafe_b64encode(raw).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def is_id(value: object) -> bool:
    """Say whether `value` has the form of an id."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None
