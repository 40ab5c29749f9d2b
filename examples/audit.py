"""An audit: does every record that was sent arrive exactly once? Counts per time window show it.

The sender counts what it sends per window of ten minutes, and appends the counts to a separate topic. So does
the receiver, and an auditor compares. If counts differ, it finds the records: offsets have no gaps, so it can
name one that is missing or was taken twice. The receiver here has two bugs.

    python examples/audit.py
"""

import json
import tempfile
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

import commitlog

NOON = 1_785_585_600_000  # 2026-08-01 12:00, in milliseconds
WINDOW = 600_000
COUNT = 36_000  # ten per second, for an hour
LOST, DOUBLED = {(1, 4_000)}, {(2, 70), (2, 71)}  # partition and offset


def count_windows(times: pa.ChunkedArray) -> dict[int, int]:
    """Count records per window, a column at a time, which costs next to nothing."""
    starts = pc.multiply(pc.divide(times.cast("int64"), WINDOW), WINDOW)
    return {one["values"]: one["counts"] for one in pc.value_counts(starts).to_pylist()}


def report(log: commitlog.CommitLog, who: str, counts: dict[int, int]) -> None:
    """Append the counts of one side; counting a window again replaces its count."""
    windows = sorted(counts)
    keys = [json.dumps([who, window]).encode() for window in windows]
    log.topic("audit").append_many([b"%d" % counts[window] for window in windows], keys=keys, sync=True)


def send(log: commitlog.CommitLog) -> None:
    """The sender: appends everything as one table, and its counts."""
    numbers = range(COUNT)
    table = pa.table(
        {
            "timestamp": pa.array([NOON + 100 * number for number in numbers]),
            "key": pa.array([f"account-{number % 97}" for number in numbers]),
            "value": pa.array([str(number) for number in numbers]),
        }
    )
    log.topic("payments").append_arrow(table, sync=True)
    report(log, "sent", count_windows(table["timestamp"]))


def mishandled(partition: int, table: pa.Table) -> pa.Table:
    """The receiver's bugs: it drops a record, and takes two twice."""
    offsets = table["offset"].to_pylist()
    rows = [row for row, offset in enumerate(offsets) if (partition, offset) not in LOST]
    return table.take(rows + [row for row, offset in enumerate(offsets) if (partition, offset) in DOUBLED])


def receive(log: commitlog.CommitLog) -> Counter[tuple[int, int]]:
    """The receiver: appends its counts; returns how often it took each record, by partition and offset."""
    taken, counts = Counter[tuple[int, int]](), Counter[int]()
    with log.consumer("payments", group_id="ledger") as consumer:
        while found := consumer.poll_arrow(timeout=0.2):
            for (_, partition), whole in found.items():
                table = mishandled(partition, whole)
                taken.update((partition, offset) for offset in table["offset"].to_pylist())
                counts.update(count_windows(table["timestamp"]))
    report(log, "received", counts)
    return taken


def audit(log: commitlog.CommitLog) -> list[int]:
    """Compare the counts of both sides; return the windows in which they differ."""
    counts = {tuple(json.loads(key)): int(count) for key, count in log.topic("audit").latest().items()}
    wrong = []
    for window in sorted({window for _, window in counts}):
        sent, received = (counts.get((who, window), 0) for who in ("sent", "received"))
        verdict = "" if sent == received else "  <-- differs"
        print(f"  12:{(window - NOON) // 60_000:02}  sent {sent}  received {received}{verdict}")
        if sent != received:
            wrong.append(window)
    return wrong


def name_them(log: commitlog.CommitLog, taken: Counter[tuple[int, int]], window: int) -> None:
    """Print the records of a window that are missing or duplicate."""
    for number, partition in enumerate(log.topic("payments").partitions):
        start, end = (partition.offset_for_timestamp(time) for time in (window, window + WINDOW))
        for offset in range(start, partition.next_offset if end is None else end):
            if (times := taken[number, offset]) != 1:
                value = partition.get(offset).value.decode()
                print(f"  payment {value}, partition {number}, offset {offset}: taken {times} times")


def main(path: str) -> None:
    with commitlog.open(path) as log:
        log.create_topic("payments", partitions=3, config={"retention_ms": -1})
        log.create_topic("audit", config={"cleanup_policy": "compact"})
        send(log)
        taken = receive(log)
        print("windows of ten minutes")
        wrong = audit(log)
        print("what is wrong")
        for window in wrong:
            name_them(log, taken, window)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(directory)
