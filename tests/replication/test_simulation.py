"""Random schedules of failures, and whether the simulation of them finds what is wrong."""

from __future__ import annotations

import pytest
from soak import SEED, SOAK, count

from .memory_log import ViolationError
from .planted import BUGS, SELDOM_FOUND, Plant
from .simulation import run

CHUNKS = 8
SCHEDULES = 20_000 if SOAK else 600
LONG_SCHEDULES = 3_000
FIRST = SEED * 1_000_000 if SOAK else 0  # seeds of schedules: those of a quick run are always the same


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_of_failures_breaks_a_promise(chunk: int) -> None:
    for seed in range(FIRST + chunk, FIRST + SCHEDULES, CHUNKS):
        run(seed)
        count("schedules simulated")


@pytest.mark.skipif(not SOAK, reason="the long form; COMMITLOG_SOAK=1 runs it")
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_long_schedule_of_failures_breaks_a_promise(chunk: int) -> None:
    for seed in range(FIRST + SCHEDULES + chunk, FIRST + SCHEDULES + LONG_SCHEDULES, CHUNKS):
        run(seed, actions=300)
        count("schedules simulated")


@pytest.mark.parametrize("seed", [598374020301, 598374021183, 777002666])
def test_a_replica_that_trimmed_may_lead_after_a_disaster(seed: int) -> None:
    """Schedules in which the judge once took what was trimmed for what can be read."""
    run(seed, actions=300)


def test_a_seed_gives_the_same_run_every_time() -> None:
    assert run(7).trace == run(7).trace


def test_schedules_do_what_they_are_for() -> None:
    """They acknowledge records, elect leaders and change the ISR; few lose all in-sync replicas."""
    runs = [run(seed) for seed in range(60)]
    judges = [judge for one in runs for judge in one.judges.values()]
    assert sum(one.acknowledged for one in runs) > 5 * len(runs)
    assert sum(len(judge.leaders) for judge in judges) > 2 * len(judges)
    assert sum(judge.disasters == 0 for judge in judges) > len(judges) // 2


@pytest.mark.parametrize(
    ("plant", "schedules"),
    BUGS + (SELDOM_FOUND if SOAK else ()),
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_planted_bug_is_found(plant: Plant, schedules: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError, match=r"seed \d+: "):
        for seed in range(schedules):
            run(seed)
