"""The examples of transactions, killed from outside: every order has one invoice, and no money is lost."""

from __future__ import annotations

import importlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from soak import SEED, SOAK, count

import commitlog

ROOT = Path(__file__).parents[2]
EXACTLY_ONCE = ROOT / "examples" / "exactly_once.py"


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(EXACTLY_ONCE), str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(commitlog.__file__).parents[1])},
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_when(path: Path, more: int) -> bool:
    """Start the example, and kill it once its log has `more` offsets more; False if it ended before."""
    with commitlog.open(path, mode="r") as log:
        partitions = [*log.topic("invoices").partitions]
        enough = sum(one.next_offset for one in partitions) + more
        with start(path) as worker:
            while worker.poll() is None and sum(one.next_offset for one in partitions) < enough:
                partitions[0].wait_for(partitions[0].next_offset, 0.002, isolation_level="read_uncommitted")
            ended = worker.poll() is not None
            worker.kill()
    return not ended


def test_every_order_has_exactly_one_invoice_however_often_the_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, path = random.Random(SEED), tmp_path / "log"
    monkeypatch.syspath_prepend(str(EXACTLY_ONCE.parent))
    importlib.import_module("exactly_once").prepare(path)
    kills = 0
    for _ in range(60 if SOAK else 6):
        kills += kill_when(path, chance.randint(1, 40 if SOAK else 300))
    count("processes killed", kills)
    assert kills >= 3
    with start(path) as last:
        output, _ = last.communicate(timeout=120)
    assert last.returncode == 0
    assert output.startswith("2000 orders, 2000 invoices: 0 missing, 0 twice\n")

    with commitlog.open(path) as log:  # what the example says of itself, counted once more
        orders = {one.key for one in log.topic("orders").records()}
        invoices = Counter(one.key for one in log.topic("invoices").records())
        assert invoices == Counter(orders)
        assert all(one.last_stable_offset == one.high_watermark for one in log.topic("invoices").partitions)
        assert not [one for one in log.transactions() if one.state in ("Ongoing", "PrepareCommit")]
