"""A tour in a temporary directory: append, read, tail from another process, survive a kill.

Run it with `make demo`, or with `python examples/quickstart.py` where commitlog is installed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event

import commitlog


def tail(path: str, ready: Event, count: int) -> None:
    """Tail the log in another process while the first one writes."""
    with commitlog.open(path, mode="r") as log:
        orders = log.topic("orders").partition(0)
        position = orders.next_offset
        ready.set()
        seen = 0
        while seen < count and orders.wait_for(position, timeout=10):
            for record in orders.records(position):
                print(f"   reader {os.getpid()} sees offset {record.offset}: {record.value.decode()}")
                position, seen = record.offset + 1, seen + 1


def write_until_killed(path: str, acknowledged: Synchronized[int]) -> None:
    """Append forever; report each acknowledged offset."""
    log = commitlog.open(path)
    orders = log.topic("orders").partition(0)
    while True:
        acknowledged.value = orders.append(b"written just before the plug was pulled") + 1


def main(path: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    print(f"1. create a topic in {path} and append to it")
    with commitlog.open(path) as log:
        orders = log.create_topic("orders", config={"retention.ms": 7 * 24 * 3600 * 1000}).partition(0)
        first = orders.append(b"three apples", key=b"alice", headers=[("source", b"web")])
        offsets = orders.append_many([b"a pear", b"two plums"], keys=[b"bob", b"alice"], sync=True)
        print(f"   offset {first}, then {offsets}; durable up to {orders.durable_offset}")

        print("2. read it back")
        for record in orders.records():
            print(f"   {record.offset} {record.key.decode()}: {record.value.decode()}")

        print("3. tail it from a second process")
        ready = spawn.Event()
        reader = spawn.Process(target=tail, args=(path, ready, 3))
        reader.start()
        ready.wait(timeout=30)
        for item in (b"one melon", b"five figs", b"a lemon"):
            orders.append(item)
        reader.join()

    print("4. kill a writer in the middle of its work, and open the log again")
    acknowledged = spawn.Value("q", 0)
    writer = spawn.Process(target=write_until_killed, args=(path, acknowledged))
    writer.start()
    while acknowledged.value < 1000:
        pass
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    with commitlog.open(path) as log:
        orders = log.topic("orders").partition(0)
        report = log.recovery[0]
        print(f"   acknowledged up to {acknowledged.value}, found up to {orders.next_offset}")
        print(
            f"   checked {report.bytes_checked:,} bytes and cut {report.bytes_cut} in {report.seconds:.3f} s"
        )
        assert orders.next_offset >= acknowledged.value, "an acknowledged record was lost"
        assert sum(1 for _ in orders.records()) == orders.next_offset
        assert orders.verify().ok

    print("5. nothing acknowledged was lost, and every batch's checksum is right")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(os.path.join(directory, "log"))
