"""The flusher: how long it sleeps."""

from __future__ import annotations

import pytest

from commitlog import CommitLog


@pytest.mark.parametrize(("flush_ms", "longest"), [(-1, 60.0), (500, 0.5)])
def test_the_flusher_sleeps_until_it_is_needed(log: CommitLog, flush_ms: int, longest: float) -> None:
    log.create_topic("t", config={"flush_ms": flush_ms})
    log._housekeeper.sync_due()
    assert 0.0 < log._housekeeper.sync_due() <= longest


def test_the_flusher_of_topics_that_never_flush_does_not_spin(log: CommitLog) -> None:
    log.create_topic("t", config={"flush_ms": -1}).partition(0).append(b"x")
    assert log._housekeeper.sync_due() == 60.0
