"""The formats of files for export and import."""

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
    help="The format of FILE, unless its name ends in .parquet, .arrow, .ipc, .feather, .csv, .jsonl, "
    ".ndjson or .json.",
)  # fmt: skip


def format_of(path: str, asked: str | None) -> str:
    """Return the requested format, or the one that the name of the file implies."""
    found = asked or next((one for suffix, one in _SUFFIXES.items() if path.lower().endswith(suffix)), None)
    if found is None:
        raise click.UsageError(f"cannot tell the format of {path} from its name; pass --format")
    return found
