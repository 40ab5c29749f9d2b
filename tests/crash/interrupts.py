"""Ctrl-C at a chosen moment of the engine, exactly where Python would notice it.

Python looks for signals when a function starts, when a loop jumps back and when a call into C returns, and a
system call that waits may be interrupted before it did anything. To raise from a trace function would be
wrong: it raises at the next instruction, to which other `try` and `with` blocks may belong. So a real signal
comes before a chosen instruction, and Python notices it wherever it looks next. What makes the signal come is
itself a trace function, but one in C: one in Python would be interrupted by the signal itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import commitlog
from commitlog import files

_TRACED = (str(Path(commitlog.__file__).parent), contextlib.__file__, threading.__file__)
# before these a signal may make a difference: they call something, or are looked at by Python itself
_TELLING = (
    "CALL", "CALL_FUNCTION_EX", "CALL_KW", "BEFORE_WITH", "WITH_EXCEPT_START", "FOR_ITER", "JUMP_BACKWARD",
    "SEND", "LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "STORE_SUBSCR", "CONTAINS_OP", "BINARY_SUBSCR",
)  # fmt: skip
_MAY_WAIT = ("open", "fsync", "fdatasync", "pwrite", "pwritev", "ftruncate", "posix_fallocate", "sendfile")
_FRESH = 20  # moments within which nobody can be expected to have stored a descriptor
_any = ctypes.py_object
_trip = ctypes.PYFUNCTYPE(None, _any, _any, _any)(("PyErr_SetInterrupt", ctypes.pythonapi))


class Interrupt:
    """Raises KeyboardInterrupt at a moment, counted from 1, of what runs under it, and catches it.

    `fresh` says whether a file was opened just before: then nobody had the time to store its descriptor, and
    nobody can close it. `error` is the exception, with its traceback, as a shell keeps it.
    """

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.passed = 0  # moments
        self._open_before = 1 << 30
        self._opened_at = -_FRESH - 1  # another may be closed meanwhile, so that the number is the same
        self._patch = pytest.MonkeyPatch()
        self._handler: Any = None
        self.raised = self.fresh = False
        self._tripped = False  # the signal came between two instructions, where Python would not notice it
        self.place = "nowhere"
        self.error: BaseException | None = None

    def __enter__(self) -> Interrupt:
        self._handler = signal.signal(signal.SIGINT, self._handle)
        for name in _MAY_WAIT:
            self._patch.setattr(os, name, self._waiting(getattr(os, name)))
        self._patch.setattr(os, "dup", self._opening(os.dup))
        self._patch.setattr(os, "open", self._opening(os.open))
        self._patch.setattr(files, "pwrite", self._waiting(files.pwrite))
        sys._getframe().f_trace_opcodes = True  # from 3.12 on, settrace() must find that somebody wants them
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        sys.settrace(None)
        signal.signal(signal.SIGINT, self._handler)
        self._patch.undo()
        self.error = error
        return kind is KeyboardInterrupt and self.raised

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """Python has noticed the signal."""
        if frame is not None and frame.f_code.co_name == "trace":  # it would not, but for the trace function
            self._tripped = True
            return
        while (
            frame is not None and frame.f_code.co_filename == __file__
        ):  # a trace function, as a call begins
            if frame.f_code is Interrupt.__exit__.__code__:
                return
            frame = frame.f_back
        if frame is not None and not _lets_go(frame):
            self._raise(frame)

    def _raise(self, frame: FrameType) -> None:
        sys.settrace(None)
        just_opened = self.passed - self._opened_at <= _FRESH
        self.raised, self.fresh = True, just_opened or open_files() > self._open_before
        self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        raise KeyboardInterrupt

    def _waiting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A system call that may be interrupted before it did anything."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._has_come():
                self._raise(sys._getframe(1))
            return real(*args, **kwargs)

        return call

    def _opening(self, real: Callable[..., int]) -> Callable[..., int]:
        """A call that returns a descriptor, which its caller has to store."""

        def call(*args: Any, **kwargs: Any) -> int:
            fd = real(*args, **kwargs)
            self._opened_at = self.passed
            return fd

        return call

    def _has_come(self) -> bool:
        self.passed += 1
        if self.passed == max(self.moment - _FRESH, 1):
            self._open_before = open_files()
        return self.passed == self.moment and not self.raised

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_TRACED) or _lets_go(frame):
            return None
        before = _before(frame.f_code)

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "opcode" and frame.f_lasti in before and (self._tripped or self._has_come()):
                self._tripped = False
                frame.f_trace = _trip  # at the next instruction
                return None
            return trace

        frame.f_trace = trace  # first: 3.13 looks at it when opcodes are asked for
        frame.f_trace_opcodes = True
        return trace


def _lets_go(frame: FrameType | None) -> bool:
    """Say whether this runs in a __del__: Python reports what is raised there, and goes on."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


@cache
def _before(code: CodeType) -> frozenset[int]:
    """The instructions after which a telling one comes, or may come."""
    found = list(dis.get_instructions(code))
    jumps = {one.offset for one in found if "JUMP" in one.opname}
    return frozenset(jumps) | {one.offset for one, after in pairwise(found) if after.opname in _TELLING}


def open_files() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))
