from __future__ import annotations

import pytest

from commitlog import Record
from commitlog.ui import rendering

MOST = 100


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (None, "null"),
        (b"", "text"),
        (b"three apples", "text"),
        ("Äpfel, リンゴ".encode(), "text"),
        (b"a\tb\r\nc", "text"),
        (b'{"a": [1, 2.5, null]}', "json"),
        (b" [1]\n", "json"),
        (b"123", "text"),
        (b'"a string"', "text"),
        (b'{"a": NaN}', "text"),
        (b'{"a": 1', "text"),
        (b"\xff\xfe", "binary"),
        (b"a\x00b", "binary"),
        (b"\x1b[31m", "binary"),
    ],
)
def test_bytes_are_told_apart_by_what_they_are(data: bytes | None, kind: str) -> None:
    assert rendering.content(data, MOST)["kind"] == kind


def test_null_and_empty_are_not_the_same() -> None:
    assert rendering.content(None, MOST) == {"kind": "null", "bytes": 0}
    assert rendering.content(b"", MOST) == {"kind": "text", "bytes": 0, "shown": 0, "text": ""}


def test_json_stays_as_it_was_written() -> None:
    text = '{"id": 12345678901234567890123, "id": 1.10}'
    assert rendering.content(text.encode(), MOST)["text"] == text


def test_json_that_is_nested_too_deep_is_text() -> None:
    assert rendering.content(b"[" * 100_000 + b"]" * 100_000, 1 << 20)["kind"] == "text"


def test_what_is_too_long_is_cut_between_characters() -> None:
    shown = rendering.content("ä".encode() * 60, 51)
    assert (shown["kind"], shown["bytes"], shown["text"]) == ("text", 120, "ä" * 25)
    binary = rendering.content(b"\xff" * 120, 51)
    assert (binary["kind"], binary["bytes"], binary["shown"], binary["hex"]) == ("binary", 120, 51, "ff" * 51)


def test_json_that_was_cut_is_text() -> None:
    assert rendering.content(b"[" + b"1," * 100 + b"1]", MOST)["kind"] == "text"


def test_headers_are_counted_where_they_are_too_many() -> None:
    record = Record(7, 1_000, b"k", None, tuple((f"h{number}", b"v") for number in range(20)))
    shown = rendering.record(record, rendering.PREVIEW)
    assert (len(shown["headers"]), shown["more_headers"]) == (16, 4)
    assert (shown["offset"], shown["timestamp"], shown["value"]["kind"]) == (7, 1_000, "null")
