"""The command line between pipes: endings of all kinds, and bytes of all kinds."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest
from helpers import wait_until

import commitlog
from cli.rig import PROGRAM, environment, piped, started

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with an empty topic "t"."""
    with commitlog.open(tmp_path / "data") as log:
        log.create_topic("t")
    return tmp_path / "data"


def fill(data: Path, count: int = 300_000) -> None:
    with commitlog.open(data) as log:
        for start in range(0, count, 10_000):
            log.topic("t").append_many(
                [b"%d" % number for number in range(start, min(start + 10_000, count))]
            )


def test_lines_come_out_as_they_went_in(data: Path) -> None:
    lines = b"".join(b"%d\xff\x00%s\n" % (number, b"x" * (number % 300)) for number in range(50_000))
    assert json.loads(piped("produce", data, "t", "--json", stdin=lines).stdout)["records"] == 50_000
    done = piped("consume", data, "t")
    assert (done.returncode, done.stdout, done.stderr) == (0, lines, b"")


def test_there_is_no_progress_bar_and_no_colour_in_a_pipe(data: Path) -> None:
    fill(data)
    for command in (["verify", data], ["topics", "list", data], ["stats", data]):
        done = piped(*command, TERM="xterm-256color")
        assert done.stderr == b""
        assert b"\x1b" not in done.stdout


def test_lines_that_come_slowly_are_there_at_once(data: Path) -> None:
    producing = started("produce", data, "t", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert producing.stdin is not None
    with commitlog.open(data, mode="r") as log:
        partition = log.topic("t").partition(0)
        for number in range(3):
            producing.stdin.write(b"line\nhalf a")
            producing.stdin.flush()
            wait_until(lambda: partition.next_offset == number + 1)  # noqa: B023
    out, _ = producing.communicate()
    assert (producing.returncode, out) == (0, b"4 records appended to t\n")


def test_following_prints_what_is_appended_as_it_comes_until_ctrl_c(data: Path) -> None:
    following = started("consume", data, "t", "--follow", **PIPES)
    assert following.stdout is not None
    with commitlog.open(data) as log:
        for value in (b"one", b"two"):
            log.topic("t").append(value)
            assert following.stdout.readline() == value + b"\n"
    following.send_signal(signal.SIGINT)
    out, error = following.communicate()
    assert (following.returncode, out, error) == (130, b"", b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_member_that_is_ended_leaves_its_group(data: Path, number: int, code: int) -> None:
    fill(data, 1)
    member = started("consume", data, "t", "-f", "--group", "g", **PIPES)
    assert member.stdout is not None
    assert member.stdout.readline() == b"0\n"
    with commitlog.open(data, mode="r") as log:
        wait_until(lambda: log.describe_group("g").partitions[0].committed == 1)
        member.send_signal(number)
        _, error = member.communicate()
        assert (member.returncode, error) == (code, b"")
        assert log.describe_group("g").members == ()


def test_ctrl_c_while_producing_keeps_what_was_taken_and_closes_the_log(data: Path) -> None:
    producing = started("produce", data, "t", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert producing.stdin is not None
    producing.stdin.write(b"kept\n")
    producing.stdin.flush()
    with commitlog.open(data, mode="r") as log:
        wait_until(lambda: log.topic("t").partition(0).next_offset == 1)
    producing.send_signal(signal.SIGINT)
    assert producing.wait() == 130
    assert producing.stderr is not None
    assert producing.stderr.read() == b""
    producing.stdin.close()
    producing.stderr.close()
    assert (data / "clean-shutdown").exists()


@pytest.mark.parametrize("form", ["text", "json", "hex", "raw"])
def test_a_reader_that_has_had_enough_ends_it_quietly(data: Path, form: str) -> None:
    fill(data)
    consuming = started("consume", data, "t", "--format", form, **PIPES)
    assert consuming.stdout is not None
    consuming.stdout.read(10)
    consuming.stdout.close()
    assert consuming.stderr is not None
    assert consuming.stderr.read() == b""
    consuming.stderr.close()
    assert consuming.wait() == 141


def test_a_table_into_a_closed_pipe_is_quiet(data: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    listing = started("topics", "list", data, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, error = listing.communicate()
    assert (listing.returncode, error) == (141, b"")


def test_a_closed_stdin_is_one_sentence(data: Path) -> None:
    command = [*PROGRAM, "produce", str(data), "t"]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *command], env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"Error: stdin is closed\n")


def test_a_closed_stdout_is_one_sentence(data: Path) -> None:
    command = [*PROGRAM, "topics", "list", str(data)]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command], env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, b"Error: stdout is closed\n")


def test_stdout_on_a_full_disk_is_one_sentence(data: Path) -> None:
    fill(data)
    for command in (
        ["consume", data, "t"],
        ["consume", data, "t", "--max", 1],
        ["topics", "list", data],
        ["dump", data / "t-0" / f"{0:020d}.log"],
    ):
        with open("/dev/full", "wb") as full:
            done = started(*command, stdout=full, stderr=subprocess.PIPE)
            _, error = done.communicate()
        assert (done.returncode, error) == (1, b"Error: No space left on device\n")


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))


def test_a_full_disk_is_one_sentence_and_what_was_appended_stays(data: Path) -> None:
    line = b"y" * 99 + b"\n"
    done = subprocess.run(
        [*PROGRAM, "produce", str(data), "t"], input=line * 50_000, env=environment(), capture_output=True,
        preexec_fn=_small_files, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    told = re.search(rb"nothing was appended \(records appended before that: (\d+)\)", done.stderr)
    assert told is not None
    assert piped("consume", data, "t").stdout == line * int(told.group(1))
    assert piped("produce", data, "t", stdin=line).returncode == 0


def test_a_directory_that_may_not_be_read_is_one_sentence(tmp_path: Path) -> None:
    done = piped("topics", "create", "/proc/nowhere", "t")
    assert done.returncode == 1
    assert done.stderr.startswith(b"Error: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("more", [[], ["--group", "g"]])
@pytest.mark.parametrize("made_anew", [False, True])
def test_who_follows_a_topic_that_is_deleted_is_told(data: Path, more: list[str], made_anew: bool) -> None:
    following = started("consume", data, "t", "--follow", *more, **PIPES)
    assert following.stdout is not None
    with commitlog.open(data) as log:
        log.topic("t").append(b"first")
        assert following.stdout.readline() == b"first\n"
        log.delete_topic("t")
        if made_anew:
            log.create_topic("t")
        _, error = following.communicate()
    assert (following.returncode, error) == (1, b"Error: topic 't' was deleted\n")


def test_a_follower_is_told_of_records_that_were_trimmed_before_it_read_them(data: Path) -> None:
    following = started("consume", data, "t", "--follow", **PIPES)
    assert following.stdout is not None
    with commitlog.open(data) as log:
        partition = log.topic("t").partition(0)
        partition.append(b"read")
        assert following.stdout.readline() == b"read\n"
        following.send_signal(signal.SIGSTOP)
        partition.append_many([b"not read"] * 5)
        partition.trim_before(6)
        partition.append(b"next")
        following.send_signal(signal.SIGCONT)
        assert following.stdout.readline() == b"next\n"
    following.send_signal(signal.SIGINT)
    _, error = following.communicate()
    assert error == b"t-0: offsets [1, 6) were trimmed before they were read\n"
