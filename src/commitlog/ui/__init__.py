"""A web page that shows a log, served on this machine only. Needs the extra `ui`."""

from __future__ import annotations

from commitlog.errors import MissingDependencyError

try:
    import starlette  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as missing:
    raise MissingDependencyError("commitlog ui", "commitlog[ui]") from missing
