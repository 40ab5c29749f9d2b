"""Processes that share a log and are killed."""

from __future__ import annotations

import os
import random

import commitlog


def append_for_ever(path: str, number: str) -> None:
    """Append, roll, trim and sync; print each offset with its value once it was promised."""
    chance = random.Random(int(number))
    with commitlog.open(path, mode="shared") as log:
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
