"""Bells: how a writer wakes readers in other processes.

A reader that waits for records sets the flag of a bell and sleeps; a writer that finds the flag set after an
append clears it and wakes every sleeping reader. No reader sleeps longer than LONGEST_SLEEP: one whose bell
is not rung, because the writer died or the file was lost, looks again by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import time

from commitlog import files, futex
from commitlog.checksum import crc32c
from commitlog.tasks import Signal

NAME = ".bells"
SIZE_BYTES = 4096
LONGEST_SLEEP = 0.02  # seconds
# A reader woken for another partition pauses before it listens again, longer each time: otherwise each append
# there would wake it.
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.005
_BELLS = futex.MOST_WORDS - 8  # one thread can wait for all of them, and for a word of its own
_BELL_BYTES = 8  # two 32-bit words: whether a reader waits, and a number that each ring changes


class Bell:
    """The bell of one partition, or of several."""

    __slots__ = ("_address", "_page", "waited_for")

    def __init__(self, page: mmap.mmap, place: int, address: int) -> None:
        self._page = memoryview(page)[place : place + _BELL_BYTES].cast("I")
        self._address = address + place + 4
        self.waited_for = self._page[:1]  # not 0 while a reader waits

    def ring(self) -> None:
        """Wake the readers that wait; what they wait for has been published."""
        self._page[0] = 0
        self._page[1] = time.monotonic_ns() & 0xFFFF_FFFF  # differs from the last value
        futex.wake(self._address)

    def listen(self) -> tuple[int, int]:
        """Ask to be woken, and return the word to wait for. What is published from now on rings the bell."""
        word = self._address, self._page[1]
        self._page[0] = 1
        return word


class Bells:
    """The bells of a log, in a file whose contents matter only while a process has it open."""

    def __init__(self, page: mmap.mmap) -> None:
        self._keeper = ctypes.c_char.from_buffer(page)  # the page stays where it is
        address = ctypes.addressof(self._keeper)
        self._bells = [Bell(page, number * _BELL_BYTES, address) for number in range(_BELLS)]

    @classmethod
    def open(cls, directory: str, *, create: bool) -> Bells | None:
        """Map the bells of a log; None where readers have to poll."""
        path = os.path.join(directory, NAME)
        with contextlib.suppress(OSError, ValueError):  # ValueError: it is empty
            if futex.is_supported():
                page = files.map_writable(path, SIZE_BYTES) if create else files.map_again(path, None)
                return cls(page) if len(page) >= SIZE_BYTES else None
        return None

    def bell(self, topic: str, partition: int) -> Bell:
        """Return a partition's bell. Those of one topic share a bell only if there are fewer bells."""
        return self._bells[(crc32c(topic.encode()) + partition) % _BELLS]


class Listener(Signal):
    """A signal that is also set, for the thread that waits, when a bell is rung. It sleeps for at most
    `longest_sleep` seconds while it listens to bells.
    """

    def __init__(self, longest_sleep: float = LONGEST_SLEEP) -> None:
        super().__init__()
        self._longest_sleep = longest_sleep
        self._heard: dict[Bell, tuple[int, int]] = {}
        self._own = ctypes.c_uint32(0)  # 1 once the signal is set

    def hear(self, bell: Bell) -> None:
        """End the next wait if `bell` is rung from now on."""
        self._heard[bell] = bell.listen()

    def ignore_bells(self) -> None:
        """Stop listening to bells."""
        self._heard.clear()

    def set(self) -> None:
        """Wake all waiting threads."""
        super().set()
        self._own.value = 1
        if self._heard:
            futex.wake(ctypes.addressof(self._own))

    def clear(self) -> None:
        """Reset the signal: wait() waits again."""
        self._own.value = 0
        super().clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the signal is set or a bell is rung; False after `timeout` seconds, and after the
        longest sleep.
        """
        if not self._heard or self.is_set():
            return super().wait(timeout)
        words = [(ctypes.addressof(self._own), 0), *self._heard.values()]
        return futex.wait(
            words, self._longest_sleep if timeout is None else min(timeout, self._longest_sleep)
        )
