"""Whether the compiled package commitlog_speedups is used.

The code in Python is the reference: both give the same bytes, records and errors. A module chooses between
its own functions and those of `native` when it is imported.
"""

from __future__ import annotations

import os
from types import ModuleType

from commitlog.version import __version__


def _found() -> tuple[ModuleType | None, str]:
    """Return the package, or None, and a sentence about it."""
    if os.environ.get("COMMITLOG_PURE") == "1":
        return None, "not used, because COMMITLOG_PURE=1 is set"
    try:
        import commitlog_speedups
    except ModuleNotFoundError:
        return None, "not used, because commitlog-speedups is not installed"
    except ImportError as error:
        return None, f"not used, because commitlog-speedups cannot be loaded: {error}"
    version = commitlog_speedups.__version__
    if version != __version__:
        return None, f"not used, because commitlog-speedups {version} is not for commitlog {__version__}"
    return commitlog_speedups, "used"


native, status = _found()
