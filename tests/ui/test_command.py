from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import commitlog

from .client import Client

SOURCE = str(Path(commitlog.__file__).parents[1])


def command(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "commitlog", "ui", *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = command(*arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def closed_log(log_path: Path) -> Path:
    with commitlog.open(log_path) as log:
        log.create_topic("t").append(b"x")
    return log_path


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_command_prints_its_address_and_ends_when_it_is_told_to(
    closed_log: Path, sign: signal.Signals, code: int
) -> None:
    with running(closed_log, "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        client = Client(told["url"])
        assert told["path"] == str(closed_log) and told["url"].startswith("http://127.0.0.1:")
        assert client.get("topics")["total"] == 1
        process.send_signal(sign)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (code, "")


def test_for_a_person_the_address_stands_on_a_line_of_its_own(closed_log: Path) -> None:
    with running(closed_log, "--no-browser") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(5)]
        assert str(closed_log) in lines[0] and lines[2].startswith("http://127.0.0.1:")


def test_a_port_can_be_chosen_and_one_that_is_taken_is_told(closed_log: Path) -> None:
    with running(closed_log, "--json") as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["url"].split(":")[2].split("/")[0]
        second = command(closed_log, "--port", port)
        _, errors = second.communicate(timeout=30)
        assert second.returncode == 1 and "in use" in errors and "Traceback" not in errors


@pytest.mark.parametrize("options", [[], ["--writable"]])
def test_a_directory_that_is_no_log_is_one_sentence(tmp_path: Path, options: list[str]) -> None:
    process = command(tmp_path / "nothing", *options)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and "is not a commitlog directory" in errors and "Traceback" not in errors
    assert not (tmp_path / "nothing").exists()


def test_a_log_that_is_locked_is_told_with_the_way_out(log_path: Path) -> None:
    with commitlog.open(log_path):
        process = command(log_path, "--writable")
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"is open for writing in process {os.getpid()}" in errors and "without --writable" in errors


def test_a_writable_page_leaves_the_log_closed_in_order(closed_log: Path) -> None:
    with running(closed_log, "--writable", "--json") as process:
        assert process.stdout is not None
        client = Client(json.loads(process.stdout.readline())["url"])
        assert client.post("topics/t/append", {"value": "y"}).json == {"partition": 0, "offset": 1}
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    with commitlog.open(closed_log) as log:
        assert [record.value for record in log.topic("t").partition(0).records()] == [b"x", b"y"]


def test_without_the_extra_it_is_said_what_to_install(closed_log: Path) -> None:
    program = f"""
import sys
sys.modules["starlette"] = None
sys.argv = ["commitlog", "ui", {str(closed_log)!r}]
from commitlog.cli import main
sys.exit(main())
"""
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "pip install commitlog[ui]" in done.stderr
    assert "Traceback" not in done.stderr
