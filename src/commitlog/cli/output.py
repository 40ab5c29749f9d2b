"""Output of commands: JSON for scripts, tables for people, and raw bytes.

Names, keys and values are not trusted, and a terminal acts on control characters: on a terminal these are
shown as escapes; a pipe or a file gets every byte.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

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


def answer(as_json: bool, document: Any, text: str) -> None:
    """Print the result of a command: `document` as JSON, or `text` for people."""
    if as_json:
        print_json(document)
    else:
        say(text)


def make_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], shown: Callable[[Any], str], **layout: Any
) -> Table:
    """Return a table; numbers are right-aligned, None is a dash. `layout` applies to every column."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        numeric = rows and not any(isinstance(row[number], str) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", **layout)
    for row in rows:
        # as Text, because a name may look like rich's markup
        table.add_row(*(Text("-" if cell is None else shown(cell)) for cell in row))
    return table


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, with colours on a terminal and as plain columns elsewhere.

    A table is for people, also in a pipe: every row stays on one line. --json is exact.
    """
    from rich.console import Console

    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console.width = 1 << 12  # the reader may wrap lines itself
    with console.capture() as printed:
        console.print(make_table(columns, list(rows), _table_text, overflow="fold"))
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()), color=True)


def _table_text(cell: Any) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else table_cell(cell)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print dictionaries with the same keys as a table."""
    print_table(list(rows[0]), [list(row.values()) for row in rows])


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
