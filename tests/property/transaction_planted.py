"""Bugs to plant into transactions: each is a mistake that one could make, and that the model has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitlog import aborted_index, compaction
from commitlog.partitions.page import StatePage
from commitlog.partitions.state import LogState
from commitlog.transactions.coordinator import Coordinator

Plant = Callable[[pytest.MonkeyPatch], None]


def marks_before_it_decides(patch: pytest.MonkeyPatch) -> None:
    """The markers come first: whoever dies in between leaves a transaction that is half committed."""
    commit = Coordinator.commit

    def mistaken(self: Coordinator, transaction: Any, *, sync: bool) -> None:
        if self.shared or transaction.only_part() is None:
            transaction.flush()
            for partition in transaction.written().values():
                partition.end_transaction(transaction.producer_id, transaction.epoch, commits=True)
        commit(self, transaction, sync=sync)

    patch.setattr(Coordinator, "commit", mistaken)


def reads_up_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """An open transaction holds nobody up."""
    patch.setattr(LogState, "last_stable_offset", property(lambda self: self.high_watermark))
    patch.setattr(StatePage, "last_stable_offset", property(lambda self: self.high_watermark))


def tells_of_a_transaction_after_its_first_record(patch: pytest.MonkeyPatch) -> None:
    """Who looks in between sees a record that is not decided; if the process dies there, for long."""
    patch.setattr(LogState, "undecided_before", lambda self, offset: None)


def asks_nobody_who_owns_an_id(patch: pytest.MonkeyPatch) -> None:
    """An owner that was replaced goes on."""
    patch.setattr(Coordinator, "check", lambda self, transaction: None)
    patch.setattr(Coordinator, "_check_owner", lambda self, owned: None)


def compacts_as_if_nothing_was_aborted(patch: pytest.MonkeyPatch) -> None:
    """As in KAFKA-8351: what was aborted comes back as committed."""
    patch.setattr(compaction, "counted", lambda batch, aborted: batch)


def drops_markers_at_once(patch: pytest.MonkeyPatch) -> None:
    """As in KAFKA-13727: a marker goes before those who have the records could read it."""
    patch.setattr(compaction.Pass, "_is_over", lambda self, marker: marker.next_offset <= self.end)


def believes_a_missing_list(patch: pytest.MonkeyPatch) -> None:
    """Without a list of what was aborted, nothing was."""
    load = aborted_index.load
    patch.setattr(aborted_index, "load", lambda *args: load(*args) or [])


def forgets_a_decision_before_its_markers(patch: pytest.MonkeyPatch) -> None:
    """The next owner of an id replaces the record of a commit that is not shown everywhere."""
    patch.setattr(Coordinator, "_finish", lambda self, owned, **choices: None)


def counts_epochs_from_zero_again(patch: pytest.MonkeyPatch) -> None:
    """Each transaction of an owner has the same number: a late marker would decide the next one."""
    from commitlog.transactions.coordinator import Owner

    patch.setattr(Owner, "take_epoch", lambda self: 0)


PLANTS: tuple[Plant, ...] = (
    marks_before_it_decides,
    reads_up_to_the_high_watermark,
    tells_of_a_transaction_after_its_first_record,
    asks_nobody_who_owns_an_id,
    compacts_as_if_nothing_was_aborted,
    drops_markers_at_once,
    believes_a_missing_list,
    forgets_a_decision_before_its_markers,
    counts_epochs_from_zero_again,
)
