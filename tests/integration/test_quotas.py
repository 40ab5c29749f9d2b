"""A rate holds for a client id over all processes that have the log open, and so does a change of it."""

from __future__ import annotations

import json
from pathlib import Path

from helpers import wait_until

from commitlog import CommitLog, Quota
from commitlog.clients.quotas import Quotas

from . import children


def test_processes_share_one_rate_and_lose_no_byte_of_it(log: CommitLog, log_path: Path) -> None:
    log.set_quota("a", producer_byte_rate=1_000_003)
    log.set_quota("b", producer_byte_rate=1_000_003)
    takers = [children.start("take", log_path, "a", 2_000, 50_021) for _ in range(3)]
    other = children.start("take", log_path, "b", 100, 50_021)
    for child in (*takers, other):
        children.until_ready(child)
    for child in (*takers, other):
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    waits = [seconds for child in takers for seconds in children.finish(child)]
    totals = [number * 50_021 for number in range(1, 6_001)]
    assert sorted(waits) == [max(total * 10**9 // 1_000_003 - 10**9, 0) / 10**9 for total in totals]
    assert children.finish(other)[-1] == (100 * 50_021 * 10**9 // 1_000_003 - 10**9) / 10**9
    assert Quotas(str(log_path), lambda: 10**15).meter("a", "produce").take(0) == max(waits)


def test_a_change_reaches_clients_in_other_processes(log: CommitLog, log_path: Path) -> None:
    child = children.start("take_when_told", log_path, "a")
    children.until_ready(child)

    def told() -> float:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        return float(json.loads(child.stdout.readline()))

    try:
        assert told() == 0.0
        log.set_quota(None, consumer_byte_rate=1)
        assert log.quotas() == {None: Quota(None, 1)}
        wait_until(lambda: told() > 100)
        log.set_quota("a", consumer_byte_rate=10**9)
        wait_until(lambda: told() == 0.0)
        log.set_quota("a", consumer_byte_rate=1)
        wait_until(lambda: told() > 100)
        log.remove_quota("a")
        log.remove_quota(None)
        wait_until(lambda: told() == 0.0)
    finally:
        child.communicate()
