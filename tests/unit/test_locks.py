from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

import commitlog
from commitlog import LogLockedError, files
from commitlog.locks import HeldElsewhereError, LogLock, ProcessLock


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


# --- shared writers


def test_shared_writers_are_named_not_an_owner_of_long_ago_and_what_helps_is_said(log_path: Path) -> None:
    commitlog.open(log_path).close()
    (log_path / ".lock").write_text('{"pid": 999999, "host": "elsewhere", "boot": "x", "ready": true}')
    with commitlog.open(log_path, mode="shared"):
        with pytest.raises(LogLockedError) as caught:
            commitlog.open(log_path)
        assert "999999" not in str(caught.value)
        assert f"process {os.getpid()} with mode='shared'" in str(caught.value)
        assert 'open it with mode="shared" here, too' in str(caught.value)
        assert 'mode="r"' in str(caught.value)


@pytest.mark.parametrize("shared", [False, True])
def test_whom_an_exclusive_writer_keeps_out_learns_what_helps(log_path: Path, shared: bool) -> None:
    with commitlog.open(log_path):
        with pytest.raises(LogLockedError, match=f"process {os.getpid()} on ") as caught:
            commitlog.open(log_path, mode="shared" if shared else "w")
        assert 'close it there, or open it with mode="shared"' in caught.value.args[2]


def test_without_the_kernels_word_shared_writers_have_no_names(
    log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "lockers", lambda fd: [])
    with (
        commitlog.open(log_path, mode="shared"),
        pytest.raises(LogLockedError, match=r"open for writing in other processes with mode=.shared."),
    ):
        commitlog.open(log_path)


def test_a_log_lock_is_let_go_though_somebody_keeps_the_exception_of_taking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt) as kept:
        patch.setattr(LogLock, "_announce", interrupted)
        LogLock.take(str(tmp_path))
    LogLock.take(str(tmp_path)).release()
    assert kept.value.__traceback__ is not None


# --- locks of both threads and processes


def test_a_process_lock_keeps_out_threads_and_other_processes(tmp_path: Path) -> None:
    path, order = str(tmp_path / "lock"), []
    lock, other = ProcessLock(path), ProcessLock(path)  # another file description, as in another process

    def take(one: ProcessLock) -> None:
        with one:
            order.append("second")

    for second in (lock, other):
        order.clear()
        with lock:
            thread = threading.Thread(target=take, args=(second,))
            thread.start()
            order.append("first")
        thread.join()
        assert order == ["first", "second"]
        assert not lock.locked()


def test_what_is_raised_with_a_process_lock_held_comes_out_and_the_lock_is_free(tmp_path: Path) -> None:
    left: list[str] = []
    lock = ProcessLock(str(tmp_path / "lock"), lambda: True, (lambda: left.append("left"),))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), lock:
            assert lock.locked()
            raise ZeroDivisionError
        with ProcessLock(str(tmp_path / "lock"), wait=False):
            assert not lock.locked()
    assert left == ["left"] * 2


def test_a_process_lock_whose_first_look_fails_is_free(tmp_path: Path) -> None:
    def fails() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), ProcessLock(str(tmp_path / "lock"), fails):
        raise AssertionError
    with ProcessLock(str(tmp_path / "lock"), wait=False):
        pass


def test_a_process_lock_that_is_not_waited_for_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with ProcessLock(path):
        with pytest.raises(HeldElsewhereError), ProcessLock(path, wait=False):
            raise AssertionError
        with (
            pytest.raises(HeldElsewhereError),
            ProcessLock(path, wait=False),
        ):  # nor did the first try take it
            raise AssertionError


def test_no_python_code_runs_when_a_process_lock_is_given_back(tmp_path: Path) -> None:
    """Else Ctrl-C could come before its first instruction, and leave the lock held."""
    called: list[str] = []
    lock = ProcessLock(str(tmp_path / "lock"))

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    with lock:
        sys.setprofile(profile)
    sys.setprofile(None)
    assert called == []
