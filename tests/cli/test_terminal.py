"""The command line on a real terminal: bars, colours, questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
    assert has_bar(seen, "checking for torn records")
    code, seen = on_terminal("roll", tmp_path / "killed", "t")
    assert has_bar(seen, "checking for torn records")


def test_files_that_are_produced_show_how_far_they_are(data: Path, tmp_path: Path) -> None:
    piped("topics", "create", data, "lines")
    (tmp_path / "lines").write_bytes(b"x" * 99 + b"\n" + b"y\n" * 3_000_000)
    code, seen = on_terminal("produce", data, "lines", tmp_path / "lines")
    assert code == 0
    assert has_bar(seen, "appending")


def test_ctrl_d_at_a_question_changes_nothing(data: Path) -> None:
    code, seen = on_terminal("topics", "delete", data, "t", typed=b"\x04")
    assert code == 1
    assert "Error: there was no answer" in seen


def test_ctrl_c_at_a_question_changes_nothing(data: Path) -> None:
    code, seen = on_terminal("topics", "delete", data, "t", typed=b"\x03")
    assert code == 130
    assert "Traceback" not in seen
    assert (data / "topics" / "t.json").exists()


def test_a_terminal_that_cannot_move_its_cursor_gets_plain_text(data: Path) -> None:
    code, seen = on_terminal("topics", "list", data, TERM="dumb")
    assert code == 0
    assert "\x1b" not in seen


# --- what a terminal would obey ---------------------------------------------------------------------------

TITLE = "\x1b]0;owned\x07"
HOSTILE = f"{TITLE}\x9b31m\u202egnihton\u2066\r\x08\x7f"
SHOWN = "\\x1b]0;owned\\x07\\u009b31m\\u202egnihton\\u2066\\x0d\\x08\\u007f"
GROUP = f"{HOSTILE}[/red]\nsecond line"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A log whose keys, values, headers and group are made to be obeyed."""
    text = HOSTILE.encode()
    with commitlog.open(tmp_path / "hostile") as log:
        log.create_topic("t").append(text, key=text + b"\xff\x1b", headers=[(HOSTILE, text)])
        with log.consumer(group_id=GROUP, enable_auto_commit=False) as consumer:
            consumer.assign([("t", 0)])
            consumer.commit({("t", 0): 1})
    return tmp_path / "hostile"


def is_harmless(seen: str) -> bool:
    return not any(one in seen for one in ("\x1b]", "\x07", "\x9b", "\u202e", "\u2066", "\x08", "\x7f"))


@pytest.mark.parametrize("form", ["text", "json", "raw"])
def test_records_are_shown_to_a_terminal_and_not_obeyed(hostile: Path, form: str) -> None:
    arguments = ["consume", hostile, "t", "--format", form]
    code, seen = on_terminal(*arguments, "--keys", "--headers") if form == "text" else on_terminal(*arguments)
    assert code == 0
    assert "gnihton" in seen
    assert is_harmless(seen)


def test_a_pipe_gets_records_byte_for_byte(hostile: Path) -> None:
    found = piped("consume", hostile, "t", "--keys")
    text = HOSTILE.encode()
    assert found.stdout == text + b"\xff\x1b\t" + text + b"\n"
    assert piped("consume", hostile, "t", "--format", "raw").stdout == text


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "list"),
        ("groups", "describe", GROUP),
        ("groups", "reset-offsets", GROUP, "--to-earliest", "--dry-run"),
        ("stats",),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_names_of_groups_are_shown_to_a_terminal_and_not_obeyed(
    hostile: Path, arguments: tuple[str, ...]
) -> None:
    command, *rest = arguments
    place = 1 if command == "groups" else 0
    code, seen = on_terminal(command, *rest[:place], hostile, *rest[place:])
    assert code == 0
    assert is_harmless(seen)
    if rest[:1] == ["list"]:
        assert "\\x1b]0;owned" in seen.replace("\r\n", "")


def test_the_live_view_shows_names_of_groups_and_does_not_obey_them(hostile: Path) -> None:
    from rich.console import Console

    from commitlog.cli.top import _GROUPS, _table

    console = Console(width=400)
    with console.capture() as printed:
        console.print(_table(_GROUPS, [(GROUP, "Empty", 0, "t", 0, 1, 0, 0)]))
    assert f"{SHOWN}[/red]\\nsecond line" in printed.get()


def test_errors_and_questions_are_shown_and_not_obeyed(hostile: Path) -> None:
    code, seen = on_terminal("groups", "delete", hostile, GROUP, typed=b"n\n")
    assert code == 1
    assert is_harmless(seen)
    code, seen = on_terminal("groups", "describe", hostile, f"no {HOSTILE}")
    assert code == 1
    assert is_harmless(seen)
    missing = piped("topics", "list", hostile / f"no {TITLE}")
    assert missing.returncode != 0
    assert b"\x1b" not in missing.stderr


def test_tables_keep_each_row_on_its_line_in_a_pipe_too(hostile: Path) -> None:
    found = piped("groups", "list", hostile).stdout.decode()
    assert len(found.splitlines()) == 2
    assert is_harmless(found)


def test_dump_shows_records_and_does_not_obey_them(hostile: Path) -> None:
    code, seen = on_terminal("dump", hostile / "t-0" / f"{0:020}.log", "--records")
    assert code == 0
    assert "gnihton" in seen
    assert is_harmless(seen)


def test_a_shell_is_not_offered_names_that_it_would_run(tmp_path: Path) -> None:
    with commitlog.open(tmp_path / "data") as log:
        log.create_topic("t")
        for name in ("billing", "$(reboot)", "b;reboot", "b\nreboot"):
            with log.consumer(group_id=name, enable_auto_commit=False) as consumer:
                consumer.assign([("t", 0)])
                consumer.commit({("t", 0): 0})
    line: dict[str, Any] = {"_COMMITLOG_COMPLETE": "bash_complete", "COMP_CWORD": "4"}
    words = f"commitlog groups describe {tmp_path / 'data'} "
    found = piped(**line, COMP_WORDS=words)
    assert found.stdout.decode().split() == ["plain,billing"]
