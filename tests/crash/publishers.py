"""Processes that publish to a log and die, and what they publish."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

import commitlog
from commitlog import CommitLog, StagedFile
from commitlog.batches import staged
from commitlog.partitions import adopter
from commitlog.publishing import staging

PLACES = [("t", 0), ("t", 1), ("u", 0)]
FILES, ROWS = 2, 3  # files for each place, records of each
LEAST_PARTS = {"copied": 1, "adopted": 64}


def log_for_publishing(path: Path, *, shared: bool = False) -> None:
    """Make a log with the partitions that are published to."""
    with commitlog.open(path, mode="shared" if shared else "w") as log:
        config = {"flush_ms": -1, "segment_bytes": 1024, "index_interval_bytes": 100}
        log.create_topic("t", partitions=2, config=config)
        log.create_topic("u", config=config)


# --- what they publish: a value tells its epoch, place, file and row


def stage_all(log: CommitLog, epoch: int, who: str = "") -> list[StagedFile]:
    """Stage an epoch's files, each batch a single record."""
    finished = []
    for topic, partition in PLACES:
        for file in range(FILES):
            with log.stage(topic, partition) as writer:
                for row in range(ROWS):
                    writer.append(pa.table({"value": [value_of(epoch, file, row, who)]}))
                finished.append(writer.finish())
    return finished


def value_of(epoch: int, file: int, row: int, who: str = "") -> bytes:
    return f"{epoch} {file} {row} {who}".encode()


def published_epochs(log: CommitLog, others: bytes = b"other") -> list[list[int]]:
    """The epochs that each partition holds, in order; each must be whole and there once, offsets dense."""
    found = []
    for topic, number in PLACES:
        partition = log.topic(topic).partition(number)
        records = list(partition.records())
        assert [one.offset for one in records] == list(range(partition.start_offset, partition.next_offset))
        ours = [one.value for one in records if one.value is not None and not one.value.startswith(others)]
        found.append(_epochs(ours))
    return found


def _epochs(values: Iterable[bytes]) -> list[int]:
    epochs: dict[int, list[tuple[int, int]]] = {}
    writers: dict[int, set[bytes]] = {}
    for value in values:
        number, file, row, who = value.split(b" ")
        epochs.setdefault(int(number), []).append((int(file), int(row)))
        writers.setdefault(int(number), set()).add(who)
    for epoch, places in epochs.items():
        assert places == [(file, row) for file in range(FILES) for row in range(ROWS)], f"epoch {epoch}"
        assert len(writers[epoch]) == 1, "of several who publish an epoch one wins"
    return list(epochs)


def small_steps(way: str) -> None:
    """Let each record be a batch, and files be adopted, or copied batch by batch."""
    staging._TARGET_ROWS = staged._CHUNK_BATCHES = 1
    adopter._LEAST_PART = LEAST_PARTS[way]


# --- the children


def die_at(path: str, window: str, hit: str, shared: str, epoch: str, way: str) -> None:
    """Publish an epoch, and be killed at a crash window."""
    import windows  # type: ignore[import-not-found]

    small_steps(way)
    with commitlog.open(path, mode="shared" if shared == "True" else "w") as log:
        files = stage_all(log, int(epoch))
        with windows.calling_at(window, lambda: os.kill(os.getpid(), signal.SIGKILL), int(hit)):
            log.publish("query", int(epoch), files)


def publish_for_ever(path: str, who: str, last: str, way: str) -> None:
    """Publish the epochs of one transaction in competition with others, until all are published."""
    small_steps(way)
    with commitlog.open(path, mode="shared") as log:
        while (done := log.published("query")) is None or done < int(last):
            epoch = 0 if done is None else done + 1
            if log.publish("query", epoch, stage_all(log, epoch, who)):
                os.write(1, f"{epoch}\n".encode())


def append_for_ever(path: str) -> None:
    """Append to the same partitions until killed, rolling now and then."""
    with commitlog.open(path, mode="shared") as log:
        partitions = [log.topic(topic).partition(number) for topic, number in PLACES]
        os.write(1, b"ready\n")
        for number in range(1 << 40):
            for partition in partitions:
                partition.append(b"other %d" % number)
            if number % 50 == 49:
                partitions[number % 3].roll()
            time.sleep(0.0005)  # a file lock is not fair
