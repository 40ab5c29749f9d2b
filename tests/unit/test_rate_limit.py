"""A rate holds over all meters of a client id, exactly; what is owed may be lost, but blocks nobody."""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from helpers import Clock
from hypothesis import given
from hypothesis import strategies as st

from commitlog import files
from commitlog.clients import rate_limit
from commitlog.clients.rate_limit import (
    BURST_NS,
    LONGEST_NS,
    SECOND_NS,
    Account,
    Debt,
    RateLimit,
    Throttle,
    charged,
)

NOW = Clock.START


class Rate:
    """A rate that tests change."""

    def __init__(self, rate: int | None) -> None:
        self.rate = rate

    def __call__(self) -> int | None:
        return self.rate


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.account"


def meter_of(
    path: Path, rate: int | Callable[[], int | None] | None, clock: Clock, slot: int = 0
) -> RateLimit:
    """A meter with an account of its own, as in a process of its own."""
    account = Account(str(path))
    return RateLimit(rate if callable(rate) else lambda: rate, lambda: account, slot, clock)


# --- the rate


@pytest.mark.parametrize("rate", [307, 1_000, 1_048_573, 3_333_333_333, 10**12])
@pytest.mark.parametrize("size", [1, 7, 100, 4_099, 1_000_003])
def test_the_rate_holds_exactly_over_a_long_run(rate: int, size: int) -> None:
    debt, now = charged(None, 0, rate, NOW), NOW
    for count in range(1, 3_000):
        debt = charged(debt, size, rate, now)
        paid_at = NOW - BURST_NS + Fraction(count * size * SECOND_NS, rate)
        assert debt.free_at == math.floor(paid_at)
        now = max(now, debt.free_at)


steps = st.lists(st.tuples(st.integers(0, 3 * SECOND_NS), st.integers(0, 10**7)), max_size=50)


@given(st.integers(10**4, 10**9), steps)
def test_who_waits_as_told_never_has_more_than_the_rate_and_a_burst(
    rate: int, steps: list[tuple[int, int]]
) -> None:
    now, debt, total = NOW, None, 0
    for gap, size in steps:
        now += gap
        debt = charged(debt, size, rate, now)
        total += size
        now = max(now, debt.free_at)
        assert total * SECOND_NS <= rate * (now + 1 - NOW + BURST_NS)  # waits are whole nanoseconds


@given(
    st.integers(1, 10**12), st.lists(st.tuples(st.integers(0, BURST_NS), st.integers(0, 100)), max_size=50)
)
def test_who_stays_under_the_rate_never_waits(rate: int, steps: list[tuple[int, int]]) -> None:
    now, debt = NOW, charged(None, rate * BURST_NS // SECOND_NS, rate, NOW)
    for gap, percent in steps:
        now += gap
        debt = charged(debt, rate * gap * percent // (100 * SECOND_NS), rate, now)
        assert debt.free_at <= now


@given(st.integers(10**4, 10**9), steps)
def test_it_is_a_bucket_of_bytes_that_is_filled_at_the_rate(rate: int, steps: list[tuple[int, int]]) -> None:
    """Against the other way to say it, in exact numbers, for callers that do not wait."""
    full = Fraction(rate * BURST_NS, SECOND_NS)
    now, debt, level = NOW, None, full
    for gap, size in steps:
        now += gap
        level = min(full, level + Fraction(rate * gap, SECOND_NS)) - size
        debt = charged(debt, size, rate, now)
        assert debt.free_at - now == math.floor(-level / rate * SECOND_NS)


def test_a_client_that_was_idle_has_a_burst_and_no_more(path: Path, clock: Clock) -> None:
    one = meter_of(path, 100, clock)
    clock.move(50)
    assert one.take(100) == 0.0
    assert one.take(1) == 0.01
    clock.move(0.51)
    assert one.take(50) == 0.0
    clock.move(500)
    assert one.take(150) == 0.5


def test_more_than_a_burst_at_once_is_only_waited_for(path: Path, clock: Clock) -> None:
    assert meter_of(path, 100, clock).take(1_100) == 10.0


def test_taking_nothing_tells_how_long_there_is_to_wait(path: Path, clock: Clock) -> None:
    one = meter_of(path, 100, clock)
    one.take(300)
    clock.move(0.5)
    assert [one.take(0), one.take(0)] == [1.5, 1.5]


def test_no_debt_lasts_longer_than_an_hour(path: Path, clock: Clock) -> None:
    one = meter_of(path, 1, clock)
    assert one.take(10**15) == 3600.0
    assert one.take(10**15) == 3600.0
    clock.move(3600)
    assert one.take(0) == 0.0


def test_without_a_quota_nothing_is_counted_and_no_account_is_made(path: Path, clock: Clock) -> None:
    one = meter_of(path, None, clock)
    assert one.take(10**15) == 0.0
    assert not path.exists()


# --- other rates


def test_a_rate_that_changes_counts_within_a_second(path: Path, clock: Clock) -> None:
    rate = Rate(100)
    one = meter_of(path, rate, clock)
    one.take(100)
    rate.rate = 1_000
    clock.move(1)
    assert one.take(2_000) == 1.0
    rate.rate = None
    clock.move(1)
    assert one.take(10**9) == 0.0


def test_bytes_are_owed_so_another_rate_changes_the_time(path: Path, clock: Clock) -> None:
    rate = Rate(100)
    one = meter_of(path, rate, clock)
    assert one.take(1_200) == 11.0
    rate.rate = 1_000
    clock.move(1)
    assert one.take(0) == 1.0
    rate.rate = 10
    clock.move(0.5)
    assert one.take(0) == 50.0


def test_meters_that_learn_of_another_rate_at_different_times_agree_on_what_is_owed(
    path: Path, clock: Clock
) -> None:
    old, new = meter_of(path, 100, clock), meter_of(path, 1_000, clock)
    old.take(1_100)
    for _ in range(100):
        assert (new.take(0), old.take(0)) == (1.0, 10.0)


def test_unused_time_is_worth_a_burst_at_another_rate_too(path: Path, clock: Clock) -> None:
    rate = Rate(1_000)
    one = meter_of(path, rate, clock)
    one.take(0)
    rate.rate = 10
    clock.move(1)
    assert one.take(11) == pytest.approx(0.1)


def test_a_rate_that_cannot_be_read_stays_as_it_was_and_is_told_once(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    rate = Rate(100)
    readable = True

    def read() -> int | None:
        if not readable:
            raise OSError(errno.EACCES, "Permission denied", "a.json")
        return rate()

    one = meter_of(path, read, clock)
    one.take(100)
    readable = False
    for _ in range(5):
        clock.move(1)
        assert one.take(200) == 1.0
        clock.move(1)
    assert len(caplog.records) == 1
    assert "a.json" in caplog.text


# --- accounts


def test_meters_of_one_account_share_the_rate_and_slots_do_not(path: Path, clock: Clock) -> None:
    first, second, other = (meter_of(path, 100, clock, slot) for slot in (0, 0, 1))
    assert [first.take(100), second.take(100), first.take(100)] == [0.0, 1.0, 2.0]
    assert other.take(100) == 0.0
    clock.move(1)
    assert [first.take(0), second.take(0), other.take(0)] == [1.0, 1.0, 0.0]


def test_threads_lose_nothing(path: Path, clock: Clock) -> None:
    meters = [meter_of(path, 1_000, clock) for _ in range(2)]

    def work(one: RateLimit) -> None:
        for _ in range(500):
            one.take(7)

    threads = [threading.Thread(target=work, args=(one,)) for one in meters * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meters[0].take(0) == 4 * 500 * 7 / 1_000 - 1


def test_an_account_of_another_boot_is_not_believed(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(rate_limit, "boot_id", lambda: "another")
        assert meter_of(path, 100, clock).take(10_000) == 99.0
    assert meter_of(path, 100, clock).take(100) == 0.0


@pytest.mark.parametrize(
    "debt",
    [
        Debt(NOW + LONGEST_NS + 1, 100, 0),
        Debt(NOW + SECOND_NS, 0, 0),
        Debt(NOW + SECOND_NS, -5, 0),
        Debt(NOW + SECOND_NS, 100, 100),
        Debt(NOW + SECOND_NS, 100, -1),
        Debt(-(1 << 63), 100, 0),
    ],
)
def test_what_cannot_be_true_is_not_believed(path: Path, clock: Clock, debt: Debt) -> None:
    one = meter_of(path, 100, clock)
    one.take(0)
    record = path.read_bytes()[: 4 * 8]
    path.write_bytes(record[:8] + b"".join(field.to_bytes(8, "little", signed=True) for field in debt))
    assert one.take(100) == 0.0


@pytest.mark.parametrize("junk", [b"", b"\0", b"\xff" * 31, b"\xff" * 32, b"\0" * 4096, os.urandom(4096)])
def test_an_account_of_nonsense_says_that_nothing_is_owed(path: Path, clock: Clock, junk: bytes) -> None:
    path.write_bytes(junk)
    one = meter_of(path, 100, clock)
    assert [one.take(100), one.take(100)] == [0.0, 1.0]
    assert meter_of(path, 100, clock).take(0) == 1.0


def test_an_account_that_was_removed_is_made_anew(path: Path, clock: Clock) -> None:
    first, second = meter_of(path, 100, clock), meter_of(path, 100, clock)
    first.take(500)
    second.take(500)
    path.unlink()
    assert [first.take(100), second.take(100)] == [0.0, 1.0]
    assert path.exists()


def test_accounts_that_are_older_than_any_debt_go_when_another_is_made(path: Path, clock: Clock) -> None:
    names = {name: path.with_name(name) for name in ("old.account", "young.account", "old.json")}
    meter_of(names["old.account"], 100, clock).take(1)
    meter_of(names["young.account"], 100, clock).take(1)
    names["old.json"].touch()
    for name, file in names.items():
        age = LONGEST_NS + 60 * SECOND_NS if name.startswith("old") else LONGEST_NS // 2
        now = file.stat().st_mtime_ns
        os.utime(file, ns=(now - age, now - age))
    meter_of(path, 100, clock).take(1)
    assert {file.name for file in path.parent.iterdir()} == {"young.account", "old.json", "a.account"}


def test_a_process_that_cannot_write_the_account_counts_for_itself(path: Path, clock: Clock) -> None:
    path.mkdir()  # as good as a read-only mount, also for root
    account = Account(str(path))
    one, two = (RateLimit(lambda: 100, lambda: account, 0, clock) for _ in range(2))
    assert [one.take(100), two.take(100), one.take(0)] == [0.0, 1.0, 1.0]
    path.rmdir()
    assert one.take(100) == 0.0, "the account that all share counts once it is there"


def test_a_disk_that_fails_stops_nobody(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    one = meter_of(path, 100, clock)
    one.take(200)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "pwrite", full)
        assert [one.take(100), one.take(100)] == [2.0, 3.0]
    assert one.take(0) == 1.0


def test_an_interrupt_lets_the_lock_go(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    one = meter_of(path, 100, clock)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.take(100)
    with path.open("rb") as file:
        assert files.try_lock(file.fileno())
        files.unlock(file.fileno())
    assert one.take(0) == 0.0


# --- waiting


@pytest.fixture
def pauses(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes when somebody waits, and is noted here."""
    noted: list[float] = []

    def pause(_: Throttle, seconds: float) -> None:
        noted.append(seconds)
        clock.move(seconds)

    monkeypatch.setattr(Throttle, "_pause", pause)
    return noted


def test_a_throttle_waits_as_told(path: Path, clock: Clock, pauses: list[float]) -> None:
    throttle = Throttle(meter_of(path, 100, clock))
    throttle.take(100)
    throttle.wait()
    assert pauses == []
    throttle.take(250)
    assert throttle.seconds_left() > 0
    throttle.wait()
    assert sum(pauses) == pytest.approx(2.5)
    assert throttle.seconds_left() == 0.0


def test_a_throttle_without_a_quota_never_waits(path: Path, clock: Clock, pauses: list[float]) -> None:
    throttle = Throttle(meter_of(path, None, clock))
    throttle.take(10**12)
    throttle.wait()
    assert (throttle.seconds_left(), pauses) == (0.0, [])


@pytest.mark.parametrize(("then", "waited"), [(None, 1.0), (10_000, 1.1)])
def test_who_waits_goes_on_when_the_quota_is_raised_or_removed(
    path: Path, clock: Clock, pauses: list[float], then: int | None, waited: float
) -> None:
    rate = Rate(1)
    throttle = Throttle(meter_of(path, rate, clock))
    throttle.take(2_000)
    rate.rate = then
    throttle.wait()
    assert sum(pauses) <= waited


def test_nobody_waits_for_what_others_take_later(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttle, other = Throttle(meter_of(path, 100, clock)), meter_of(path, 100, clock)
    waited = []

    def pause(_: Throttle, seconds: float) -> None:
        waited.append(seconds)
        clock.move(seconds)
        throttle.take(1_000)
        other.take(1_000)

    monkeypatch.setattr(Throttle, "_pause", pause)
    throttle.take(300)
    throttle.wait()
    assert sum(waited) == pytest.approx(2.0)


def test_a_throttle_that_is_stopped_lets_everybody_go(path: Path) -> None:
    account = Account(str(path))
    throttle = Throttle(RateLimit(lambda: 1, lambda: account, 0, time.monotonic_ns))
    throttle.take(10_000)
    thread = threading.Thread(target=throttle.wait)
    thread.start()
    assert throttle.seconds_left() > 0
    throttle.stop()
    thread.join(30)
    assert not thread.is_alive()
    throttle.take(10_000)
    throttle.wait()
    assert throttle.seconds_left() == 0.0
