"""What all fuzzers share: an input, a target that is fed with inputs, and the judge of what comes of one.

Allowed are right data, or a CommitLogError that names the file, in bounded time and memory. Everything else
is a fault: another exception, a wrong answer, an error that names nothing, too long, too much.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from struct import Struct
from types import FrameType
from typing import NamedTuple

from commitlog import CommitLogError
from fuzz.mutations import mutated

_STORED = Struct("<BI")
_CPU_SECONDS, _WALL_SECONDS = 2.0, 30.0
_MORE_BYTES = 512 << 20  # of address space, above what the process has when it begins
_MOST_KEPT = 512  # inputs that led somewhere new
_MOST_FAULTS = 50


class Input(NamedTuple):
    """Bytes to be read, and how: `choice` selects file, mode or way of reading, as its target likes.

    A forged input has had its checksums made right again, so a right answer need not be what was stored. One
    that is not forged is rot: it must never be taken for something else.
    """

    data: bytes
    choice: int = 0
    forged: bool = False

    def to_bytes(self) -> bytes:
        return _STORED.pack(self.forged, self.choice) + self.data

    @classmethod
    def from_bytes(cls, raw: bytes) -> Input:
        forged, choice = _STORED.unpack_from(raw)
        return cls(raw[_STORED.size :], choice, bool(forged))


class WrongAnswer(Exception):  # noqa: N818 - it is what the library gave
    """The library took damage for data: in which way, and what exactly it took."""

    def __init__(self, kind: str, detail: object = "") -> None:
        super().__init__(kind, detail)
        self.kind, self.detail = kind, detail


class TooSlow(BaseException):
    """An input took more than its time. No Exception, for those may be caught on the way."""


class Target:
    """What inputs are fed to. `directory` is where it may keep files."""

    name: str
    kinds = 1  # what an input is, is choice % kinds; damage mostly leaves it as it was
    forging = 0.35  # the share of inputs whose checksums are made right again

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.named = str(directory)  # what an error must name

    def seeds(self) -> list[Input]:
        """Sound inputs, from the library itself."""
        raise NotImplementedError

    def forge(self, random: Random, data: bytes) -> bytes | None:
        """Change the data and make its checksums right again; None where there are none to be made."""
        return None

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        """Damage the data."""
        return mutated(random, data, donor)

    def run(self, given: Input) -> str:
        """Read the input; returns a word for what came of it. WrongAnswer if it is not what was stored."""
        raise NotImplementedError

    def names(self, error: CommitLogError) -> bool:
        """Say whether an error names the file."""
        return self.named in str(error)

    def close(self) -> None:
        """Let everything go."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and the first input that showed it."""

    kind: str
    detail: str
    given: Input


@dataclass(slots=True)
class Report:
    """What came of many inputs."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    typed: int = 0
    right: int = 0
    faults: dict[str, Fault] = field(default_factory=dict)
    peak_mib: int = 0  # of the whole process


def judge(target: Target, given: Input) -> tuple[str, Fault | None]:
    """Feed one input; returns what came of it in a word, and the fault, if that is one."""
    try:
        with _time_limit():
            return f"right: {target.run(given)}", None
    except CommitLogError as error:
        text = str(error)
        if not target.names(error):
            return "fault", Fault(f"{type(error).__name__} that names no file", text, given)
        return f"{type(error).__name__}: {re.sub('[0-9]+', '#', text.replace(target.named, ''))[:120]}", None
    except WrongAnswer as wrong:
        return "fault", Fault(f"wrong answer: {wrong.kind}", f"{wrong.detail!s:.1000}", given)
    except (Exception, TooSlow) as error:
        kind = f"{type(error).__name__} in {_where(error)}"
        return "fault", Fault(kind, "".join(traceback.format_exception(error)), given)


def _where(error: BaseException) -> str:
    """The innermost place in the library."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [one for one in frames if f"{os.sep}commitlog{os.sep}" in one.filename] or frames
    return f"{os.path.basename(ours[-1].filename)} {ours[-1].name}"


def fuzz(target: Target, inputs: int, seed: int) -> Report:
    """Feed a target with `inputs` inputs. Those with a new outcome are damaged further."""
    random = Random(f"{target.name} {seed}")
    report = Report(target.name)
    pool = target.seeds()
    for one in pool:
        word, fault = judge(target, one)
        if not word.startswith("right"):
            raise AssertionError(f"{target.name}: a sound input comes to {word}: {fault and fault.detail}")
    seen: set[str] = set()
    most_kept = len(pool) + _MOST_KEPT
    most_bytes = 2 * max(len(one.data) for one in pool) + 4096
    began = time.process_time()
    with limited_memory():
        while report.inputs < inputs:
            given = _next(random, target, pool)
            word, fault = judge(target, given)
            report.inputs += 1
            if fault is not None:
                if len(report.faults) < _MOST_FAULTS:
                    report.faults.setdefault(fault.kind, fault)
                continue
            if word.startswith("right"):
                report.right += 1
            else:
                report.typed += 1
            if word not in seen and len(pool) < most_kept and len(given.data) <= most_bytes:
                seen.add(word)
                pool.append(given)
    report.seconds = time.process_time() - began
    report.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return report


def _next(random: Random, target: Target, pool: list[Input]) -> Input:
    one, donor = random.choice(pool), random.choice(pool)
    if donor.forged and not one.forged:
        donor = one
    choice = random.getrandbits(32)
    if random.random() < 0.9:
        choice = min(choice - choice % target.kinds, (1 << 32) - target.kinds) + one.choice % target.kinds
    if random.random() < target.forging:
        forged = target.forge(random, one.data)
        if forged is not None:
            return Input(forged, choice, True)
    return Input(target.mutate(random, one.data, donor.data), choice, one.forged)


# --- limits ------------------------------------------------------------------------------------------


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """Let an input that takes too long end in TooSlow, wherever it is."""
    before = [(number, signal.signal(number, _too_slow)) for number in (signal.SIGPROF, signal.SIGALRM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class _time_limit:  # noqa: N801 - a context manager, and faster than one made of a generator
    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, _WALL_SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def limited_memory() -> Iterator[None]:
    """Let an input that takes too much memory end in MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + _MORE_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


# --- what is told ------------------------------------------------------------------------------------


def table(reports: list[Report]) -> str:
    """The reports as a table of Markdown."""
    lines = [
        "| target | inputs | CPU s | inputs/s | right data | typed errors | unique faults | peak MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in reports:
        speed = one.inputs / one.seconds if one.seconds else 0
        lines.append(
            f"| {one.target} | {one.inputs:,} | {one.seconds:,.0f} | {speed:,.0f} "
            f"| {one.right:,} | {one.typed:,} | {len(one.faults)} | {one.peak_mib} |"
        )
    return "\n".join(lines)


def keep_faults(report: Report, folder: Path) -> None:
    """Write the first input of each kind of fault, named by it; beside it, what it came to."""
    for fault in report.faults.values():
        path = folder / report.target / f"{re.sub('[^a-z0-9]+', '-', fault.kind.lower()).strip('-')}.input"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fault.given.to_bytes())
        path.with_suffix(".txt").write_text(f"{fault.kind}\n\n{fault.detail[-4000:]}\n", errors="replace")
        print(f"{report.target}: {fault.kind}\n    {path}", file=sys.stderr)
