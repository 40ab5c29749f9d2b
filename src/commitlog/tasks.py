"""Background threads that report their failures, and the signals that threads wait for."""

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
    """The health of a background task: `error` is the failure of its last run, None if that succeeded."""

    name: str
    alive: bool
    runs: int
    failures: int
    error: str | None


class Signal:
    """A threading.Event without a lock that Ctrl-C could leave held. A wait may end spuriously.

    The gate is a C lock, open while the signal is set; a thread that passes it opens it for the next one.
    (A SimpleQueue instead would wait forever if a signal handler ran just as the timeout expired.)
    """

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def set(self) -> None:
        """Wake all waiting threads."""
        self._is_set = True
        self._open()

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open already
            self._gate.release()

    def is_set(self) -> bool:
        """Say whether it is set."""
        return self._is_set

    def clear(self) -> None:
        """Reset the signal: wait() waits again."""
        self._is_set = False
        self._gate.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the signal is set; False if it is not set after `timeout` seconds."""
        if self._is_set:
            return True
        passed = self._gate.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), _LONGEST_WAIT))
        if self._is_set:
            self._open()
        return passed


class Condition(threading.Condition):
    """A Condition whose lock is taken as `with condition.mutex:`, a C lock that Ctrl-C cannot leave held."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        super().__init__(self.mutex)


class Task:
    """Runs a function in a thread, again when woken or after the number of seconds that it returned.

    An exception is logged, kept for health() and does not end the thread.
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
        """Start the next run now."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread after the current run."""
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
        """Return the health of the task."""
        alive = self._thread.is_alive() or self._stopping
        return TaskHealth(self.name, alive, self._runs, self._failures, self._error)

    def _loop(self) -> None:
        while not self._stopping:
            began = time.monotonic()
            try:
                pause = self._run()
                self._error = None
            except Exception as error:  # any failure must be visible and must not end the thread
                self._failures += 1
                self._error = f"{type(error).__name__}: {error}"
                _logger.exception("background task %s failed", self.name)
                pause = self._retry_seconds
            self._runs += 1
            self._wake.wait(max(pause - (time.monotonic() - began), 0.0))
            self._wake.clear()
