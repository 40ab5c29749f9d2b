"""What all commands have in common: help, errors, locks, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

import commitlog
from cli.rig import SOURCE, call, ok, piped
from commitlog import TopicPartition, speedups
from commitlog.cli.app import app


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its whole name."""
    if isinstance(command, click.Group):
        for part, inner in command.commands.items():
            yield from leaves(inner, f"{name} {part}".strip())
    else:
        yield name, command


LEAVES = dict(leaves(app))
OF_A_LOG = [name for name, command in LEAVES.items() if "directory" in [one.name for one in command.params]]


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_has_help_with_an_example_and_speaks_json(name: str) -> None:
    text = ok(*name.split(), "--help")
    assert f"commitlog {name}" in text.partition("Examples:")[2]
    options = {option for param in LEAVES[name].params for option in param.opts}
    assert "--json" in options or name in ("completion", "ui", "top")


def test_the_version_and_what_there_is() -> None:
    assert ok("--version") == f"commitlog, version {commitlog.__version__}\nspeedups: {speedups.status}\n"
    assert "Exit codes: 0 success" in ok("--help")


def needed(name: str) -> list[str]:
    """Arguments that a command asks for, besides the directory."""
    given = {
        "topic": "t", "group": "g", "count": "2", "file": "f.jsonl", "path": "f.jsonl",
        "transactional_id": "billing-1",
    }  # fmt: skip
    wanted = [one for one in LEAVES[name].params if isinstance(one, click.Argument) and one.required]
    found = [given[one.name or ""] for one in wanted if one.name in given]
    extra = {
        "topics alter": ["--config", "retention_ms=1"],
        "groups reset-offsets": ["--to-latest"],
        "trim": ["--all"],
    }
    return found + extra.get(name, [])


CREATING = ("topics create", "import", "bench")
LOOKED_AT = [name for name in OF_A_LOG if name not in (*CREATING, "ui", "top")]


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_directory_that_is_not_there_is_one_sentence_and_is_not_made(name: str, tmp_path: Path) -> None:
    result = call(*name.split(), tmp_path / "none", *needed(name), stdin="")
    assert result.exit_code == 1, result.output
    assert result.stderr == f"Error: {tmp_path / 'none'} is not a commitlog directory: it does not exist\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_directory_of_something_else_is_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = call(*name.split(), tmp_path, *needed(name), stdin="")
    assert result.exit_code == 1, result.output
    assert result.stderr == f"Error: {tmp_path} is not a commitlog directory: it has no commitlog.json\n"


def test_a_file_where_a_directory_should_be_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    assert call("topics", "list", tmp_path / "file").exit_code == 2


@pytest.mark.parametrize(
    "command",
    [["topics", "create", "{}", "new"], ["topics", "alter", "{}", "t", "-c", "flush_ms=1"],
     ["produce", "{}", "t"], ["topics", "delete", "{}", "t", "-y"],
     ["topics", "add-partitions", "{}", "t", "2"], ["roll", "{}", "t"],
     ["trim", "{}", "t", "--all", "-y"], ["compact", "{}"]],
)  # fmt: skip
def test_a_log_in_use_is_one_sentence_that_names_its_owner(command: list[str], tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        log.create_topic("t")
        result = call(*[part.format(tmp_path) for part in command], stdin="x\n")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {tmp_path} is open for writing in process {os.getpid()} on ")
    assert result.stderr.count("\n") == 1


def test_a_log_in_use_can_be_looked_at_and_written_where_it_is_shared(tmp_path: Path) -> None:
    with commitlog.open(tmp_path, mode="shared") as log:
        log.create_topic("t").append(b"first")
        ok("produce", tmp_path, "t", "--shared", stdin="second\n")
        assert ok("consume", tmp_path, "t") == "first\nsecond\n"
        assert ok("topics", "describe", tmp_path, "t")


def test_without_click_or_rich_it_says_what_to_install(tmp_path: Path) -> None:
    for missing in ("click", "rich"):
        (tmp_path / missing).mkdir()
        (tmp_path / missing / "__init__.py").write_text("raise ImportError")
        path = os.pathsep.join([str(tmp_path), SOURCE])
        done = subprocess.run(
            [sys.executable, "-m", "commitlog"], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr == "the commitlog command needs: pip install 'commitlog[cli]'\n"
        (tmp_path / missing / "__init__.py").unlink()
        (tmp_path / missing).rmdir()


# --- completion


def completed(words: str) -> list[str]:
    """What a shell would offer behind the last blank."""
    *before, last = words.split(" ")
    shell = ShellComplete(app, {}, "commitlog", "_COMMITLOG_COMPLETE")
    return [item.value for item in shell.get_completions(before, last)]


def test_commands_options_topics_and_groups_are_completed(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        log.create_topic("orders")
        log.create_topic("other")
        log.commit_offsets("billing", {TopicPartition("orders", 0): 0})
        log.producer(transactional_id="billing-1").close()
    assert "consume" in completed("con")
    assert completed("topics desc") == ["describe"]
    assert completed("consume --fol") == ["--follow"]
    assert completed(f"consume {tmp_path} o") == ["orders", "other"]
    assert completed(f"topics describe {tmp_path} ord") == ["orders"]
    assert completed(f"consume {tmp_path} orders --group b") == ["billing"]
    assert completed(f"groups describe {tmp_path} ") == ["billing"]
    assert completed(f"transactions describe {tmp_path} bill") == ["billing-1"]
    assert completed(f"consume {tmp_path} orders --isolation-level read_u") == ["read_uncommitted"]
    assert completed(f"consume {tmp_path / 'none'} o") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_calls_the_program(shell: str) -> None:
    text = ok("completion", shell)
    assert "_COMMITLOG_COMPLETE" in text
    assert call("completion", "dos").exit_code == 2


def test_bash_gets_its_answer_through_the_environment(tmp_path: Path) -> None:
    commitlog.open(tmp_path).close()
    asked: dict[str, Any] = {
        "_COMMITLOG_COMPLETE": "bash_complete",
        "COMP_WORDS": "commitlog top",
        "COMP_CWORD": "1",
    }
    done = piped(**asked)
    assert "plain,topics" in done.stdout.decode().splitlines()
