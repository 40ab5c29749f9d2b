"""Processes to kill, forked from one that has imported everything: to start one takes milliseconds.

`start("children.write", ...)` runs a function of a module of this folder; its arguments arrive as texts.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from typing import IO, NoReturn

import commitlog

MODULES = ("children", "publishers", "sharers", "transaction_kills")
_MOST = 1 << 16  # bytes of a request


class Child:
    """A process of the zygote; its number stays its own until wait() has returned."""

    def __init__(self, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout

    def is_alive(self) -> bool:
        return not _ask(["has ended", self.pid])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end and return its exit code; a signal's is negative."""
        self.stdout.close()
        return int(_ask(["wait", self.pid]))


def start(function: str, *arguments: object) -> Child:
    """Start a process that runs a function of one of MODULES; what it prints can be read from `stdout`."""
    read, write = os.pipe()
    try:
        pid = _ask(["start", function, *map(str, arguments)], write)
    finally:
        os.close(write)
    return Child(pid, os.fdopen(read))


# --- our side of the zygote

_zygote: tuple[subprocess.Popen[bytes], socket.socket] | None = None


def _ask(request: list[object], *descriptors: int) -> int:
    global _zygote  # noqa: PLW0603 - one for this process
    if _zygote is None:
        _zygote = _made()
        atexit.register(_end)
    socket.send_fds(_zygote[1], [json.dumps(request).encode()], descriptors)
    answer = b""
    try:
        answer = _zygote[1].recv(_MOST)
    finally:
        if not answer:  # it ended, or we were interrupted and would take the answer for another one
            _end()
    assert answer, "the zygote ended"
    return int(answer)


def _made() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = os.path.dirname(os.path.dirname(commitlog.__file__))
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "error"}
    with its:
        return subprocess.Popen([sys.executable, __file__], stdin=its.fileno(), env=environment), ours


def _end() -> None:
    global _zygote  # noqa: PLW0603
    if _zygote is not None:
        process, ours = _zygote
        _zygote = None
        ours.close()
        process.kill()  # and with it its children
        process.wait()


# --- its side


def main() -> None:
    _end_with_parent()
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    with socket.socket(fileno=0) as requests:
        serve(requests)


def serve(requests: socket.socket) -> None:
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _MOST, 1)
        what, *arguments = json.loads(data)
        if what == "start":
            pid = os.fork()
            if pid == 0:
                requests.close()
                _run(descriptors[0], *arguments)
            os.close(descriptors[0])
            answer = pid
        elif what == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(arguments[0], 0)[1])
        else:
            state = os.waitid(os.P_PID, arguments[0], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            answer = int(state is not None)
        requests.send(b"%d" % answer)


def _end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends, however that ends."""
    pr_set_pdeathsig = 1
    assert ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL)) == 0


def _run(stdout: int, function: str, *arguments: str) -> NoReturn:
    _end_with_parent()
    os.dup2(stdout, 1)
    module, _, name = function.partition(".")
    try:
        getattr(sys.modules[module], name)(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
