"""Programs whose handles and memory are measured: `python resources.py <name> <path> ...`."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import commitlog

MIB = 1 << 20
A_TOPIC = 1_000
LARGE = 80 * 1024  # so that files are mapped, not read


def resident_bytes() -> int:
    """What this process holds in memory: its own, and pages of files that it mapped."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "RssFile")))


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    return sum(".log" in line or "index" in line for line in Path("/proc/self/maps").read_text().splitlines())


def many_rolls(path: str, rolls: str) -> None:
    """Roll over and over, and read along, here and as a reader would; prints handles and maps on the way."""
    seen = []
    config = commitlog.LogConfig(max_open_segments=16)
    with (
        commitlog.open(path, config=config) as log,
        commitlog.open(path, mode="r", config=config) as reader,
    ):
        partition = log.create_topic("t", config={"flush_ms": 20, "index_interval_bytes": 64}).partition(0)
        following = reader.topic("t").partition(0)
        for number in range(int(rolls)):
            partition.append_many([b"%d" % number * 20] * 3)
            partition.roll()
            if number % 50 == 49:
                for offset in range(0, partition.next_offset, max(partition.next_offset // 40, 1)):
                    assert partition.get(offset).value == following.get(offset).value
                seen.append((handles(), maps()))
    print(json.dumps(seen))


def write_many(path: str, first: str) -> None:
    """Add a topic whose partitions have three records each; every tenth is so large that readers map files.

    `first` is how many partitions there are before it, in other topics.
    """
    with commitlog.open(path) as log:
        for number, partition in enumerate(log.create_topic(f"t{int(first):05}", A_TOPIC), int(first)):
            size = LARGE if number % 10 == 0 else 1
            for record in range(3):
                partition.append(b"%d %d" % (number, record) + bytes(size))
    print(json.dumps("done"))


def _partitions(log: commitlog.CommitLog) -> Iterator[commitlog.Partition]:
    return (partition for topic in log.topics() for partition in log.topic(topic))


def read_many(path: str, how: str, limit: str) -> None:
    """Read partitions three times with few descriptors; prints each time how many records were right, the
    most handles and the memory held.
    """
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
    seen = []
    read = _reader(path) if how == "log" else _worker(path)
    for _ in range(3):
        right = most = 0
        for number, found in read():
            right += sum(one.startswith(b"%d %d\0" % (number, place + 1)) for place, one in enumerate(found))
            most = max(most, handles())
        seen.append((right, most, resident_bytes()))
    print(json.dumps(seen))


def _reader(path: str) -> Callable[[], Iterator[tuple[int, list[bytes]]]]:
    """Read the second and third record of each partition."""
    log = commitlog.open(path, mode="r")
    return lambda: (
        (number, [record.value or b"" for record in partition.records(1)])
        for number, partition in enumerate(_partitions(log))
    )


def _worker(path: str) -> Callable[[], Iterator[tuple[int, list[bytes]]]]:
    """Read the second and third record of each partition as a task of Spark does."""
    from commitlog.spark.options import ReadOptions
    from commitlog.spark.planning import batch_ranges
    from commitlog.spark.schema import Field
    from commitlog.spark.worker import open_log, read_ranges

    options = ReadOptions.of({"path": path})
    ranges = [one._replace(start=1) for one in batch_ranges(open_log(path), options)]
    return lambda: (
        (int(topic[0].as_py()[1:]) + partition[0].as_py(), value.to_pylist())
        for topic, partition, value in (
            batch.columns
            for batch in read_ranges(options, (Field("topic"), Field("partition"), Field("value")), ranges)
        )
    )


def hold_many(path: str, limit: str) -> None:
    """Keep batches in more mapped files than there are descriptors; prints how many are right and handles."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(limit), int(limit)))
    with commitlog.open(path, mode="r") as log:
        kept = [list(partition.batches()) for partition in _partitions(log)]
        most = handles()
    right = 0
    for number, batches in enumerate(kept):
        found = [value or b"" for batch in batches for value in batch.values()]
        right += sum(value.startswith(b"%d %d\0" % (number, place)) for place, value in enumerate(found))
    print(json.dumps([right, most]))


def write_much(path: str, megabytes: str, segment_bytes: str) -> None:
    with commitlog.open(path) as log:
        config = {"segment_bytes": int(segment_bytes), "flush_ms": -1}
        partition = log.create_topic("t", config=config).partition(0)
        block = os.urandom(1024)
        for _ in range(int(megabytes)):
            partition.append_many([block] * 1024)
    print(json.dumps(partition.next_offset))


def scan(path: str, how: str) -> None:
    """Read everything; prints how many records there were and the most memory held beyond the first batch."""
    most = count = base = 0
    with commitlog.open(path, mode="r") as log:
        partition = log.topic("t").partition(0)
        for number, batch in enumerate(partition.batches()):
            if how == "arrow":
                count += batch.to_arrow().num_rows
            elif how == "records":
                count += sum(1 for _ in batch.records())
            else:
                count += len(batch.values())
            if number == 0:
                base = resident_bytes()
            elif number % 8 == 0:
                most = max(most, resident_bytes() - base)
    print(json.dumps([count, most]))


def keep_tables(path: str) -> None:
    """Tables over mapped files outlive a trim, a truncation, a deletion and the close of the log."""
    log = commitlog.open(path)
    kept = []
    for name, change in CHANGES.items():
        config = {"segment_bytes": 2 * MIB, "file_delete_delay_ms": 0}
        partition = log.create_topic(name, config=config).partition(0)
        values = [os.urandom(500) for _ in range(12_000)]
        for start in range(0, len(values), 2000):
            partition.append_many(values[start : start + 2000])
        table, batches = partition.to_arrow(), list(partition.batches())
        expected = hashlib.sha256(b"".join(values)).digest()
        change(log, name)
        kept.append((table, batches, expected))
    log.close()
    gc.collect()
    for table, batches, expected in kept:
        assert hashlib.sha256(b"".join(table["value"].to_pylist())).digest() == expected
        again = b"".join(value for batch in batches for value in batch.values() if value is not None)
        assert hashlib.sha256(again).digest() == expected
    print(json.dumps("done"))


def _trim(log: commitlog.CommitLog, name: str) -> None:
    partition = log.topic(name).partition(0)
    partition.trim_before(partition.next_offset)


def _truncate(log: commitlog.CommitLog, name: str) -> None:
    partition = log.topic(name).partition(0)
    partition.truncate_from(100)
    partition.append_many([b"new"] * 100)


def _roll_back_and_reopen(log: commitlog.CommitLog, name: str) -> None:
    partition = log.topic(name).partition(0)
    partition.repair()
    partition.truncate_from(partition.next_offset - 1)
    partition.truncate_from(partition.start_offset)


CHANGES = {
    "trim": _trim,
    "truncate": _truncate,
    "repair": _roll_back_and_reopen,
    "delete": lambda log, name: log.delete_topic(name),
}

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
