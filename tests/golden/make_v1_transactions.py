"""Write the logs of golden/v1_transactions: run once, never to make a failing test pass.

    PYTHONPATH=src:tests python tests/golden/make_v1_transactions.py

`log` was closed. `killed` is the same log as a kill left it, with one transaction open, and one that was
committed but has its marker in only one of two partitions.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import commitlog
from commitlog import CommitLog, tasks
from commitlog.errors import UnfinishedTransactionError
from commitlog.partition import Partition
from commitlog.transactions import coordinator

HERE = Path(__file__).parent
NOW_MS = 1_700_000_000_000


def make(target: Path) -> None:
    """Write the logs, and what they hold into target/expected.json."""
    ids = count(1_000)
    with (
        mock.patch.object(time, "time_ns", lambda: NOW_MS * 1_000_000),
        mock.patch.object(coordinator.Coordinator, "_new_producer_id", lambda self: next(ids)),
        mock.patch.object(coordinator, "_process", lambda: "host:4711"),
        mock.patch.object(tasks.Task, "start", lambda self: None),  # nobody writes while a log is copied
    ):
        with commitlog.open(target / "log") as log:
            write_transfers(log)
            write_balances(log)
            expected = described(log)
        shutil.copytree(target / "log", target / "open")
        with commitlog.open(target / "open") as log:
            leave_open(log)
            shutil.copytree(target / "open", target / "killed")
        shutil.rmtree(target / "open")
        shutil.copytree(target / "killed", target / "again")
        with commitlog.open(target / "again") as log:
            after = described(log)
        shutil.rmtree(target / "again")
    for name in ("log", "killed"):
        for path in [*(target / name).glob(".*"), *(target / name).glob("*/*.deleted")]:
            path.unlink()  # .lock names this process and host
    text = json.dumps({"log": expected, "killed": after}, indent=1)
    (target / "expected.json").write_text(text + "\n")


def write_transfers(log: CommitLog) -> None:
    """Transactions in one and in two partitions, over several segments, with plain records between them."""
    config = {"segment_bytes": 1_500, "index_interval_bytes": 300, "retention_ms": -1}
    topic = log.create_topic("transfers", partitions=2, config=config)
    producer = log.producer(transactional_id="teller-1")
    for number in range(12):
        producer.begin_transaction()
        for side in range(2 if number % 3 else 1):
            value, key = b"transfer %d" % number, b"account %d" % (number % 5)
            producer.send("transfers", value, key, partition=side, timestamp=NOW_MS + number)
            producer.flush()
        topic.partition(0).append(b"plain %d" % number)
        if number % 4 == 3:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    with log.transaction() as txn:
        txn.append_many("transfers", [b"a", None, b"c"], keys=[b"x", b"y", b"z"], timestamps=[5, 6, 7])
    producer.close()


def write_balances(log: CommitLog) -> None:
    """What a pass leaves of committed and aborted transactions: plain records, and markers with horizons."""
    config = {"cleanup_policy": "compact", "segment_bytes": 4_000, "segment_ms": -1}
    partition = log.create_topic("balances", config=config).partition(0)
    for number in range(20):
        txn = log.transaction()
        txn.append("balances", b"balance %d" % number, key=b"account %d" % (number % 4))
        txn.flush()
        txn.abort() if number % 5 == 4 else txn.commit()
    partition.roll()
    partition.compact(now=NOW_MS)
    with log.transaction() as txn:
        txn.append("balances", b"newer", key=b"account 1")


def leave_open(log: CommitLog) -> None:
    """One transaction that nobody decides, and one that is decided and lacks a marker."""
    log.transaction().append("transfers", b"never", key=b"k", partition=0)
    undecided = log.transaction()
    undecided.append("transfers", b"undecided", key=b"k", partition=0)
    undecided.flush()
    decided = log.transaction()
    for number in range(2):
        decided.append("transfers", b"decided", key=b"k", partition=number)
    real, left = Partition.end_transaction, [1]

    def once(self: Partition, *args: Any, **how: Any) -> int | None:
        if not left:
            raise OSError("the process is killed here")
        left.pop()
        return real(self, *args, **how)

    with (
        mock.patch.object(Partition, "end_transaction", once),
        contextlib.suppress(UnfinishedTransactionError),
    ):
        decided.commit()


def described(log: CommitLog) -> dict[str, Any]:
    """What readers of both levels find, in JSON's words."""
    return {
        name: [
            {
                level: [
                    [one.offset, one.timestamp, hexed(one.key), hexed(one.value)]
                    for one in partition.records(isolation_level=level)
                ]
                for level in ("read_committed", "read_uncommitted")
            }
            | {"next_offset": partition.next_offset, "last_stable_offset": partition.last_stable_offset}
            for partition in log.topic(name)
        ]
        for name in log.topics()
    }


def hexed(value: bytes | None) -> str | None:
    """Bytes as text."""
    return None if value is None else value.hex()


if __name__ == "__main__":
    folder = HERE / "v1_transactions"
    if folder.exists():
        sys.exit(f"{folder} is there already; golden files are written once")
    try:
        make(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
