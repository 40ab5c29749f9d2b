"""Who syncs, who waits, and who is woken."""

from __future__ import annotations

import threading

import pytest
from helpers import wait_until

from commitlog.partitions import sync_queue
from commitlog.partitions.sync_queue import SyncQueue, Turn


class Threads:
    """Threads that need a sync; `came` has the offset of each that goes on, and whether it leads."""

    def __init__(self, queue: SyncQueue) -> None:
        self.queue = queue
        self.came: list[tuple[int, bool]] = []
        self._turns: list[Turn] = []
        self._threads: list[threading.Thread] = []

    def start(self, offset: int, durable_offset: int | None = None) -> Turn:
        """Start one, and return once it waits; if it leads then, it makes records durable up to an offset."""
        turn = Turn(offset)

        def work() -> None:
            self.queue.enter(turn)
            self.came.append((offset, turn.leads))
            self.queue.leave(turn, 0 if durable_offset is None else durable_offset)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: turn in self.queue._waiting)
        return turn

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    monkeypatch.setattr(sync_queue, "_PATIENCE_SECONDS", 60.0)
    return Threads(SyncQueue())


def lead(queue: SyncQueue, offset: int) -> Turn:
    turn = Turn(offset)
    queue.enter(turn)
    assert turn.leads
    return turn


def test_a_thread_that_is_alone_leads_every_time() -> None:
    queue = SyncQueue()
    for offset in range(1, 4):
        queue.leave(lead(queue, offset), offset)


def test_those_whose_records_a_sync_covered_do_not_sync(threads: Threads) -> None:
    leader = lead(threads.queue, 1)
    for offset in (2, 3, 4):
        threads.start(offset)
    threads.queue.leave(leader, 4)
    threads.join()
    assert threads.came == [(2, False), (3, False), (4, False)]
    threads.queue.leave(lead(threads.queue, 5), 5)


def test_one_of_those_that_came_too_late_leads_for_all_of_them(threads: Threads) -> None:
    leader = lead(threads.queue, 1)
    for offset in (2, 3, 4, 5):
        threads.start(offset, durable_offset=5)
    threads.queue.leave(leader, 3)
    threads.join()
    assert sorted(threads.came) == [(2, False), (3, False), (4, True), (5, False)]


def test_if_a_sync_failed_the_others_find_out_one_after_another(threads: Threads) -> None:
    leader = lead(threads.queue, 1)
    for offset in (2, 3):
        threads.start(offset)
    threads.queue.leave(leader, 0)
    threads.join()
    assert threads.came == [(2, True), (3, True)]


def test_a_leave_that_is_repeated_after_ctrl_c_wakes_everybody(threads: Threads) -> None:
    leader = lead(threads.queue, 1)
    threads.start(2)
    threads.queue.leave(leader, 2)
    threads.queue.leave(leader, 2)
    threads.join()
    threads.queue.leave(lead(threads.queue, 3), 3)


def test_one_that_gives_up_waiting_is_not_chosen_to_lead(threads: Threads) -> None:
    queue, leader = threads.queue, lead(threads.queue, 1)
    interrupted = threads.start(2)
    threads.start(3)
    queue.leave(interrupted, 0)
    queue.leave(leader, 1)
    wait_until(lambda: threads.came == [(3, True)])
    assert interrupted.wake is not None
    interrupted.wake.release()
    threads.join()


@pytest.mark.parametrize("durable_offset", [1, 9])
def test_one_that_is_interrupted_as_it_is_woken_wakes_the_others(
    threads: Threads, durable_offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it was to lead or its records are durable, others must not wait for it."""
    queue, leader, interrupted = threads.queue, lead(threads.queue, 1), Turn(2)
    with monkeypatch.context() as patch:
        patch.setattr(sync_queue, "_PATIENCE_SECONDS", 0.0)
        queue.enter(interrupted)  # as if Ctrl-C ended the wait
    interrupted.leads = False
    threads.start(3)
    queue.leave(leader, durable_offset)
    queue.leave(interrupted, durable_offset)
    threads.join()
    assert threads.came == [(3, durable_offset == 1)]


def test_a_thread_whose_leader_is_lost_leads_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_queue, "_PATIENCE_SECONDS", 0.01)
    queue = SyncQueue()
    lead(queue, 1)  # and never leaves
    second = lead(queue, 2)
    queue.leave(second, 2)
    queue.leave(lead(queue, 3), 3)
