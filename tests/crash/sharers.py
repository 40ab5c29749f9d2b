"""Processes that share a log and are killed: `python sharers.py <path> <number>`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import commitlog


def start(path: Path, number: int) -> subprocess.Popen[bytes]:
    """Start a writer that appends until it is killed."""
    source = os.path.dirname(os.path.dirname(commitlog.__file__))
    return subprocess.Popen(
        [sys.executable, __file__, str(path), str(number)],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
    )


def kill(child: subprocess.Popen[bytes], chance: random.Random) -> dict[int, bytes]:
    """Kill a writer after it was promised some records; returns all that it was promised, by offset."""
    assert child.stdout is not None
    lines = [child.stdout.readline() for _ in range(chance.randint(1, 300))]
    assert all(lines), f"a writer ended by itself, with {child.wait()}"
    child.kill()
    rest = child.stdout.read()
    child.wait()
    child.stdout.close()
    whole = (b"".join(lines) + rest).split(b"\n")[:-1]  # the last line may be half of one
    return {int(offset): value for offset, value in (line.split() for line in whole)}


def append_for_ever(path: str, number: str) -> None:
    """Append, roll, trim and sync; print each offset with its value once it was promised."""
    chance = random.Random(int(number))
    with commitlog.open(path, shared=True) as log:
        partition = log.topic("t").partition(0)
        made = 0
        while True:
            act = chance.random()
            if act < 0.03:
                partition.roll()
            elif act < 0.04:
                partition.trim_before(max(partition.start_offset, partition.next_offset - 2_000))
            elif act < 0.06:
                partition.sync()
            else:
                count = chance.choice([1, 1, 1, 5])
                values = [
                    b"%d.%d." % (int(number), made + more) * chance.randint(1, 9) for more in range(count)
                ]
                made += count
                offsets = [partition.append(values[0])] if count == 1 else partition.append_many(values)
                for offset, value in zip(offsets, values, strict=True):
                    os.write(1, b"%d %b\n" % (offset, value))


if __name__ == "__main__":
    append_for_ever(*sys.argv[1:])
