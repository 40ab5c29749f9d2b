"""Small HTML tables that notebooks show for topics, partitions, batches and views (`_repr_html_`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice

from commitlog.record import Record

ROWS = 10
_MOST_CHARACTERS = 60


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]], more: bool = False) -> str:
    """Return an HTML table; everything in it is escaped."""
    from html import escape  # few programs show one

    cells = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    rest = f'<tr><td colspan="{len(head)}">…</td></tr>' if more else ""
    return f"<table><caption>{escape(title)}</caption><tr>{names}</tr>{cells}{rest}</table>"


def records(title: str, found: Iterable[Record]) -> str:
    """Return the first records as an HTML table."""
    some = list(islice(found, ROWS + 1))
    rows = [(one.offset, _time(one.timestamp), one.key, one.value) for one in some[:ROWS]]
    return table(title, ("offset", "timestamp", "key", "value"), rows, len(some) > ROWS)


def shown(cell: object) -> str:
    """Return a cell as one line of text: bytes are decoded if they are UTF-8, None is empty."""
    if isinstance(cell, bytes):
        try:
            text = cell[: 4 * _MOST_CHARACTERS].decode()
        except UnicodeDecodeError:
            text = repr(cell[:_MOST_CHARACTERS])
    else:
        text = "" if cell is None else str(cell)
    text = "".join(one if one.isprintable() else "·" for one in text)
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"


def _time(timestamp: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # outside the range of datetime
        return str(timestamp)
