"""Which format a file of records has."""

from __future__ import annotations

import click

FORMATS = ("parquet", "arrow", "csv", "jsonl")
_SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
}

format_option = click.option(
    "--format", "-f", "file_format", type=click.Choice(FORMATS),
    help="The format of FILE, if its name does not end in .parquet, .arrow, .ipc, .feather, .csv, .jsonl, "
    ".ndjson or .json.",
)  # fmt: skip


def format_of(path: str, asked: str | None) -> str:
    """Return the format that was asked for, or that the file's name tells."""
    found = asked or next((one for suffix, one in _SUFFIXES.items() if path.lower().endswith(suffix)), None)
    if found is None:
        raise click.UsageError(f"the name of {path} does not tell its format: say --format")
    return found
