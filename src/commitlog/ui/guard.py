"""Access checks: the token in the path, the Host header, and the origin of changes."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# require-trusted-types-for: in browsers that support it, no script can turn a string into HTML
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Passes a request on to `app` if it can come from our page, with the token removed from its path.

    The token is in the path rather than in a cookie, because cookies of 127.0.0.1 are sent to every port.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not supported")
        _, given, rest = [*scope["path"].split("/", 2), "", ""][:3]  # a path may be just *
        answer: ASGIApp | None = self._refusal(scope, given)
        if answer is None and scope["path"].count("/") == 1:
            answer = RedirectResponse(f"/{given}/")
        inner: dict[str, Any] = {**scope, "path": f"/{rest}", "root_path": ""}
        inner.pop("raw_path", None)
        await (answer or self._app)(inner, receive, _with_security_headers(send))

    def _refusal(self, scope: Scope, given: str) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._hosts:  # DNS rebinding: another name points here
            return PlainTextResponse(f"{host!r} is not the address of this page", 421)
        if not secrets.compare_digest(given.encode(), self._token.encode()):
            return PlainTextResponse("use the address that `commitlog ui` printed, with its token", 403)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if headers.get("origin") != f"http://{host}":
            return PlainTextResponse("changes are accepted only from the page itself", 403)
        if headers.get("content-type") != "application/json":
            return PlainTextResponse("send application/json", 415)
        return None


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(SECURITY_HEADERS)
        await send(message)

    return send_with_headers
