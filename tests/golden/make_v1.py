"""Write the log of golden/v1: run once, when a format is born, never to make a failing test pass.

    PYTHONPATH=src:tests python tests/golden/make_v1.py

Every later version of commitlog must open what this wrote and read the same records from it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from helpers import CODECS, encoded, gappy, write_segment

import commitlog
from commitlog import CommitLog, Topic

HERE = Path(__file__).parent
NOW_MS = 1_700_000_000_000


def make(target: Path) -> None:
    """Write the log into target/log and what it holds into target/expected.json."""
    with mock.patch.object(time, "time_ns", lambda: NOW_MS * 1_000_000):
        with commitlog.open(target / "log") as log:
            write_codecs(log)
            write_orders(log)
            write_compacted(log)
            log.create_topic("gaps")
        write_gaps(target / "log" / "gaps-0")
        with commitlog.open(target / "log") as log:
            expected = {name: described(log.topic(name)) for name in log.topics()}
    (target / "log" / ".lock").unlink()  # names this process and host
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def write_codecs(log: CommitLog) -> None:
    """Batches of every codec in one partition, each with all that a batch can hold."""
    topic = log.create_topic("codecs")
    partition = topic.partition(0)
    for number, codec in enumerate(CODECS):
        topic.alter_config(compression_type=codec)
        partition.append_many(
            [b"the same words again and again " * 4, None, b"", b"short", codec.encode()],
            keys=[b"key", None, b"", b"k" * 300, codec.encode()],
            headers=[(), [("trace", b"1"), ("trace", None)], [("", b"")], (), [("ünïcode", b"\xff\x00")]],
            timestamps=[NOW_MS + number, 0, NOW_MS, 2**40, NOW_MS + 70_000],
        )
        partition.append_many([b"constant"] * 20, keys=[b"k"] * 20, timestamps=[NOW_MS] * 20)
        partition.append_many([None] * 3)
    partition.append_many([b"", b""], timestamps=[0, 2**63 - 1])


def write_orders(log: CommitLog) -> None:
    """Several segments of single records and batches; trimmed at the front, truncated at the back."""
    config = {"segment_bytes": 2_000, "index_interval_bytes": 300, "retention_ms": -1}
    topic = log.create_topic("orders", partitions=2, config=config)
    first, second = topic.partitions
    for number in range(40):
        first.append(b"order %d" % number, key=b"customer %d" % (number % 3))
        if number % 10 == 9:
            first.append_many([b"a", None, b"c"], timestamps=[NOW_MS + number] * 3)
    first.trim_before(7)
    first.truncate_from(first.next_offset - 2)
    second.append(None, key=b"tombstone")
    second.append(b"alone")
    second.append(b"with headers", headers=[("h", b"1")], timestamp=5)
    topic.alter_config(message_timestamp_type="LogAppendTime")
    second.append(b"log append time", timestamp=5)


def write_compacted(log: CommitLog) -> None:
    """What a pass leaves: batches put together, one of them with a delete horizon, and a dirty rest."""
    config = {
        "cleanup_policy": "compact",
        "segment_bytes": 4_000,
        "compression_type": "zstd",
        "segment_ms": -1,
    }
    partition = log.create_topic("profiles", config=config).partition(0)
    for number in range(60):
        value = None if number % 11 == 3 else b"profile %d " % number * 3
        partition.append(value, key=b"user %d" % (number % 7), headers=[("n", b"%d" % number)][: number % 2])
    partition.roll()
    partition.compact(now=NOW_MS)
    for number in range(5):
        partition.append(b"newer %d" % number, key=b"user %d" % number)


def write_gaps(directory: Path) -> None:
    """Batches with large gaps, and one without records."""
    for path in directory.iterdir():
        path.unlink()
    batches = [
        gappy([0, 3, 9], 12),
        gappy([], 4),
        gappy([2], 3),
        gappy([0, 70_000], 70_005),
        encoded([b"end"]),
    ]
    write_segment(directory, batches)


def described(topic: Topic) -> dict[str, Any]:
    """What can be read from a topic, in JSON's words."""
    return {
        "config": topic.config.overrides(),
        "partitions": [
            {
                "start_offset": partition.start_offset,
                "next_offset": partition.next_offset,
                "segments": [segment.base_offset for segment in partition.segments],
                "records": [
                    [
                        record.offset,
                        record.timestamp,
                        hexed(record.key),
                        hexed(record.value),
                        [[name, hexed(value)] for name, value in record.headers],
                    ]
                    for record in partition.records()
                ],
            }
            for partition in topic.partitions
        ],
    }


def hexed(value: bytes | None) -> str | None:
    """Bytes as text."""
    return None if value is None else value.hex()


if __name__ == "__main__":
    if (HERE / "v1").exists():
        sys.exit(f"{HERE / 'v1'} is there already; golden files are written once")
    try:
        make(HERE / "v1")
    except BaseException:
        shutil.rmtree(HERE / "v1", ignore_errors=True)
        raise
