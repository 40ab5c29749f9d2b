from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from commitlog import TopicPartition
from commitlog.spark.admission import Admission, shares
from commitlog.spark.options import ReadOptions

A, B, C = (TopicPartition("t", number) for number in range(3))


def admission(now: list[float] | None = None, **given: str) -> Admission:
    return Admission(ReadOptions.of({"path": "p", **given}), lambda: now[0] if now else 0.0)


def capped(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int], **given: Any
) -> dict[TopicPartition, int]:
    """With batches of 10 records of 100 bytes each."""
    return admission(**given).capped(
        start,
        end,
        lambda name, first, last: (last - first) * 100,
        lambda name, first, most: first + max(most // 1000, 1) * 10,
    )


def test_a_limit_is_split_in_proportion_to_lag() -> None:
    assert shares(100, {A: 1_000, B: 3_000}) == {A: 25, B: 75}
    assert shares(10, {A: 1, B: 1_000_000}) == {A: 1, B: 9}
    assert shares(10, {A: 3, B: 0}) == {A: 3}


@given(st.integers(1, 10_000), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_shares_reach_the_limit_exactly_and_leave_nobody_out(limit: int, numbers: list[int]) -> None:
    lags = {TopicPartition("t", number): lag for number, lag in enumerate(numbers)}
    lagging = {name for name, lag in lags.items() if lag}
    found = shares(limit, lags)
    assert set(found) == lagging
    assert all(1 <= share <= lags[name] for name, share in found.items())
    if limit >= len(lagging):
        assert sum(found.values()) <= limit
    if sum(numbers) >= limit >= len(numbers) and min(numbers) * limit >= sum(numbers):
        assert sum(found.values()) == limit


def test_without_caps_everything_is_read() -> None:
    assert capped({A: 0}, {A: 1_000, B: 10}) == {A: 1_000, B: 10}


def test_a_cap_of_offsets_holds_over_all_partitions() -> None:
    assert capped({A: 10, B: 0}, {A: 1_010, B: 1_000, C: 0}, maxOffsetsPerTrigger="50") == {
        A: 35,
        B: 25,
        C: 0,
    }


def test_a_cap_above_the_lag_changes_nothing() -> None:
    assert capped({A: 0}, {A: 50}, maxOffsetsPerTrigger="50") == {A: 50}


def test_a_cap_of_bytes_ends_where_stored_batches_do() -> None:
    assert capped({A: 0, B: 0}, {A: 300, B: 100}, maxBytesPerTrigger="8000") == {A: 60, B: 20}
    assert capped({A: 0}, {A: 300}, maxBytesPerTrigger="1") == {A: 10}


def test_of_two_caps_the_lower_counts() -> None:
    end = {A: 300}
    assert capped({A: 0}, end, maxBytesPerTrigger="8000", maxOffsetsPerTrigger="20") == {A: 20}
    assert capped({A: 0}, end, maxBytesPerTrigger="2000", maxOffsetsPerTrigger="200") == {A: 20}


def test_an_end_that_went_back_is_kept() -> None:
    assert capped({A: 100}, {A: 40}, maxOffsetsPerTrigger="5") == {A: 40}


def test_too_little_waits_until_the_delay_is_over() -> None:
    now = [100.0]
    waiting = admission(now, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    assert not waiting.must_wait({A: 0}, {A: 1})  # the first batch never waits
    assert waiting.must_wait({A: 1}, {A: 10})
    assert not waiting.must_wait({A: 1}, {A: 11})
    now[0] = 159.0
    assert waiting.must_wait({A: 11}, {A: 12})
    now[0] = 160.0
    assert not waiting.must_wait({A: 11}, {A: 12})
    assert waiting.must_wait({A: 12}, {A: 13})


def test_without_a_least_nothing_waits() -> None:
    ready = admission()
    assert not ready.must_wait({A: 0}, {A: 0})
    assert not ready.must_wait({A: 0}, {A: 0})
