"""Output of commands: JSON for scripts, tables for people, and raw bytes.

Names, keys and values come from anybody, and a terminal acts on control characters: on a terminal these are
shown as escapes; a pipe or a file gets every byte.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import click

# control characters (C0 except tab and newline, DEL, C1), marks that change the direction of text or end a
# line, and lone surrogates
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return text in which characters that a terminal would act on are escapes, such as \\x1b."""
    return _OBEYED.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"


def table_cell(value: Any) -> str:
    """Return a value as the one-line text of a table cell."""
    return visible(str(value)).replace("\n", "\\n").replace("\t", "\\t")


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line of text, with escapes on a terminal."""
    stream = sys.stderr if err else sys.stdout
    click.echo(visible(text) if stream.isatty() else text, err=err)


def print_json(value: Any) -> None:
    """Print a JSON document on one line; dataclasses become objects."""
    click.echo(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be JSON")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, with colours on a terminal and as plain columns elsewhere. None is a dash.

    A table is for people, also in a pipe: every row stays on one line. --json is exact.
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
        # as Text, because a name may look like rich's markup
        table.add_row(*(Text(f"{cell:.2f}" if isinstance(cell, float) else table_cell(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 1 << 12  # the reader may wrap lines itself
    with console.capture() as printed:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()), color=True)


def ask(question: str) -> None:
    """Ask for confirmation; anything but yes ends the command."""
    if not click.confirm(visible(question), err=True):
        raise click.ClickException("nothing was changed")


def write_bytes(data: bytes | bytearray | memoryview) -> None:
    """Write bytes to stdout unchanged, or with escapes on a terminal."""
    if sys.stdout.isatty():
        data = visible(bytes(data).decode(errors="backslashreplace")).encode()
    sys.stdout.buffer.write(data)


def flush_output() -> None:
    """Send everything written so far to the reader of a pipe."""
    sys.stdout.buffer.flush()


def counted(number: int, what: str) -> str:
    """Return a number and a noun, in the plural if need be."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
