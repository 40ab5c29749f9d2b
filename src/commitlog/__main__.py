"""`python -m commitlog` is the same as `commitlog`."""

from __future__ import annotations

import sys

from commitlog import cli

if __name__ == "__main__":
    sys.exit(cli.main())
