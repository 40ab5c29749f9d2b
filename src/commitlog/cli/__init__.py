"""The `commitlog` command: inspect, feed and maintain a log."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        import click  # noqa: F401
        import rich  # noqa: F401
    except ImportError:
        print("the commitlog command needs: pip install 'commitlog[cli]'", file=sys.stderr)
        return 1
    from commitlog.cli.app import run

    return run()


__all__ = ["main"]
