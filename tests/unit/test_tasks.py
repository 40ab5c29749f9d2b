from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest
from helpers import wait_until

from commitlog.tasks import Signal, Task

FOREVER = 1_000_000.0


@pytest.fixture
def started() -> Iterator[Callable[..., Task]]:
    tasks = []

    def start(run: Callable[[], float], **settings: float) -> Task:
        task = Task("test", run, **settings)
        tasks.append(task)
        task.start()
        return task

    yield start
    for task in tasks:
        task.stop()


def test_a_task_runs_at_once_and_then_when_it_is_woken(started: Callable[..., Task]) -> None:
    runs = threading.Semaphore(0)

    def run() -> float:
        runs.release()
        return FOREVER

    task = started(run)
    assert runs.acquire(timeout=30)
    for _ in range(3):
        task.wake()
        assert runs.acquire(timeout=30)


def test_a_task_runs_again_after_the_seconds_it_asked_for(started: Callable[..., Task]) -> None:
    runs = threading.Semaphore(0)

    def run() -> float:
        runs.release()
        return 0.001

    started(run)
    for _ in range(5):
        assert runs.acquire(timeout=30)


def test_a_failing_task_shows_its_error_and_goes_on(
    started: Callable[..., Task], caplog: pytest.LogCaptureFixture
) -> None:
    fail = threading.Event()
    fail.set()

    def run() -> float:
        if fail.is_set():
            raise OSError("no disk today")
        return FOREVER

    with caplog.at_level(logging.CRITICAL, logger="commitlog"):
        task = started(run, retry_seconds=0.001)
        wait_until(lambda: task.health().failures >= 3)
        health = task.health()
        assert health.alive
        assert health.error is not None
        assert "OSError: no disk today" in health.error
        fail.clear()
        wait_until(lambda: task.health().error is None)
    assert task.health().failures >= 3


def test_a_failure_is_logged(started: Callable[..., Task], caplog: pytest.LogCaptureFixture) -> None:
    def run() -> float:
        raise ValueError("boom")

    with caplog.at_level(logging.ERROR, logger="commitlog"):
        task = started(run, retry_seconds=FOREVER)
        wait_until(lambda: task.health().runs)
    assert any("test failed" in record.getMessage() for record in caplog.records)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_seen(started: Callable[..., Task]) -> None:
    def run() -> float:
        raise SystemExit

    task = started(run)
    wait_until(lambda: not task.health().alive)
    assert task.health().name == "test"


def test_a_stopped_task_runs_no_more_and_counts_as_well(started: Callable[..., Task]) -> None:
    task = started(lambda: FOREVER)
    wait_until(lambda: task.health().runs)
    task.stop()
    runs = task.health().runs
    task.wake()
    assert task.health().runs == runs
    assert task.health().alive
    task.stop()


# --- signals


def test_a_signal_stays_set_until_it_is_cleared() -> None:
    signal = Signal()
    assert not signal.is_set()
    assert not signal.wait(0)
    for _ in range(3):
        signal.set()
    assert signal.is_set()
    assert signal.wait() and signal.wait(0)
    signal.clear()
    assert not signal.is_set()
    assert not signal.wait(-1.0)


def test_a_signal_lets_all_threads_go_on() -> None:
    signal, passed = Signal(), SimpleQueue[bool]()
    threads = [threading.Thread(target=lambda: passed.put(signal.wait(60))) for _ in range(5)]
    for thread in threads:
        thread.start()
    signal.set()
    assert [passed.get(timeout=60) for _ in threads] == [True] * 5
    for thread in threads:
        thread.join()


def test_a_wait_ends_although_signal_handlers_run_meanwhile() -> None:
    program = """
import signal
from commitlog.tasks import Signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
waiting = Signal()
ended = sum(waiting.wait(0.0001) for _ in range(3000))
signal.setitimer(signal.ITIMER_REAL, 0)
print(ended)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "0\n"
