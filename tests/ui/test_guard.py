from __future__ import annotations

import re
import secrets
from typing import Any

import pytest
from pytest import MonkeyPatch

from commitlog.ui import guard
from commitlog.ui.app import STATIC

from .client import Client


def test_the_page_and_all_that_belongs_to_it_is_there_under_the_token_only(client: Client) -> None:
    page = client.raw(client.path)
    assert page.status == 200 and page.body.startswith(b"<!doctype html>")
    for path in ("", "js/app.js", "style.css", "api/about", "api/topics", "nothing"):
        refused = client.raw(f"/{path}")
        assert (refused.status, b"token" in refused.body) == (403, True), path
        assert client.raw(f"/{'x' * 32}/{path}").status == 403, path


def test_a_token_without_the_slash_behind_it_leads_to_the_page(client: Client) -> None:
    answer = client.raw(client.path.rstrip("/"))
    assert (answer.status, answer.headers["location"]) == (307, client.path)


def test_the_token_is_long_and_compared_in_constant_time(client: Client, monkeypatch: MonkeyPatch) -> None:
    compared: list[tuple[Any, Any]] = []

    class Watched:
        @staticmethod
        def compare_digest(one: bytes, other: bytes) -> bool:
            compared.append((one, other))
            return secrets.compare_digest(one, other)

    monkeypatch.setattr(guard, "secrets", Watched)
    assert client.raw("/%C3%A4/").status == 403
    token = client.path.strip("/").encode()
    assert compared == [("ä".encode(), token)]
    assert len(token) >= 32


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_name_that_leads_here_is_refused(client: Client, host: str) -> None:
    answer = client.raw(client.path, headers={"Host": host})
    assert answer.status == 421


def test_localhost_is_our_name_too(client: Client) -> None:
    answer = client.raw(client.path, headers={"Host": client.host.replace("127.0.0.1", "localhost")})
    assert answer.status == 200


def test_every_answer_has_the_security_headers(client: Client) -> None:
    for path in (client.path, client.path + "api/about", client.path + "nothing", "/"):
        headers = client.raw(path).headers
        for name, value in guard.SECURITY_HEADERS.items():
            assert headers[name] == value, path
    policy = guard.SECURITY_HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "own"}, 415),
        ({"Origin": "own", "Content-Type": "text/plain"}, 415),
        ({"Origin": "own", "Content-Type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_a_change_must_come_from_the_page_itself(
    writable: Client, headers: dict[str, str], status: int
) -> None:
    given = {name: f"http://{writable.host}" if value == "own" else value for name, value in headers.items()}
    answer = writable.raw(writable.path + "api/group/reset", "POST", given, b"{}")
    assert answer.status == status


def test_other_methods_and_other_paths_are_refused(client: Client) -> None:
    assert client.post("topics", {}).status == 405
    assert client.raw(client.path + "../../etc/passwd").status == 404
    assert client.raw(client.path + "js/%2e%2e/%2e%2e/server.py").status == 404
    assert client.refused("nothing")[0] == 404


def test_no_script_of_the_page_turns_text_into_html_or_code() -> None:
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|srcdoc"
    )
    scripts = sorted(STATIC.rglob("*.js"))
    assert scripts
    assert [script.name for script in scripts if ways.search(script.read_text())] == []


def test_the_page_names_no_other_host_and_has_no_inline_script_or_style() -> None:
    for file in STATIC.rglob("*.*"):
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and "url(" not in text, file.name
    page = (STATIC / "index.html").read_text()
    assert (
        "<style" not in page
        and "style=" not in page
        and re.search(r"<script(?! type=.module. src=)", page) is None
    )
