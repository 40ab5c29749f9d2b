"""A program that ends without closing anything: what it sent is in the log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import commitlog

OPEN = """
import commitlog, os, signal, sys, threading
log = commitlog.open(sys.argv[1], mode="shared" if len(sys.argv) > 2 else "w")
topic = log.create_topic("t")
def send(**settings):
    producer = log.producer(**settings)
    for number in range(1000):
        producer.send("t", b"%d" % number)
"""


def run(program: str, path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", OPEN + program, str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("options", [(), ("shared",)])
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("send(linger_ms=60_000)", 0),
        ("send(linger_ms=60_000, acks='all')", 0),
        ("send(linger_ms=60_000, acks=0)", 0),
        ("send(linger_ms=60_000); sys.exit(3)", 3),
        ("send(linger_ms=60_000); raise ValueError", 1),
        ("thread = threading.Thread(target=send); thread.start()", 0),
    ],
)
def test_what_was_sent_is_delivered_when_the_program_ends_and_the_log_is_closed(
    log_path: Path, program: str, code: int, options: tuple[str, ...]
) -> None:
    ended = run(program, log_path, *options)
    assert ended.returncode == code
    assert ended.stderr == "" or "ValueError" in ended.stderr
    with commitlog.open(log_path) as log:
        values = [record.value for record in log.topic("t").partition(0).records()]
        assert values == [b"%d" % number for number in range(1000)]
        assert log.recovery[0].clean == (not options)


def test_what_cannot_be_delivered_when_the_program_ends_is_reported(log_path: Path) -> None:
    fail = "topic.partition(0)._state.fail('a broken disk')"
    ended = run(f"send(linger_ms=60_000); {fail}", log_path)
    assert "PartitionFailedError: t-0" in ended.stderr
    assert "a broken disk" in ended.stderr


def test_a_program_that_is_killed_delivers_nothing(log_path: Path) -> None:
    ended = run("send(linger_ms=60_000); os.kill(os.getpid(), signal.SIGTERM)", log_path)
    assert ended.returncode != 0
    with commitlog.open(log_path) as log:
        assert log.topic("t").partition(0).next_offset == 0
        assert not log.recovery[0].clean


def test_a_consumer_that_is_left_open_commits_nothing_when_the_program_ends(log_path: Path) -> None:
    program = """
send()
consumer = log.consumer("t", group_id="g", auto_offset_reset="earliest")
assert consumer.poll(10)
raise ValueError("before anything was done with it")
"""
    assert "before anything" in run(program, log_path).stderr
    with commitlog.open(log_path) as log:
        assert [one.committed for one in log.describe_group("g").partitions] == [None]
