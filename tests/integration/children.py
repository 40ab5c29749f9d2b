"""Processes that the integration tests start: `python children.py <name> <arguments>`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import commitlog
from commitlog import OffsetOutOfRangeError, UnknownTopicError
from commitlog.clients.quotas import Quotas
from commitlog.partitions.state import LogState
from commitlog.segment import Segment

DEADLINE_SECONDS = 60

# --- starting them


def start(name: str, *arguments: object, script: str = __file__) -> subprocess.Popen[str]:
    """Start a child that runs one of the functions below."""
    source = os.path.dirname(os.path.dirname(commitlog.__file__))
    return subprocess.Popen(
        [sys.executable, script, name, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: subprocess.Popen[str]) -> Any:
    """Wait for the good end of a child; returns the last line that it printed, which is JSON."""
    try:
        out, problem = child.communicate(timeout=2 * DEADLINE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        raise
    assert child.returncode == 0, f"the child ended with {child.returncode}\n{out}\n{problem}"
    return json.loads(out.splitlines()[-1])


def run(name: str, *arguments: object, script: str = __file__) -> Any:
    return finish(start(name, *arguments, script=script))


def say_ready() -> None:
    print(json.dumps("ready"), flush=True)


def until_ready(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line == '"ready"\n', f"{line}\n{child.communicate()[1]}"


# --- what is written: a value tells its offset, and how many truncations came before it

END = b"end"


def value_of(offset: int, generation: int = 0) -> bytes:
    return b"%d.%d." % (offset, generation) * (1 + offset * 7 % 20)


def read_value(value: bytes) -> tuple[int, int]:
    """Return offset and generation; the whole value must be what was written."""
    offset, generation, _ = value.split(b".", 2)
    assert value == value_of(int(offset), int(generation)), "a value that was never written"
    return int(offset), int(generation)


def digest(partition: Any) -> str:
    """Sum up all that can be read now."""
    found = hashlib.sha256()
    for record in partition.records():
        found.update(b"%d %d %b" % (record.offset, record.timestamp, record.value))
    return found.hexdigest()


# --- readers


def wait_for_topic(log: commitlog.CommitLog, name: str, partitions: int = 1) -> commitlog.Topic:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        try:
            topic = log.topic(name)
        except UnknownTopicError:
            pass
        else:
            if len(topic.partitions) >= partitions:
                return topic
        time.sleep(0.002)
    raise AssertionError(f"no topic {name} with {partitions} partitions after {DEADLINE_SECONDS} s")


def follow(path: str, number: str = "0") -> None:
    """Read a partition from its start until the record END, and say what was met on the way."""
    with commitlog.open(path, mode="r") as log:
        say_ready()
        partition = wait_for_topic(log, "t", int(number) + 1).partition(int(number))
        reader = Follower(partition)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not reader.ended:
            assert time.monotonic() < deadline, f"{partition} at {reader.position}"
            reader.read_on()
        print(
            json.dumps(
                {
                    "read": reader.read,
                    "overtaken": reader.overtaken,
                    "truncated": reader.truncated,
                    "next_offset": partition.next_offset,
                    "digest": digest(partition),
                }
            )
        )


class Follower:
    """Reads along: each record comes right after the one before, whatever the writer does meanwhile."""

    def __init__(self, partition: Any) -> None:
        self._partition = partition
        self._generations: dict[int, int] = {}
        self.position = 0
        self.read = self.overtaken = self.truncated = 0
        self.ended = False

    def read_on(self) -> None:
        partition = self._partition
        if not partition.wait_for(self.position, 0.05) and partition.next_offset >= self.position:
            return
        try:
            for record in partition.records(self.position):
                self._take(record)
        except OffsetOutOfRangeError as problem:
            self._catch_up(problem)

    def _take(self, record: commitlog.Record) -> None:
        assert record.offset == self.position, f"{record.offset} follows {self.position - 1}"
        self.position += 1
        self.read += 1
        assert record.value is not None
        if record.value == END:
            self.ended = True
            return
        offset, generation = read_value(record.value)
        assert offset == record.offset
        assert generation >= self._generations.get(offset, 0), "what was truncated came back"
        self._generations[offset] = generation

    def _catch_up(self, problem: OffsetOutOfRangeError) -> None:
        """The writer removed records, before or behind us."""
        _, asked, start, end = problem.args
        assert not start <= asked < end or asked == self.position
        if self.position < self._partition.start_offset:
            self.overtaken += 1
            self.position = self._partition.start_offset
        elif self.position > self._partition.next_offset:
            self.truncated += 1
            self.position = self._partition.next_offset


def read_when_told(path: str) -> None:
    """Read everything whenever a line comes in, and print what there is."""
    with commitlog.open(path, mode="r") as log:
        say_ready()
        for _ in sys.stdin:
            partition = log.topic("t").partition(0)
            values = [record.value.decode() for record in partition.records()]
            print(json.dumps([partition.start_offset, partition.next_offset, values]), flush=True)


def hold_a_table(path: str) -> None:
    """Keep an Arrow table over the files while the writer removes them, then touch every byte of it."""
    with commitlog.open(path, mode="r") as log:
        table = log.topic("t").partition(0).to_arrow()
        say_ready()
        sys.stdin.readline()
        print(json.dumps(hashlib.sha256(b"".join(table["value"].to_pylist())).hexdigest()))


def slow_scan(path: str) -> None:
    """Read one batch, wait to be told, read the rest."""
    with commitlog.open(path, mode="r") as log:
        batches = log.topic("t").partition(0).batches()
        first = next(batches)
        say_ready()
        sys.stdin.readline()
        rest = []
        try:
            for batch in batches:
                rest += batch.offsets.tolist()
        except OffsetOutOfRangeError:
            rest.append(-1)
        print(json.dumps([first.offsets.tolist(), rest]))


# --- clients with quotas


def take(path: str, client_id: str, count: str, size_bytes: str) -> None:
    """Take bytes again and again, by a clock that stands still; say how long to wait at last."""
    meter = Quotas(path, lambda: 10**15).meter(client_id, "produce")
    say_ready()
    sys.stdin.readline()
    waits = [meter.take(int(size_bytes)) for _ in range(int(count))]
    assert waits == sorted(waits)
    print(json.dumps(waits))


def take_when_told(path: str, client_id: str) -> None:
    """Take a byte whenever a line comes in, and print how long to wait."""
    with commitlog.open(path, mode="r") as log:
        meter = log._quotas.meter(client_id, "consume")
        say_ready()
        for _ in sys.stdin:
            print(json.dumps(meter.take(1)), flush=True)


# --- writers


def write(path: str, count: str, ending: str = "") -> None:
    """Append `count` records with tiny segments; then end the log, or wait to be killed."""
    with commitlog.open(path) as log:
        config = {"segment_bytes": 4096, "file_delete_delay_ms": 0}
        topic = log.topic("t") if "t" in log.topics() else log.create_topic("t", config=config)
        partition = topic.partition(0)
        for _ in range(int(count)):
            partition.append(value_of(partition.next_offset))
        if ending == "end":
            partition.append(END)
            print(json.dumps(digest(partition)), flush=True)
        elif ending == "hang":
            say_ready()
            time.sleep(DEADLINE_SECONDS)


def try_to_write(path: str) -> None:
    """Say what a second writer is told."""
    try:
        commitlog.open(path).close()
    except commitlog.LogLockedError as problem:
        print(json.dumps(str(problem)))
    else:
        print(json.dumps("opened"))


def hold_the_lock(path: str) -> None:
    with commitlog.open(path):
        say_ready()
        time.sleep(DEADLINE_SECONDS)


def exit_without_closing(path: str) -> None:
    log = commitlog.open(path)
    log.topic("t").partition(0).append(b"unclosed")
    print(json.dumps(Path(path).name), flush=True)
    os._exit(0)  # or the log would be closed as the interpreter ends


def killed_in_a_swap(path: str) -> None:
    """Compact, and end without a word when the first old segment has been taken away."""
    log = commitlog.open(path)
    partition = log.topic("t").partition(0)
    partition.roll()

    def die(state: LogState, segment: Segment) -> None:
        real(state, segment)
        print(json.dumps("swapped"), flush=True)
        os._exit(0)

    real, LogState.retire = LogState.retire, die  # type: ignore[method-assign,assignment]
    partition.compact()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
