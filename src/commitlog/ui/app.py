"""The web application: its routes and error handlers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from commitlog.errors import CommitLogError
from commitlog.ui import changes_api, groups_api, records_api, tail_api, topics_api, transactions_api
from commitlog.ui.requests import BadRequestError, Ui, answer_error, answer_refusal

STATIC = Path(__file__).parent / "static"
_PARTITION = "/api/topics/{topic}/partitions/{partition:int}"


def make_app(ui: Ui, closing: Callable[[], bool]) -> Starlette:
    """Return the application; `closing` says when live tails have to end."""
    handlers: dict[Any, Any] = dict.fromkeys((BadRequestError, CommitLogError, OSError), answer_error)
    handlers[HTTPException] = answer_refusal
    static = Mount("/", StaticFiles(directory=STATIC, html=True))
    app = Starlette(routes=[*_read_routes(), *_change_routes(), static], exception_handlers=handlers)
    app.state.ui = ui
    app.state.closing = closing
    return app


def _read_routes() -> list[BaseRoute]:
    return [
        Route("/api/about", topics_api.about),
        Route("/api/topics", topics_api.topics),
        Route("/api/topics/{topic}", topics_api.topic),
        Route("/api/topics/{topic}/place", topics_api.place),
        Route("/api/topics/{topic}/tail", tail_api.tail),
        Route(_PARTITION, topics_api.partition),
        Route(_PARTITION + "/details", topics_api.details),
        Route(_PARTITION + "/records", records_api.records),
        Route(_PARTITION + "/records/{offset:int}", records_api.record),
        Route("/api/groups", groups_api.groups),
        Route("/api/group", groups_api.group),
        Route("/api/transactions", transactions_api.transactions),
    ]


def _change_routes() -> list[BaseRoute]:
    changes = {
        "/api/topics/{topic}/append": changes_api.append,
        _PARTITION + "/trim": changes_api.trim,
        _PARTITION + "/roll": changes_api.roll,
        _PARTITION + "/compact": changes_api.compact,
        "/api/group/reset": changes_api.reset,
        "/api/transaction/abort": changes_api.abort,
    }
    return [Route(path, changes_api.changing(change), methods=["POST"]) for path, change in changes.items()]
