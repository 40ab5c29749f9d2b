"""Futexes of Linux: a thread sleeps until a thread of any process changes a word in shared memory."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from collections.abc import Sequence
from functools import cache

_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)  # numbers of system calls
_FUTEX_WAITV = 449
_WAKE, _EVERYONE = 1, 0x7FFF_FFFF
_32_BITS = 2  # a flag: the size of the word
MOST_WORDS = 128  # that one thread can wait for

_syscall = ctypes.CDLL(None, use_errno=True).syscall


class _Waiter(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


@cache
def is_supported() -> bool:
    """Say whether wait() works here; it needs Linux 5.16."""
    if _FUTEX is None or sys.platform != "linux":
        return False
    _syscall(_FUTEX_WAITV, None, 0, 0, None, 0)
    return ctypes.get_errno() == errno.EINVAL  # it is there, and refuses to wait for no word


def wake(address: int) -> None:
    """Wake all threads that wait for the 32-bit word at `address`."""
    _syscall(_FUTEX, ctypes.c_void_p(address), _WAKE, _EVERYONE, None, None, 0)


def wait(words: Sequence[tuple[int, int]], seconds: float) -> bool:
    """Wait until one of the words changes and is woken; each is an address and the value it had.

    Returns at once if one has another value. False after `seconds`, and after a signal.
    """
    waiters = (_Waiter * len(words))(*(_Waiter(value, address, _32_BITS, 0) for address, value in words))
    end = time.monotonic_ns() + int(seconds * 1e9)
    deadline = _Time(*divmod(end, 1_000_000_000))
    woken = _syscall(
        _FUTEX_WAITV, waiters, len(waiters), 0, ctypes.byref(deadline), int(time.CLOCK_MONOTONIC)
    )
    return woken >= 0 or ctypes.get_errno() == errno.EAGAIN
