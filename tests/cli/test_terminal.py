"""The command line on a real terminal: bars, colours, questions."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import copy_as_if_killed

import commitlog
from cli.rig import on_terminal, piped
from commitlog import TopicConfig

BOLD = "\x1b[1m"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log of 30 MB in a compacted topic."""
    with commitlog.open(tmp_path / "data") as log:
        config = TopicConfig(segment_bytes=6 << 20, cleanup_policy="compact", min_compaction_lag_ms=1)
        partition = log.create_topic("t", config=config).partition(0)
        for _ in range(30):
            partition.append_many([b"x" * 1000] * 1000, keys=[b"%d" % key for key in range(1000)])
    return tmp_path / "data"


def has_bar(seen: str, label: str) -> bool:
    """Whether a bar was drawn, with the rate and the time that remains, and was taken away again."""
    return f"{label} " in seen and "━" in seen and "/s" in seen and "0:00:00" in seen and SHOW_CURSOR in seen


def test_tables_have_colours(data: Path) -> None:
    code, seen = on_terminal("topics", "list", data)
    assert code == 0
    assert BOLD in seen


@pytest.mark.parametrize("command", ["verify", "compact"])
def test_what_takes_long_shows_how_far_it_is(data: Path, command: str) -> None:
    code, seen = on_terminal(command, data)
    assert code == 0
    assert has_bar(seen, {"verify": "verifying t-0", "compact": "compacting t-0"}[command])


def test_repair_shows_how_far_it_is_after_it_has_asked(data: Path) -> None:
    path = sorted((data / "t-0").glob("*.log"))[0]
    raw = bytearray(path.read_bytes())
    raw[500] ^= 1
    path.write_bytes(raw)
    code, seen = on_terminal("repair", data, typed=b"y\n")
    assert code == 0
    assert "[y/N]" in seen
    assert has_bar(seen, "repairing t-0")


def test_recovery_at_open_shows_how_far_it_is(data: Path, tmp_path: Path) -> None:
    with commitlog.open(data, config=commitlog.LogConfig(cleaner_enable=False)) as log:
        copy_as_if_killed(log, tmp_path / "killed")
    (tmp_path / "killed" / "t-0" / "state").unlink()
    code, seen = on_terminal("topics", "describe", tmp_path / "killed", "t")
    assert code == 0
    assert has_bar(seen, "checking what may be torn")
    code, seen = on_terminal("roll", tmp_path / "killed", "t")
    assert has_bar(seen, "checking what may be torn")


def test_files_that_are_produced_show_how_far_they_are(data: Path, tmp_path: Path) -> None:
    piped("topics", "create", data, "lines")
    (tmp_path / "lines").write_bytes(b"x" * 99 + b"\n" + b"y\n" * 3_000_000)
    code, seen = on_terminal("produce", data, "lines", tmp_path / "lines")
    assert code == 0
    assert has_bar(seen, "appending")


def test_ctrl_d_at_a_question_changes_nothing(data: Path) -> None:
    code, seen = on_terminal("topics", "delete", data, "t", typed=b"\x04")
    assert code == 1
    assert "Error: nobody answered" in seen


def test_ctrl_c_at_a_question_changes_nothing(data: Path) -> None:
    code, seen = on_terminal("topics", "delete", data, "t", typed=b"\x03")
    assert code == 130
    assert "Traceback" not in seen
    assert (data / "topics" / "t.json").exists()


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_text(data: Path) -> None:
    code, seen = on_terminal("topics", "list", data, TERM="dumb")
    assert code == 0
    assert "\x1b" not in seen
