"""Workers: a few threads that do what would block an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar
from weakref import WeakSet

from commitlog.aio.turns import NOT_BEGUN
from commitlog.tasks import Condition

Given = ParamSpec("Given")
Result = TypeVar("Result")

MOST_THREADS = 4
_IDLE_SECONDS = 5.0  # then a thread ends


class Job(Generic[Result]):
    """A call that a worker makes. Await it once, in the event loop that made it."""

    __slots__ = ("_call", "_loop", "_state", "future")

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._state = threading.Lock()  # taken by the worker that begins, or by the coroutine that withdraws
        self.future: asyncio.Future[Result] = self._loop.create_future()

    def withdraw(self) -> bool:
        """Return whether the call has not begun; then it never will."""
        return self._state.acquire(blocking=False)

    def run(self) -> None:
        """Make the call, unless it was withdrawn, and tell the event loop."""
        if not self._state.acquire(blocking=False):
            return
        try:
            tell: Callable[[], None] = _telling(self.future, self._call(), None)
        except StopIteration as error:  # a future cannot have it
            tell = _telling(self.future, None, RuntimeError(f"the call raised {error!r}"))
        except BaseException as error:  # for the coroutine, whatever it is
            tell = _telling(self.future, None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tell)


def _telling(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> Callable[[], None]:
    def tell() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    return tell


class Workers:
    """Threads, up to a number, that are started as they are needed and end when they are not. They do not
    keep the program from ending.
    """

    def __init__(self, most_threads: int = MOST_THREADS) -> None:
        self._most_threads = most_threads
        self._waiting: deque[Job[Any]] = deque()
        self._more = Condition()
        self._threads = self._idle = 0
        _everywhere.add(self)

    async def in_a_worker(
        self, call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs
    ) -> Result:
        """Make a call that only reads. If the coroutine is cancelled, its result is dropped."""
        job = self.begin(lambda: call(*args, **named))
        try:
            return await job.future
        except asyncio.CancelledError:
            job.withdraw()
            raise

    async def whole(self, call: Callable[Given, Result], *args: Given.args, **named: Given.kwargs) -> Result:
        """Make a call that changes something, whole or not at all; see end_of()."""
        return await end_of(self.begin(lambda: call(*args, **named)))

    def begin(self, call: Callable[[], Result]) -> Job[Result]:
        """Have a call made soon."""
        job = Job(call)
        with self._more.mutex:
            self._waiting.append(job)
            # threads that were notified, but do not run yet, still count as idle
            if len(self._waiting) <= self._idle or self._threads == self._most_threads:
                self._more.notify()
                return job
            try:
                threading.Thread(target=self._work, name="commitlog-aio", daemon=True).start()
            except BaseException:  # there can be no more threads
                self._waiting.remove(job)
                raise
            self._threads += 1
        return job

    @property
    def threads(self) -> int:
        """The number of threads there are."""
        return self._threads

    def forked(self) -> None:
        """In a forked child: forget the threads and the calls of the parent."""
        self.__init__(self._most_threads)  # type: ignore[misc]

    def _work(self) -> None:
        while True:
            with self._more.mutex:
                self._idle += 1
                there = self._more.wait_for(lambda: self._waiting, _IDLE_SECONDS)
                self._idle -= 1
                if not there:
                    self._threads -= 1
                    return
                job = self._waiting.popleft()
            job.run()


_everywhere: WeakSet[Workers] = WeakSet()
workers = Workers()  # for everything on this machine
in_a_worker, whole = workers.in_a_worker, workers.whole


def _after_fork() -> None:
    for one in list(_everywhere):
        one.forked()


os.register_at_fork(after_in_child=_after_fork)


async def end_of(job: Job[Result]) -> Result:
    """Return the result of a call that changes something.

    If the coroutine is cancelled before the call has begun, nothing happens. After that it waits for the end
    of the call and then raises the CancelledError, with a note that says what the call returned or raised.
    """
    try:
        return await asyncio.shield(job.future)
    except asyncio.CancelledError as cancelled:
        if job.future.cancelled() or job.withdraw():
            cancelled.add_note(NOT_BEGUN)
            raise
        await finish(job)
        error = job.future.exception()
        outcome = f"returned {job.future.result()!r:.200}" if error is None else f"failed: {error!r:.200}"
        cancelled.add_note(f"It had begun, and {outcome}.")
        raise


async def finish(job: Job[Any]) -> asyncio.CancelledError | None:
    """Wait for the end of a call, even if the coroutine is cancelled; returns the last CancelledError."""
    cancelled = None
    while not job.future.done():
        try:
            await asyncio.wait([job.future])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def to_the_end(job: Job[Result]) -> Result:
    """Return the result of a call that is made in any case. If the coroutine is cancelled, it waits for the
    end of the call and then raises the CancelledError.
    """
    cancelled = await finish(job)
    result = job.future.result()
    if cancelled is not None:
        raise cancelled
    return result
