"""Processes that the crash tests start, limit and kill: `python children.py <name> <arguments>`."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commitlog
from commitlog import DiskFullError, Partition, aio, files

# --- starting them


def start(name: str, *arguments: object, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a child that runs one of the functions below."""
    source = os.path.dirname(os.path.dirname(commitlog.__file__))
    return subprocess.Popen(
        [*wrapper, sys.executable, __file__, name, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "error"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(name: str, *arguments: object, wrapper: tuple[str, ...] = ()) -> str:
    """Run a child to its end, which must be a good one; returns what it printed."""
    child = start(name, *arguments, wrapper=wrapper)
    out, problem = child.communicate(timeout=120)
    assert child.returncode == 0, f"{name} ended with {child.returncode}\n{problem}"
    return out


# --- what they write: a value tells its offset, and how many truncations came before it


def value_of(offset: int, generation: int = 0) -> bytes:
    return b"%d.%d." % (offset, generation) * (1 + offset * 7 % 40)


def read_value(value: bytes) -> tuple[int, int]:
    """Return offset and generation; the whole value must be what was written."""
    offset, generation, _ = value.split(b".", 2)
    assert value == value_of(int(offset), int(generation)), "a value that was never written"
    return int(offset), int(generation)


class Progress:
    """What a writer has done, in a file that outlives it; each field is one aligned word."""

    FIELDS = ("next", "synced", "start_asked", "start", "cut_asked", "cut", "generation")

    def __init__(self, path: str | Path) -> None:
        with open(path, "a+b") as file:
            if file.tell() == 0:
                file.write(bytes(8 * len(self.FIELDS)))
                file.flush()
            self._map = mmap.mmap(file.fileno(), 8 * len(self.FIELDS))
        self._words = memoryview(self._map).cast("q")

    def get(self, name: str) -> int:
        return self._words[self.FIELDS.index(name)]

    def set(self, name: str, number: int) -> None:
        self._words[self.FIELDS.index(name)] = number


# --- writers that are killed


def append_singles(partition: Partition, progress: Progress, chance: random.Random) -> None:
    sync = chance.random() < 0.02
    offset = partition.append(value_of(partition.next_offset, progress.get("generation")), sync=sync)
    progress.set("next", offset + 1)
    if sync:
        progress.set("synced", offset + 1)


def append_unsynced(partition: Partition, progress: Progress, chance: random.Random) -> None:
    progress.set("next", 1 + partition.append(value_of(partition.next_offset)))


def append_batches(partition: Partition, progress: Progress, chance: random.Random) -> None:
    start, generation = partition.next_offset, progress.get("generation")
    end = start + chance.randint(1, 200)
    partition.append_many([value_of(offset, generation) for offset in range(start, end)])
    progress.set("next", end)


def trim(partition: Partition, progress: Progress, chance: random.Random) -> None:
    append_singles(partition, progress, chance)
    if chance.random() < 0.05:
        offset = chance.randint(partition.start_offset, partition.next_offset)
        progress.set("start_asked", offset)
        partition.trim_before(offset)
        progress.set("start", offset)


def truncate(partition: Partition, progress: Progress, chance: random.Random) -> None:
    append_singles(partition, progress, chance)
    if chance.random() < 0.05:
        offset = chance.randint(
            max(partition.start_offset, partition.next_offset - 30), partition.next_offset
        )
        progress.set("synced", min(offset, progress.get("synced")))
        progress.set("cut_asked", offset)
        partition.truncate_from(offset)
        progress.set("next", offset)
        progress.set("cut", offset)
        progress.set("generation", progress.get("generation") + 1)
        progress.set("cut_asked", -1)


def everything(partition: Partition, progress: Progress, chance: random.Random) -> None:
    chance.choice([append_singles, append_batches, trim, truncate])(partition, progress, chance)


def roll(partition: Partition, progress: Progress, chance: random.Random) -> None:
    append_singles(partition, progress, chance)
    partition.roll()


WRITERS: dict[str, Callable[[Partition, Progress, random.Random], None]] = {
    "singles": append_singles,
    "tail": append_unsynced,
    "batches": append_batches,
    "rolls": roll,
    "trims": trim,
    "truncations": truncate,
    "everything": everything,
}


async def send_until_killed(log: aio.CommitLog, progress: Progress, chance: random.Random) -> None:
    """Send from an event loop, some records at a time; what was awaited is acknowledged."""
    producers = [log.producer(linger_ms=0), log.producer(linger_ms=1), log.producer(linger_ms=0, acks="all")]
    while True:
        start, producer = progress.get("next"), chance.choice(producers)
        end = start + chance.randint(1, 50)
        places = await asyncio.gather(*(producer.send("t", value_of(offset)) for offset in range(start, end)))
        assert [place.offset for place in places] == list(range(start, end))
        progress.set("next", end)


KINDS = (*WRITERS, "asyncio")
SEGMENT_BYTES = {"batches": 64 * 1024, "everything": 64 * 1024, "tail": 1024 * 1024}


def write(path: str, progress_path: str, kind: str, seed: str) -> None:
    """Write until killed."""
    progress = Progress(progress_path)
    chance = random.Random(int(seed))
    with commitlog.open(path) as log:
        config = {
            "segment_bytes": SEGMENT_BYTES.get(kind, 4096),
            "file_delete_delay_ms": 0, "index_interval_bytes": 256, "flush_ms": -1 if kind == "tail" else 5,
        }  # fmt: skip
        topic = log.topic("t") if "t" in log.topics() else log.create_topic("t", config=config)
        partition = topic.partition(0)
        print("ready", flush=True)
        if kind == "asyncio":
            asyncio.run(send_until_killed(aio.CommitLog(log), progress, chance))
        while True:
            WRITERS[kind](partition, progress, chance)


# --- full disks


def big_value(offset: int) -> bytes:
    return b"<%d>" % offset * (20 + offset % 150)


def fill(partition: Partition, *, count: int = 1, most: int = 100_000) -> None:
    """Append until the disk is full, `count` records at a time."""
    while partition.next_offset < most:
        start = partition.next_offset
        size = partition.size_bytes
        try:
            if count == 1:
                partition.append(big_value(start))
            else:
                partition.append_many([big_value(offset) for offset in range(start, start + count)])
        except DiskFullError:
            assert (partition.next_offset, partition.size_bytes) == (start, size)
            return
    raise AssertionError("the disk is never full")


def check(partition: Any) -> None:
    start, end = partition.start_offset, partition.next_offset
    offsets = []
    for record in partition.records():
        assert record.value == big_value(record.offset)
        offsets.append(record.offset)
    assert offsets == list(range(start, end))
    assert partition.verify().ok


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def can_append(partition: Partition) -> bool:
    try:
        partition.append(big_value(partition.next_offset))
    except DiskFullError:
        return False
    return True


def fill_to_the_limit(path: str, count: str, seed: str) -> None:
    """A file may not grow over a limit; after the limit is lifted, appends work again."""
    limit = random.Random(int(seed)).randint(20_000, 60_000)
    with commitlog.open(path) as log:
        partition = log.create_topic("t").partition(0)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        fill(partition, count=int(count))
        assert partition.size_bytes <= limit
        check(partition)
        partition.trim_before(3)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        partition.append(big_value(partition.next_offset), sync=True)
        check(partition)
        assert log.health().ok
    print(partition.next_offset)


def fill_a_mapped_tail(path: str, seed: str) -> None:
    """As above, but single records that were stored into a map come to the limit; no signal may end us."""
    with commitlog.open(path) as log:
        files._IN_ORDER, files._IN_PLACE = {os.uname().machine}, {files._file_system(os.stat(path).st_dev)}
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        while partition._state.writer.tail is None:
            partition.append(big_value(partition.next_offset))
        reserved = os.path.getsize(partition.segments[-1].path)
        limit = reserved + random.Random(int(seed)).randint(0, 1_000_000)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        fill(partition)
        assert partition._state.writer.tail is None, "reserving failed before writing did"
        assert limit - 2_000 < partition.size_bytes <= limit
        check(partition)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        for _ in range(100):
            partition.append(big_value(partition.next_offset))
        partition.roll()
        for _ in range(2_000):
            partition.append(big_value(partition.next_offset))
        assert partition._state.writer.tail is not None, "the next segment tries again"
        partition.sync()
        check(partition)
        assert log.health().ok
    print(partition.next_offset)


SMALL_FILES = {"segment_bytes": 16 * 1024, "index_interval_bytes": 0, "file_delete_delay_ms": 0}


def full_tmpfs(path: str, scenario: str) -> None:
    """On a small file system of its own."""
    FULL[scenario](path)


def rounds(path: str, count: int) -> None:
    """Fill, make room, go on; over and over."""
    chance = random.Random(count)
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=SMALL_FILES).partition(0)
        for _ in range(8):
            fill(partition, count=count)
            check(partition)
            with commitlog.open(path, mode="r") as reader:
                check(reader.topic("t").partition(0))
            start, end = partition.start_offset, partition.next_offset
            partition.trim_before(chance.randint((start + 2 * end) // 3, end - 1))
            check(partition)
            until(lambda: can_append(partition), "appends work again once there is room")
            partition.sync()
        assert log.health().ok, log.health()
        end = partition.next_offset
    with commitlog.open(path) as log:
        partition = log.topic("t").partition(0)
        assert partition.recovery.clean
        assert partition.next_offset == end
        check(partition)


def trim_all(path: str) -> None:
    """Giving up everything is what makes most room."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=SMALL_FILES).partition(0)
        fill(partition)
        end = partition.next_offset
        partition.trim_before(end)
        assert (partition.start_offset, partition.next_offset) == (end, end)
        until(lambda: can_append(partition), "appends work again once there is room")
        fill(partition)
        check(partition)
        assert partition.next_offset > end + 20, "the files were removed"


def retention(path: str) -> None:
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config={**SMALL_FILES, "retention_ms": 1000}).partition(0)
        fill(partition)
        log.apply_retention(now_ms=time.time_ns() // 1_000_000 + 10_000)
        until(lambda: can_append(partition), "retention makes room")
        check(partition)


def delete_topic(path: str) -> None:
    with commitlog.open(path) as log:
        doomed = log.create_topic("doomed", config=SMALL_FILES).partition(0)
        partition = log.create_topic("t", config=SMALL_FILES).partition(0)
        partition.append(big_value(0))
        fill(doomed)
        fill(partition)
        log.delete_topic("doomed")
        assert log.topics() == ["t"]
        until(lambda: can_append(partition), "deleting a topic makes room")
        check(partition)
    with commitlog.open(path) as log:
        assert log.topics() == ["t"]
        check(log.topic("t").partition(0))


def create_topic(path: str) -> None:
    """What there is no room for is not half there."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=SMALL_FILES).partition(0)
        fill(partition)
        try:
            log.create_topic("new", partitions=3)
        except DiskFullError:
            assert log.topics() == ["t"]
        else:
            raise AssertionError("there was room")
        partition.trim_before(partition.next_offset)
        until(lambda: can_append(partition), "there is room again")
        log.create_topic("new", partitions=3).partition(2).append(b"value")
    with commitlog.open(path) as log:
        assert log.topics() == ["new", "t"]
        check(log.topic("t").partition(0))


def roll_when_full(path: str) -> None:
    with commitlog.open(path) as log:
        config = {**SMALL_FILES, "segment_bytes": 1 << 30}
        partition = log.create_topic("t", config=config).partition(0)
        ballast = Path(path).with_name("ballast")
        fill(partition)
        end = partition.next_offset
        for _ in range(3):
            try:
                partition.roll()
            except DiskFullError:
                pass
            else:
                raise AssertionError("there was room")
        check(partition)
        assert not ballast.exists()
        assert partition.next_offset == end
        partition.sync()
    with commitlog.open(path) as log:
        partition = log.topic("t").partition(0)
        assert partition.recovery.clean
        check(partition)
        assert partition.next_offset == end


def truncate_when_full(path: str) -> None:
    """A truncation writes a copy: it works, or it changes nothing and can be tried again."""
    ballast = Path(path).with_name("ballast")
    ballast.write_bytes(bytes(100_000))
    with commitlog.open(path) as log:
        config = {**SMALL_FILES, "segment_bytes": 1 << 30}
        partition = log.create_topic("t", config=config).partition(0)
        fill(partition)
        end = partition.next_offset
        try:
            partition.truncate_from(end - 5)
        except DiskFullError:
            assert partition.next_offset == end
            check(partition)
            assert log.health().ok, "a full disk is no broken disk"
            ballast.unlink()
            until(lambda: can_append(partition), "there is room again")
        else:
            assert partition.next_offset == end - 5
        check(partition)
    with commitlog.open(path) as log:
        check(log.topic("t").partition(0))


def close_and_open_when_full(path: str) -> None:
    """A full disk keeps nobody from reading, or from making room, after a restart."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config=SMALL_FILES).partition(0)
        fill(partition)
        end = partition.next_offset
    with commitlog.open(path, mode="r") as log:
        check(log.topic("t").partition(0))
    with commitlog.open(path) as log:
        partition = log.topic("t").partition(0)
        assert partition.next_offset == end
        check(partition)
        partition.trim_before(end - 3)
        until(lambda: can_append(partition), "there is room again")
        check(partition)


def alter_config(path: str) -> None:
    with commitlog.open(path) as log:
        topic = log.create_topic("t", config=SMALL_FILES)
        fill(topic.partition(0))
        try:
            topic.alter_config(retention_ms=5)
        except OSError:
            assert topic.config.retention_ms != 5
    with commitlog.open(path) as log:
        assert log.topic("t").config == topic.config


FULL: dict[str, Callable[[str], None]] = {
    "rounds of single appends": lambda path: rounds(path, 1),
    "rounds of batches": lambda path: rounds(path, 7),
    "trim everything": trim_all,
    "retention": retention,
    "delete a topic": delete_topic,
    "create a topic": create_topic,
    "roll": roll_when_full,
    "truncate": truncate_when_full,
    "close and open": close_and_open_when_full,
    "alter a topic": alter_config,
}

if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
