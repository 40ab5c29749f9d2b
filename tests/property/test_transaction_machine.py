"""Transactions against a plain model, by one process and by two, and bugs that the model has to find."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from soak import SOAK

from commitlog.errors import CommitLogError

from .transaction_machine import PLACES, SharedTransactionMachine, TransactionMachine
from .transaction_planted import PLANTS, Plant

TestTransactions = TransactionMachine.TestCase
TestTransactions.settings = settings(
    settings(), max_examples=max(settings().max_examples // 4, 1), stateful_step_count=40
)

TestSharedTransactions = SharedTransactionMachine.TestCase
TestSharedTransactions.settings = settings(
    settings(), max_examples=max(settings().max_examples // 6, 1), stateful_step_count=40
)

Kind = type[TransactionMachine]
KINDS: tuple[Kind, ...] = (TransactionMachine, SharedTransactionMachine)
FOUND = (AssertionError, pytest.fail.Exception, CommitLogError)  # the last for what the engine itself refuses
EVERYWHERE = [(place, [(b"k", b"1"), (b"l", b"2")], "many", True) for place in PLACES]


# --- a story in which every mistake shows, at one step or another


def check(machine: TransactionMachine) -> None:
    machine.everybody_sees_what_the_model_says()
    machine.offsets_are_as_the_model_says()


def live_through_a_bad_day(machine: TransactionMachine, step: int, lose: str) -> None:
    """Commit, abort, fence, compact, and be killed at some step of a commit."""
    machine.create(held=1 << 20, retention=0, segment_bytes=700, codec="none")
    machine.transact_and_commit("x", 0, EVERYWHERE, True, False)
    check(machine)
    machine.transact("y", 0, EVERYWHERE, True, "abort")
    check(machine)
    machine.transact("x", 0, EVERYWHERE, True, "leave")
    check(machine)
    machine.take_an_id("x", 1)
    machine.a_fenced_owner_is_refused(0, [])
    check(machine)
    machine.transact("y", 1, EVERYWHERE[:1], False, "abort")
    machine.compact_everything("c-0", 0)
    check(machine)
    machine.transact("x", 1, EVERYWHERE, True, "leave")
    machine.kill("commit", 0, step, False, "c-0", lose, "x", EVERYWHERE)
    check(machine)
    machine.take_an_id("x", 0)
    check(machine)
    machine.transact_and_commit("x", 0, EVERYWHERE, True, True)
    machine.sweep(0)
    check(machine)


def bad_days(kind: Kind, plant: Plant | None, steps: range) -> None:
    for step in steps:
        machine = kind()
        with closing(_Ending(machine)):
            if plant is not None:
                plant(machine.patch)
            live_through_a_bad_day(machine, step, ["", ".txnindex"][step % 2])


class _Ending:
    def __init__(self, machine: Any) -> None:
        self.close = machine.teardown


@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_at_any_step_of_a_commit_shows_nothing_wrong(kind: Kind) -> None:
    bad_days(kind, None, range(1, 121, 1 if SOAK else 7))


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_shows_on_a_bad_day(plant: Plant) -> None:
    with pytest.raises(FOUND):
        for step in range(1, 121):
            for kind in KINDS:
                bad_days(kind, plant, range(step, step + 1))


@pytest.mark.skipif(not SOAK, reason="a long form")
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found_by_chance(plant: Plant) -> None:
    class Planted(SharedTransactionMachine):
        def __init__(self) -> None:
            super().__init__()
            plant(self.patch)

    long = settings(
        max_examples=1_000, stateful_step_count=40, deadline=None, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises(FOUND):
        run_state_machine_as_test(Planted, settings=long)
