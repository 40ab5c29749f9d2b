"""The checker finds what is wrong with a history, and nothing in a sound one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .checker import Append, History, Read, check

RECORDS = [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
SOUND = History(
    appends=[
        Append(0, ("a",), 10, 20, 0),
        Append(0, ("b", "c"), 30, 40, 1),
        Append(0, ("d",), 35),  # nobody knows how it ended
        Append(0, ("e",), 45),
    ],
    reads=[Read(0, ((0, "a"), (1, "b"))), Read(0, ((1, "b"), (2, "c")))],
    replicas={name: {0: RECORDS} for name in ("1", "2", "3")},
)


def holding(*records: tuple[int, str]) -> History:
    """The same history, and every replica holds these records in the end."""
    return replace(SOUND, replicas={name: {0: list(records)} for name in SOUND.replicas})


def kinds(history: History) -> set[str]:
    return {finding.kind for finding in check(history)}


def test_nothing_is_found_in_a_sound_history() -> None:
    assert check(SOUND) == []


def test_an_append_whose_end_is_unknown_may_be_there_or_not() -> None:
    assert check(holding(*RECORDS[:3])) == []
    assert check(holding(*RECORDS, (4, "e"))) == []


@pytest.mark.parametrize("records", [RECORDS[:2], RECORDS[1:], [RECORDS[0], *RECORDS[2:]]])
def test_an_acknowledged_record_that_is_missing_is_lost(records: list[tuple[int, str]]) -> None:
    assert "lost" in kinds(holding(*records))


def test_an_acknowledged_record_at_another_offset_is_lost() -> None:
    assert "lost" in kinds(holding((0, "a"), (1, "d"), (2, "b"), (3, "c")))


@pytest.mark.parametrize("value", ["a", "d"])
def test_a_record_that_is_there_twice_is_a_duplicate(value: str) -> None:
    assert kinds(holding(*RECORDS, (4, value))) == {"duplicate"}


def test_an_append_that_began_after_another_was_acknowledged_comes_behind_it() -> None:
    swapped = replace(
        SOUND,
        appends=[Append(0, ("a",), 30, 40, 0), Append(0, ("b", "c"), 10, 20, 1), Append(0, ("d",), 35)],
    )
    assert kinds(swapped) == {"out of order"}


def test_an_append_whose_end_is_unknown_is_not_found_before_one_acknowledged_earlier() -> None:
    appends = [Append(0, ("a",), 30), Append(0, ("b", "c"), 10, 20, 1), Append(0, ("d",), 35)]
    assert kinds(replace(SOUND, appends=appends)) == {"out of order"}


def test_appends_at_the_same_time_may_come_in_any_order() -> None:
    appends = [Append(0, ("a",), 10, 50, 0), Append(0, ("b", "c"), 20, 30, 1), Append(0, ("d",), 15, 60, 3)]
    assert check(replace(SOUND, appends=appends)) == []


def test_offsets_of_another_partition_are_in_no_order_with_these() -> None:
    other = Append(1, ("z",), 1, 2, 7)
    replicas = {
        name: {0: RECORDS, 1: [(offset, f"y{offset}") for offset in range(7)] + [(7, "z")]} for name in "12"
    }
    before = [Append(1, (f"y{offset}",), 0) for offset in range(7)]
    assert check(replace(SOUND, appends=[*SOUND.appends, *before, other], replicas=replicas)) == []


def test_a_record_that_was_read_and_is_not_there_in_the_end_is_gone() -> None:
    read = Read(0, ((4, "e"),))
    assert kinds(replace(SOUND, reads=[*SOUND.reads, read])) == {"read then gone"}


def test_a_record_that_was_read_at_another_offset_is_gone() -> None:
    assert kinds(replace(SOUND, reads=[Read(0, ((2, "d"),))])) == {"read then gone"}


@pytest.mark.parametrize(
    ("offsets", "kind"), [((0, 1, 1), "duplicate"), ((1, 0), "out of order"), ((0, 2), "out of order")]
)
def test_a_read_returns_each_offset_once_and_in_order(offsets: tuple[int, ...], kind: str) -> None:
    read = Read(0, tuple((offset, RECORDS[offset][1]) for offset in offsets))
    assert kinds(replace(SOUND, reads=[read])) == {kind}


def test_a_record_that_nobody_appended_is_found_in_the_log_and_in_reads() -> None:
    assert kinds(holding(*RECORDS, (4, "made up"))) == {"never appended"}
    read = Read(0, ((4, "made up"),))
    assert kinds(replace(SOUND, reads=[read])) == {"never appended", "read then gone"}


def test_half_a_batch_is_torn() -> None:
    appends = [*SOUND.appends, Append(0, ("f", "g"), 50)]
    history = replace(holding(*RECORDS, (4, "f")), appends=appends)
    assert kinds(history) == {"torn batch"}


def test_a_batch_with_another_record_in_between_is_torn() -> None:
    appends = [*SOUND.appends, Append(0, ("f", "g"), 50)]
    history = replace(holding(*RECORDS, (4, "f"), (5, "e"), (6, "g")), appends=appends)
    assert kinds(history) == {"torn batch"}


@pytest.mark.parametrize("other", [RECORDS[:3], [*RECORDS, (4, "e")], [*RECORDS[:3], (3, "e")]])
def test_replicas_that_differ_are_found(other: list[tuple[int, str]]) -> None:
    replicas = {**SOUND.replicas, "3": {0: other}}
    assert "replicas differ" in kinds(replace(SOUND, replicas=replicas))
