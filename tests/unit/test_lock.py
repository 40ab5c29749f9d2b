from __future__ import annotations

import os
from pathlib import Path

import pytest

import commitlog
from commitlog import LogLockedError
from commitlog.lock import LogLock


def test_a_second_lock_is_refused_and_the_owner_named(tmp_path: Path) -> None:
    lock = LogLock.take(str(tmp_path))
    with pytest.raises(LogLockedError, match=rf"process {os.getpid()} on ") as caught:
        LogLock.take(str(tmp_path))
    assert caught.value.args[0] == str(tmp_path)
    lock.release()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(3):
        lock = LogLock.take(str(tmp_path))
        lock.release()
        lock.release()


def test_a_lock_file_left_by_a_dead_process_does_not_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text('{"pid": 1, "host": "elsewhere"}')
    LogLock.take(str(tmp_path)).release()


@pytest.mark.parametrize("junk", [b"", b"\xff\xfe", b"[]", b"{}", b"null", b"x" * 5_000])
def test_a_lock_file_of_nonsense_still_gives_a_clear_error(tmp_path: Path, junk: bytes) -> None:
    lock = LogLock.take(str(tmp_path))
    (tmp_path / ".lock").write_bytes(junk)
    with pytest.raises(LogLockedError, match="another process"):
        LogLock.take(str(tmp_path))
    lock.release()


def test_a_second_writer_on_the_same_directory_is_refused_and_the_first_is_not_disturbed(
    log_path: Path,
) -> None:
    with commitlog.open(log_path) as log:
        topic = log.create_topic("t")
        for _ in range(2):
            with pytest.raises(LogLockedError, match=str(os.getpid())):
                commitlog.open(log_path)
        topic.append(b"fine")
    with commitlog.open(log_path) as log:
        assert log.recovery[0].clean
        assert log.topic("t").partition(0).next_offset == 1


def test_a_writer_in_another_process_is_refused_and_the_owner_named(log_path: Path) -> None:
    with commitlog.open(log_path):
        child = os.fork()
        if child == 0:  # pragma: no cover - the parent sees its exit code
            code = 1
            try:
                commitlog.open(log_path)
            except LogLockedError as error:
                code = 0 if f"process {os.getppid()}" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
