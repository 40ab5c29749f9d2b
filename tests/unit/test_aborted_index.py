from __future__ import annotations

import os
from pathlib import Path

import pytest

from commitlog import CorruptionError, aborted_index
from commitlog.aborted_index import Aborted, AbortedRanges

ENTRIES = [Aborted(7, 3, 9), Aborted(8, 4, 12), Aborted(7, 15, 20)]


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / f"{0:020d}.log")


def beside(log: str) -> Path:
    return Path(aborted_index.path_beside(log))


def test_batches_of_aborted_transactions_are_covered_and_no_others() -> None:
    ranges = AbortedRanges(ENTRIES)
    assert [offset for offset in range(25) if ranges.covers(7, offset)] == [*range(3, 9), *range(15, 20)]
    assert [offset for offset in range(25) if ranges.covers(8, offset)] == list(range(4, 12))
    assert not ranges.covers(9, 5)


def test_a_transaction_is_added_once_and_in_any_order() -> None:
    ranges = AbortedRanges(reversed(ENTRIES))
    for one in [*ENTRIES, *ENTRIES, Aborted(7, 11, 13)]:
        ranges.add(one)
    assert [offset for offset in range(25) if ranges.covers(7, offset)] == [
        *range(3, 9), 11, 12, *range(15, 20),
    ]  # fmt: skip


def test_those_that_ended_before_an_offset_can_be_left_out() -> None:
    ranges = AbortedRanges([*ENTRIES, Aborted(8, 14, 30)])
    assert ranges.since(13).between(0, 99) == [Aborted(7, 15, 20), Aborted(8, 14, 30)]
    assert ranges.since(20).between(0, 99) == [Aborted(7, 15, 20), Aborted(8, 14, 30)]
    assert ranges.since(31).between(0, 99) == []


def test_where_a_marker_may_be_missing_nothing_counts_as_committed() -> None:
    ranges = AbortedRanges(ENTRIES)
    ranges.damage = CorruptionError("x.log", 5, "no batch starts here")
    assert ranges.covers(7, 4)
    with pytest.raises(CorruptionError):
        ranges.covers(7, 10)


def test_many_batches_are_covered_as_each_of_them_is() -> None:
    ranges = AbortedRanges(ENTRIES)
    batches = [(producer_id, offset) for producer_id in (7, 8, 9) for offset in range(25)]
    ids, offsets = [one for one, _ in batches], [offset for _, offset in batches]
    assert ranges.covers_each(ids, offsets) == [ranges.covers(*one) for one in batches]
    ranges.damage = CorruptionError("x.log", 5, "no batch starts here")
    assert ranges.covers_each([7, 8], [4, 4]) == [True, True]
    with pytest.raises(CorruptionError):
        ranges.covers_each([7, 9], [4, 4])


def test_a_sealed_list_is_believed_for_its_segment_alone(log: str) -> None:
    aborted_index.store(log, ENTRIES, (4_000, 21))
    assert aborted_index.load(log, 4_000) == ENTRIES
    assert aborted_index.load(log, 4_008) is None


def test_the_list_of_an_active_segment_is_believed_up_to_the_number_of_entries(log: str) -> None:
    aborted_index.begin(log)
    assert aborted_index.load(log, 4_000, 0) == []
    for number, one in enumerate(ENTRIES):
        aborted_index.write_entry(log, number, one)
    assert aborted_index.load(log, 4_000, 2) == ENTRIES[:2]
    assert aborted_index.load(log, 4_000, 3) == ENTRIES
    assert aborted_index.load(log, 4_000, 4) is None  # one is missing
    assert aborted_index.load(log, 4_000) is None  # it has no seal


def test_a_missing_list_is_not_an_empty_one(log: str) -> None:
    assert aborted_index.load(log, 4_000) is None
    assert aborted_index.load(log, 4_000, 0) is None


def test_no_flipped_bit_changes_a_sealed_list(log: str) -> None:
    aborted_index.store(log, ENTRIES, (4_000, 21))
    whole = beside(log).read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            rotten = bytearray(whole)
            rotten[place] ^= 1 << bit
            beside(log).write_bytes(rotten)
            assert aborted_index.load(log, 4_000) is None


@pytest.mark.parametrize("cut", range(0, 24 + 3 * 32, 7))
def test_a_list_that_was_cut_is_not_believed(log: str, cut: int) -> None:
    aborted_index.store(log, ENTRIES, (4_000, 21))
    os.truncate(beside(log), cut)
    assert aborted_index.load(log, 4_000) is None
    assert aborted_index.load(log, 4_000, 3) is None


def test_every_whole_entry_is_a_fact_even_if_the_list_is_damaged(log: str) -> None:
    aborted_index.store(log, ENTRIES, (4_000, 21))
    rotten = bytearray(beside(log).read_bytes())
    rotten[24 + 32 + 5] ^= 1
    beside(log).write_bytes(rotten[:-1])
    assert aborted_index.facts(log) == ENTRIES[:1]
    beside(log).unlink()
    assert aborted_index.facts(log) == []
