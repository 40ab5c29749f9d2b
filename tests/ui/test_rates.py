from __future__ import annotations

from commitlog.ui.rates import Rates


class Seconds:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_the_difference_between_two_looks() -> None:
    clock = Seconds()
    rates = Rates(clock)
    assert rates.look("t", 10, 1000) == {"records": [], "bytes": []}
    clock.now += 2
    assert rates.look("t", 30, 1500) == {"records": [10.0], "bytes": [250.0]}
    clock.now += 4
    assert rates.look("t", 30, 1500) == {"records": [10.0, 0.0], "bytes": [250.0, 0.0]}


def test_two_pages_that_look_at_once_count_as_one_look() -> None:
    clock = Seconds()
    rates = Rates(clock)
    rates.look("t", 0, 0)
    clock.now += 0.1
    assert rates.look("t", 1000, 1000) == {"records": [], "bytes": []}


def test_a_log_that_shrank_tells_no_rate() -> None:
    clock = Seconds()
    rates = Rates(clock)
    rates.look("t", 10, 1000)
    clock.now += 1
    assert rates.look("t", 20, 400) == {"records": [10.0], "bytes": [None]}


def test_looks_before_a_long_pause_are_forgotten() -> None:
    clock = Seconds()
    rates = Rates(clock)
    rates.look("t", 10, 1000)
    clock.now += 3600
    assert rates.look("t", 7210, 1000) == {"records": [], "bytes": []}


def test_memory_is_bounded() -> None:
    clock = Seconds()
    rates = Rates(clock)
    for number in range(10_000):
        rates.look(f"topic {number}", 0, 0)
    assert len(rates._looks) == 4096
    for _ in range(100):
        clock.now += 1
        shown = rates.look("t", 0, 0)
    assert len(shown["records"]) == 60
