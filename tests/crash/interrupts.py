"""Ctrl-C at a chosen moment of the engine.

Python looks for signals when a function starts, when a loop jumps back and when a call into C returns, and a
system call that waits may be interrupted before it did anything. An opcode trace finds exactly these moments;
a line trace would also stop at places where Python never does, such as between a `with` body and its exit.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import commitlog
from commitlog import files

_TRACED = (str(Path(commitlog.__file__).parent), contextlib.__file__)  # the latter runs context managers
_LOOKS_FOR_SIGNALS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW")
_MAY_WAIT = ("open", "fsync", "fdatasync", "pwrite", "pwritev", "ftruncate", "posix_fallocate", "sendfile")


class Interrupt:
    """Raises KeyboardInterrupt at a moment, counted from 1, of what runs under it, and catches it.

    `fresh` says whether a file was opened within the last two moments: then nobody had the time to store its
    descriptor, and nobody can close it.
    """

    def __init__(self, moment: int) -> None:
        self.moment = moment
        self.passed = 0  # moments
        self._open_before = open_files()
        self._returned_to: set[int] = set()  # frames whose last call was no call into C
        self._patch = pytest.MonkeyPatch()
        self.raised = self.fresh = False
        self.place = "nowhere"

    def __enter__(self) -> Interrupt:
        for name in _MAY_WAIT:
            self._patch.setattr(os, name, self._waiting(getattr(os, name)))
        self._patch.setattr(files, "pwrite", self._waiting(files.pwrite))
        sys._getframe().f_trace_opcodes = True  # from 3.12 on, settrace() must find that somebody wants them
        sys.settrace(self._enter)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        sys.settrace(None)
        self._patch.undo()
        return kind is KeyboardInterrupt and self.raised

    def _waiting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """A system call that may be interrupted before it did anything."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._come_to(sys._getframe(1))
            return real(*args, **kwargs)

        return call

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not _is_traced(frame) or _lets_go(frame):
            return None
        calls, returned_to = _calls(code), self._returned_to
        returned_to.discard(id(frame))
        resumed_by_c = bool(code.co_flags & inspect.CO_GENERATOR)
        before = -1

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "opcode":
                looks = before in calls or frame.f_lasti < before  # a loop that jumps back looks, too
                before = frame.f_lasti
                if id(frame) in returned_to:
                    returned_to.remove(id(frame))
                elif looks:
                    self._come_to(frame)
            elif event == "exception":
                before = -1  # a call that raises is followed by no look
            elif event == "return" and not resumed_by_c and _is_traced(frame.f_back):
                returned_to.add(id(frame.f_back))
            return trace

        frame.f_trace = trace  # first: 3.13 looks at it when opcodes are asked for
        frame.f_trace_opcodes = True
        return trace

    def _come_to(self, frame: FrameType) -> None:
        if self.raised:
            return
        self.passed += 1
        if self.passed == self.moment - 2:
            self._open_before = open_files()
        if self.passed == self.moment:
            sys.settrace(None)
            self.raised, self.fresh = True, open_files() > self._open_before
            self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            raise KeyboardInterrupt


def _is_traced(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(_TRACED)


def _lets_go(frame: FrameType | None) -> bool:
    """Say whether this runs in a __del__: Python reports what is raised there, and goes on."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


@cache
def _calls(code: CodeType) -> frozenset[int]:
    """The instructions after which Python looks for signals."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname in _LOOKS_FOR_SIGNALS)


def open_files() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))
