"""A key-value store that is restored from a compacted topic, and copies that follow it.

A store is a dictionary in memory and a log of its changes. Compaction keeps the latest record of every key,
so that the log stays about as small as the store; a tombstone deletes a key. A process that opens the log
later gets the same dictionary again.

    python examples/key_value_store.py
"""

import os
import signal
import tempfile
from collections.abc import Iterator, MutableMapping
from multiprocessing import get_context

import commitlog

COMPACTED = {"cleanup_policy": "compact", "segment_bytes": 1 << 20}


class Store(MutableMapping[bytes, bytes]):
    """A dictionary that survives a crash: a change is written before it becomes visible."""

    def __init__(self, path: str) -> None:
        self.log = commitlog.open(path)
        if "store" not in self.log.topics():
            self.log.create_topic("store", config=COMPACTED)
        self.changes = self.log.topic("store").partition(0)
        self.contents = dict(self.changes.latest())

    def __getitem__(self, key: bytes) -> bytes:
        return self.contents[key]

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.changes.append(value, key=key)
        self.contents[key] = value

    def __delitem__(self, key: bytes) -> None:
        del self.contents[key]
        self.changes.append(None, key=key)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.contents)

    def __len__(self) -> int:
        return len(self.contents)


def shop_until_killed(path: str) -> None:
    """A process that changes its store 50,000 times, and dies without closing anything."""
    store = Store(path)
    for number in range(50_000):
        store[b"item-%d" % (number % 1_000)] = b"%d in stock" % number
    for number in range(900, 1_000):
        del store[b"item-%d" % number]
    os.kill(os.getpid(), signal.SIGKILL)


def follow(log: commitlog.CommitLog, replica: dict[bytes, bytes], offset: int) -> int:
    """Bring a copy of the store up to date; returns the offset at which to continue."""
    partition = log.topic("store").partition(0)
    for record in partition.records(offset):
        if record.value is None:
            replica.pop(record.key, None)
        else:
            replica[record.key] = record.value
    return partition.next_offset


def main(path: str) -> None:
    process = get_context("spawn").Process(target=shop_until_killed, args=(path,))
    process.start()
    process.join()
    print("the first process ended with", signal.Signals(-process.exitcode).name)

    store = Store(path)
    print(f"restored: {len(store)} keys, {store[b'item-7'].decode()}, item-950 there: {b'item-950' in store}")

    with commitlog.open(path, mode="r") as reader:  # any number of other processes may
        latest = reader.topic("store").partition(0).latest()
        replica, offset = dict(latest), latest.next_offset
        store[b"item-7"] = b"sold out"
        del store[b"item-8"]
        follow(reader, replica, offset)
        print("a replica that follows is the same:", replica == store.contents)

        store.changes.roll()
        store.changes.compact()  # the log also compacts in the background, when it is worth it
        left = sum(len(batch) for batch in store.changes.batches())
        print(f"after compaction {left} records are left of {store.changes.next_offset} changes")
        print("and nothing else is different:", dict(store.changes.latest()) == store.contents)
    store.log.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(directory)
