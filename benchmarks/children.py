"""The parts of a row that need a process of their own: to be killed, or to have a memory of its own.

Run as `python children.py NAME ARGUMENTS`; what a child found out is printed as JSON or plain lines.
"""

from __future__ import annotations

import json
import sys
from itertools import cycle
from pathlib import Path

import data
import engine

MAX_SEGMENT_BYTES = (1 << 31) - 1


def write_until_killed(path: str) -> None:
    """Append for ever without a sync, in one segment, and print each acknowledged end."""
    log, partition = engine.create(Path(path), flush_ms=-1, segment_bytes=MAX_SEGMENT_BYTES)
    batches = data.make("recovery", 640_000, 60, 120).batches
    for number, batch in enumerate(cycle(batches)):
        partition.append_many(batch.values, keys=batch.keys, timestamps=batch.timestamps)
        if number % 8 == 7:
            print(partition.next_offset, partition.size_bytes, flush=True)
    log.close()


def resident() -> tuple[int, int]:
    """Return the bytes resident in all, and those of them that are not pages of a file."""
    _, pages, shared, *_ = Path("/proc/self/statm").read_text().split()
    return int(pages) * 4096, (int(pages) - int(shared)) * 4096


def scan_and_watch(path: str, how: str) -> None:
    """Scan a partition and print how much memory was resident before and in each tenth of it."""
    log, partition = engine.reopen(Path(path), "r")
    end = partition.next_offset
    if how == "arrow":
        partition.get(0)
        next(iter(partition.batches())).to_arrow()  # so that importing pyarrow is not counted
    before = resident()
    tenths = [(0, 0)] * 10
    for offset in offsets_of_arrow(partition) if how == "arrow" else offsets_of_records(partition):
        tenth = offset * 10 // end
        now = resident()
        tenths[tenth] = (max(tenths[tenth][0], now[0]), max(tenths[tenth][1], now[1]))
    log.close()
    print(json.dumps({"before": before, "tenths": tenths, "records": end}))


def offsets_of_arrow(partition):
    for batch in partition.batches():
        batch.to_arrow()
        yield batch.base_offset


def offsets_of_records(partition):
    for record in partition.records():
        if record.offset % 5000 == 0:
            yield record.offset


if __name__ == "__main__":
    {"write": write_until_killed, "scan": scan_and_watch}[sys.argv[1]](*sys.argv[2:])
