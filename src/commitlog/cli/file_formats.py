"""The formats of files for export and import."""

from __future__ import annotations

import click

_SUFFIXES = {
    "parquet": (".parquet",),
    "arrow": (".arrow", ".ipc", ".feather"),
    "csv": (".csv",),
    "jsonl": (".jsonl", ".ndjson", ".json"),
}

format_option = click.option(
    "--format", "-f", "file_format", type=click.Choice(list(_SUFFIXES)),
    help="The format of FILE, unless its name ends in .parquet, .arrow, .ipc, .feather, .csv, .jsonl, "
    ".ndjson or .json.",
)  # fmt: skip


def format_of(path: str, asked: str | None) -> str:
    """Return the requested format, or the one that the name of the file implies."""
    found = asked or next((one for one, ends in _SUFFIXES.items() if path.lower().endswith(ends)), None)
    if found is None:
        raise click.UsageError(f"cannot tell the format of {path} from its name; pass --format")
    return found
