"""Whether the compiled package commitlog_speedups is used.

The code in Python is the reference: both give the same bytes, records and errors. A module chooses between
its own functions and those of `native` when it is imported.
"""

from __future__ import annotations

import os
from types import ModuleType

from commitlog.version import __version__

INTERFACE = 4  # as in native/src/module.c, for a clone whose package was built before a change


def _found() -> tuple[ModuleType | None, str]:
    """Return the package, or None, and a sentence about it."""
    pure = os.environ.get("COMMITLOG_PURE", "")
    if pure not in ("", "0"):
        return None, f"not used, because COMMITLOG_PURE={pure} is set"
    try:
        import commitlog_speedups
    except ModuleNotFoundError:
        return None, "not used, because commitlog-speedups is not installed"
    except Exception as error:
        return None, f"not used, because commitlog-speedups cannot be loaded: {error}"
    version = getattr(commitlog_speedups, "__version__", "without a version")
    if version != __version__:
        return None, f"not used, because commitlog-speedups {version} is not for commitlog {__version__}"
    if getattr(commitlog_speedups, "INTERFACE", None) != INTERFACE:
        return None, "not used, because commitlog-speedups was built from other sources; build it again"
    return commitlog_speedups, "used"


native, status = _found()
