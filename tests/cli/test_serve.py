from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

import commitlog
from commitlog.errors import AuthenticationError

from .rig import call, piped, started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with commitlog.open(tmp_path / "data") as log:
        log.create_topic("t").append(b"first")
    return tmp_path / "data"


def test_other_programs_read_and_append_while_others_write(data: Path) -> None:
    process = started("serve", data, "--json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        assert told["path"] == str(data)
        with commitlog.connect(told["address"]) as remote, commitlog.open(data, mode="shared") as log:
            remote.topic("t").append(b"from afar")
            log.topic("t").append(b"from here")
            found = [record.value for record in remote.topic("t").records()]
            assert found == [b"first", b"from afar", b"from here"]
    finally:
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, b"")


def test_a_secret_keeps_others_out(data: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"between us\n")
    process = started("serve", data, "--secret", secret, "--json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        address = json.loads(process.stdout.readline())["address"]
        with pytest.raises(AuthenticationError):
            commitlog.connect(address, secret=b"guessed")
        with commitlog.connect(address, secret=b"between us") as remote:
            assert [record.value for record in remote.topic("t").records()] == [b"first"]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_an_open_door_and_a_missing_log_are_refused(data: Path, tmp_path: Path) -> None:
    told = call("serve", data, "--host", "0.0.0.0")
    assert (told.exit_code, "needs `secret` or `tls`" in told.output) == (2, True)
    assert piped("serve", tmp_path / "nothing").returncode == 1
