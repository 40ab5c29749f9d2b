"""What commands print: JSON for scripts, tables for people, bytes as they are.

Names, keys and values are anybody's, and a terminal obeys some characters: on a terminal those are shown as
escapes, while a pipe or a file gets every byte.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

# control characters (C0 but for tab and newline, DEL, C1), what changes the direction or the line of text,
# and what is no character
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text with characters that a terminal would obey as escapes, such as \\x1b."""
    return _OBEYED.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


def table_cell(value: Any) -> str:
    """Return what a table shows of a value, on one line."""
    return visible(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line for people."""
    stream = sys.stderr if err else sys.stdout
    click.echo(visible(text) if stream.isatty() else text, err=err)


def print_json(value: Any) -> None:
    """Print one JSON document on one line; dataclasses become objects."""
    click.echo(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is not for JSON")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: with colours on a terminal, in plain columns elsewhere. None is a dash.

    It is for people everywhere, so every row stays on its line; --json is exact.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = [["-" if cell is None else cell for cell in row] for row in rows]
    for number, name in enumerate(columns):
        numeric = rows and all(not isinstance(row[number], str) or row[number] == "-" for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # as Text, for a name may look like rich's markup
        table.add_row(*(Text(f"{cell:.2f}" if isinstance(cell, float) else table_cell(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 1 << 12  # whatever reads this wraps by itself, if it wants to
    with console.capture() as printed:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()), color=True)


def ask(question: str) -> None:
    """Go on only if somebody says yes."""
    if not click.confirm(visible(question), err=True):
        raise click.ClickException("nothing was changed")


def write_bytes(data: bytes | bytearray | memoryview) -> None:
    """Write bytes to stdout as they are; what a terminal would obey, it is shown."""
    if sys.stdout.isatty():
        data = visible(bytes(data).decode(errors="backslashreplace")).encode()
    sys.stdout.buffer.write(data)


def flush_output() -> None:
    """Let the reader of a pipe have everything that was written so far."""
    sys.stdout.buffer.flush()


def counted(number: int, what: str) -> str:
    """Return a number of things, as one says it."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
