"""What a leader concludes from the fetches of its followers; settings; the throttle."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from commitlog.errors import ConfigError
from commitlog.replication.cluster import NodeState, PartitionState
from commitlog.replication.core.progress import Progress, ReplicaProgress
from commitlog.replication.core.throttle import Throttle
from commitlog.replication.settings import ReplicationConfig

NODES = {number: NodeState(number, str(number), 10 + number) for number in (1, 2, 3)}


def progress(
    isr: tuple[int, ...] = (1, 2, 3), epoch_start: int = 0, min_insync_replicas: int = 1
) -> Progress:
    """Node 1 leads; it is the first of three replicas. A replica may lag for 100 ms."""
    state = PartitionState((1, 2, 3), isr, 1, 0, 1)
    return Progress(
        1, epoch_start, state, NODES, min_insync_replicas=min_insync_replicas, lag_max_ms=100, now_ms=0
    )


def fetch(known: Progress, node_id: int, offset: int, end_offset: int, now_ms: int = 0) -> None:
    known.others[node_id].fetched(10 + node_id, offset, end_offset, now_ms)


def test_the_watermark_does_not_move_before_every_member_has_fetched_in_this_epoch() -> None:
    known = progress()
    fetch(known, 2, 8, 10)
    assert known.advanced(3, 10, 0) == 3
    fetch(known, 3, 7, 10)
    assert known.advanced(3, 10, 0) == 7


def test_the_watermark_never_goes_back() -> None:
    known = progress()
    fetch(known, 2, 5, 10)
    fetch(known, 3, 5, 10)
    assert known.advanced(6, 10, 0) == 6


def test_a_replica_that_is_not_in_sync_and_does_not_keep_up_is_not_waited_for() -> None:
    known = progress(isr=(1, 2))
    fetch(known, 2, 10, 10)
    fetch(known, 3, 4, 10)
    assert known.advanced(0, 10, 0) == 10


def test_an_old_fetch_does_not_take_back_what_a_younger_one_told() -> None:
    one = ReplicaProgress()
    one.fetched(1, 8, 10, 0)
    one.fetched(1, 5, 10, 1)
    assert one.next_offset == 8


def test_a_new_life_of_a_replica_starts_anew() -> None:
    one = ReplicaProgress()
    one.fetched(1, 8, 8, 0)
    one.fetched(2, 5, 8, 1)
    assert (one.next_offset, one.incarnation) == (5, 2)
    one.fetched(1, 8, 8, 2)
    assert (one.next_offset, one.incarnation) == (5, 2)


def test_who_reaches_where_the_leader_was_at_its_last_fetch_was_caught_up_then() -> None:
    one = ReplicaProgress()
    one.fetched(1, 5, 10, 100)
    one.fetched(1, 10, 20, 200)
    assert one.caught_up_ms == 100
    one.fetched(1, 15, 30, 300)
    assert one.caught_up_ms == 100
    one.fetched(1, 30, 30, 400)
    assert one.caught_up_ms == 400


def test_a_member_leaves_when_it_was_not_caught_up_for_too_long() -> None:
    known = progress()
    fetch(known, 2, 10, 10, 90)
    fetch(known, 3, 4, 10, 90)
    assert known.wanted_isr(4, 10, 100) is None
    assert known.wanted_isr(4, 10, 101) == (1, 2)


def test_a_member_that_has_everything_stays_however_long_it_is_silent() -> None:
    known = progress(isr=(1, 2))
    fetch(known, 2, 10, 10)
    assert known.wanted_isr(10, 10, 100_000) is None
    assert known.wanted_isr(10, 11, 100_000) == (1,)


def test_one_that_left_comes_in_again_only_when_it_is_heard_again() -> None:
    known = progress(min_insync_replicas=2)
    for node_id in (2, 3):
        fetch(known, node_id, 5, 5)
    assert known.wanted_isr(5, 6, 101) == (1,)
    known.state_changed(PartitionState((1, 2, 3), (1,), 1, 0, 2), NODES, 102)
    assert known.wanted_isr(5, 6, 103) is None, "the watermark stands still, and they have reached it"
    fetch(known, 3, 5, 6, 104)
    assert known.wanted_isr(5, 6, 104) == (1, 3)


def test_the_controller_must_know_the_life_that_is_to_join_and_it_must_be_about_to_stay() -> None:
    known = progress(isr=(1,))
    known.others[2].fetched(99, 10, 10, 0)
    assert known.wanted_isr(10, 10, 0) is None
    leaving = {**NODES, 3: NodeState(3, "3", 13, leaving=True)}
    fetch(known, 3, 10, 10)
    known.state_changed(PartitionState((1, 2, 3), (1,), 1, 0, 1), leaving, 0)
    assert known.wanted_isr(10, 10, 0) is None
    known.state_changed(PartitionState((1, 2, 3), (1,), 1, 0, 1), NODES, 0)
    assert known.wanted_isr(10, 10, 0) == (1, 3)


def test_proposals_of_a_version_are_all_counted_until_the_next_version() -> None:
    known = progress(isr=(1,))
    fetch(known, 2, 10, 10)
    fetch(known, 3, 10, 10)
    known.proposed((1, 2))
    known.proposed((1, 3))
    assert known.counted == {1, 2, 3}
    known.state_changed(PartitionState((1, 2, 3), (1, 3), 1, 0, 2), NODES, 0)
    assert known.counted == {1, 3}


def test_too_few_members_hold_the_watermark_whatever_is_proposed() -> None:
    known = progress(isr=(1,), min_insync_replicas=2)
    fetch(known, 2, 10, 10)
    known.proposed((1, 2))
    assert known.advanced(0, 10, 0) == 0


@pytest.mark.parametrize("name", ["replica_lag_time_max_ms", "request_timeout_ms"])
def test_a_fetch_may_not_be_held_as_long_as_a_replica_may_lag_or_an_answer_take(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        ReplicationConfig(replica_fetch_wait_max_ms=1000, **{name: 1000})


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError):
        ReplicationConfig(replica_fetch_max_bytes=0)
    assert ReplicationConfig.of({"replica_fetch_backoff_ms": 7}).tick_ms == 7


def test_the_page_lists_every_setting_and_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "replication.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (-?\d+) \|", page, re.MULTILINE))
    assert rows == {one.name: str(one.default) for one in fields(ReplicationConfig)}


def test_the_throttle_lets_a_seconds_worth_through_and_then_as_much_as_time_passes() -> None:
    throttle = Throttle(1000, now_ms=0)
    assert throttle.allowed(5000, 0) == 1000
    throttle.spent(1500)
    assert throttle.allowed(5000, 400) == 0
    assert throttle.allowed(5000, 600) == 100
    throttle.change(-1, 600)
    assert throttle.allowed(5000, 600) == 5000
