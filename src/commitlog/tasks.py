"""Threads that work in the background and report when they cannot, and what threads wait for."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_logger = logging.getLogger("commitlog.tasks")
_LONGEST_WAIT = threading.TIMEOUT_MAX


@dataclass(frozen=True, slots=True)
class TaskHealth:
    """How a background task fares: `error` is its last failure, None once a run succeeded again."""

    name: str
    alive: bool
    runs: int
    failures: int
    error: str | None


class Signal:
    """What threading.Event is, without a lock that Ctrl-C could leave held. A wait may end once too often.

    The gate is a C lock, open while the signal is set; a thread that comes through opens it for the next one.
    (A SimpleQueue in its place would wait for ever if a signal handler ran as the time was over.)
    """

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """Let everybody who waits go on."""
        self._is_set = True
        self._open()

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open
            self._gate.release()

    def is_set(self) -> bool:
        """Say whether it is set."""
        return self._is_set

    def clear(self) -> None:
        """Let those who come wait again."""
        self._is_set = False
        self._gate.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if it is not after `timeout` seconds."""
        if self._is_set:
            return True
        passed = self._gate.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), _LONGEST_WAIT))
        if self._is_set:
            self._open()
        return passed


class Condition(threading.Condition):
    """A Condition that is held with `with condition.mutex:`, a C lock, which Ctrl-C cannot leave held."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        super().__init__(self.mutex)


class Task:
    """Runs a function in a thread, when woken or when the seconds that it returned are over.

    An exception is kept for health() and logged, and the next run comes all the same.
    """

    def __init__(self, name: str, run: Callable[[], float], retry_seconds: float = 1.0) -> None:
        self.name = name
        self._run = run
        self._retry_seconds = retry_seconds
        self._wake = Signal()
        self._stopping = False
        self._runs = self._failures = 0
        self._error: str | None = None
        self._thread = threading.Thread(target=self._loop, name=f"commitlog-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Let the next run begin now."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread after the run under way."""
        self._stopping = True
        self._wake.set()
        if not self.is_current and self._thread.is_alive():
            self._thread.join()

    @property
    def stopped(self) -> bool:
        """Whether stop() was called."""
        return self._stopping

    @property
    def is_current(self) -> bool:
        """Whether this is the task's own thread."""
        return self._thread is threading.current_thread()

    def health(self) -> TaskHealth:
        """Tell how the task fares."""
        alive = self._thread.is_alive() or self._stopping
        return TaskHealth(self.name, alive, self._runs, self._failures, self._error)

    def _loop(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            try:
                pause = self._run()
                self._error = None
            except Exception as error:  # whatever it is, it must show and must not end the thread
                self._failures += 1
                self._error = f"{type(error).__name__}: {error}"
                _logger.exception("background task %s failed", self.name)
                pause = self._retry_seconds
            self._runs += 1
            self._wake.wait(max(pause - (time.monotonic() - began), 0.0))
            self._wake.clear()
