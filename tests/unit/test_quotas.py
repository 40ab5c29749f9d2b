"""Quotas are settings that survive; running clients follow them, in this process and in others."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from typing import Any

import pytest
from helpers import Clock, names, tree

import commitlog
from commitlog import (
    ClosedError,
    CommitLog,
    ConfigError,
    CorruptionError,
    DiskFullError,
    Quota,
    ReadOnlyError,
    files,
)
from commitlog.clients.quotas import Quotas

IDS = [
    "a",
    "",
    ".",
    "..",
    "a/b",
    "/etc/passwd",
    "a b",
    "ä",
    "+default",
    "%2F",
    "\0",
    "x" * 247,
    "new.tmp",
    "a.json",
]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(tmp_path: Path, clock: Clock) -> Quotas:
    return Quotas(str(tmp_path), clock)


# --- settings


def test_without_a_quota_there_is_no_limit_and_no_folder(quotas: Quotas, tmp_path: Path) -> None:
    assert quotas.get("a") == quotas.get(None) == Quota()
    assert quotas.all() == {}
    quotas.remove("a")
    assert quotas.meter("a", "produce").take(10**12) == 0.0
    assert names(tmp_path) == []


@pytest.mark.parametrize("client_id", IDS)
def test_any_text_can_be_a_client_id(quotas: Quotas, tmp_path: Path, client_id: str) -> None:
    quotas.set(client_id, Quota(100, 200))
    quotas.set("other", Quota(1))
    assert Quotas(str(tmp_path)).all() == {client_id: Quota(100, 200), "other": Quota(1)}
    assert quotas.get(client_id) == Quota(100, 200)
    assert quotas.get(None) == Quota()
    assert quotas.meter(client_id, "produce").take(200) == 1.0
    assert names(tmp_path) == ["quotas"]
    quotas.remove(client_id)
    assert quotas.all() == {"other": Quota(1)}


@pytest.mark.parametrize("client_id", ["x" * 248, "ä" * 42, 5, b"a", "\udc80"], ids=repr)
def test_what_cannot_name_a_file_is_refused_as_a_client_id(
    quotas: Quotas, tmp_path: Path, client_id: Any
) -> None:
    calls = [
        lambda: quotas.set(client_id, Quota(1)),
        lambda: quotas.get(client_id),
        lambda: quotas.remove(client_id),
        lambda: quotas.meter(client_id, "produce"),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="client_id"):
            call()
    assert names(tmp_path) == []


def test_a_meter_is_for_one_client_id_and_one_direction(quotas: Quotas) -> None:
    wrong: Any = None
    with pytest.raises(ConfigError, match="client_id"):
        quotas.meter(wrong, "produce")
    with pytest.raises(ConfigError, match="direction"):
        quotas.meter("a", wrong)


@pytest.mark.parametrize("rate", [0, -1, 1.5, "1", True, 1 << 63], ids=repr)
def test_a_rate_is_a_positive_integer(rate: Any) -> None:
    with pytest.raises(ConfigError, match="producer_byte_rate"):
        Quota(rate)
    with pytest.raises(ConfigError, match="consumer_byte_rate"):
        Quota(consumer_byte_rate=rate)


@pytest.mark.parametrize("rate", [1, (1 << 63) - 1])
def test_every_rate_that_is_allowed_works(quotas: Quotas, clock: Clock, rate: int) -> None:
    quotas.set("a", Quota(rate))
    meter = quotas.meter("a", "produce")
    assert [meter.take(rate), meter.take(rate)] == [0.0, 1.0]


@pytest.mark.parametrize("junk", ["", "{", "[]", "null", '{"rate": 1}', '{"producer_byte_rate": 0}', "\xff"])
def test_a_damaged_quota_is_damage_and_stops_no_client(quotas: Quotas, tmp_path: Path, junk: str) -> None:
    quotas.set("a", Quota(100))
    meter = quotas.meter("a", "produce")
    (tmp_path / "quotas" / "a.json").write_bytes(junk.encode("latin-1"))
    for call in (lambda: quotas.get("a"), quotas.all):
        with pytest.raises(CorruptionError, match=r"a\.json"):
            call()
    assert meter.take(10**9) == 0.0
    quotas.set("a", Quota(5))
    assert quotas.all() == {"a": Quota(5)}


def test_a_quota_that_does_not_fit_on_the_disk_changes_nothing(
    quotas: Quotas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas.set("a", Quota(100))
    before = tree(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_at", full)
        with pytest.raises(DiskFullError):
            quotas.set("a", Quota(200))
    assert tree(tmp_path) == before
    assert quotas.get("a") == Quota(100)


# --- who they count for


def test_the_default_is_for_every_client_id_without_a_quota_and_each_has_it_for_itself(
    quotas: Quotas,
) -> None:
    quotas.set(None, Quota(100))
    quotas.set("own", Quota(1_000))
    quotas.set("free", Quota())
    meters = {client_id: quotas.meter(client_id, "produce") for client_id in ("a", "b", "own", "free", "")}
    assert {client_id: meter.take(200) for client_id, meter in meters.items()} == {
        "a": 1.0,
        "b": 1.0,
        "own": 0.0,
        "free": 0.0,
        "": 1.0,
    }
    assert quotas.get("a") == Quota(100)
    assert quotas.all() == {None: Quota(100), "own": Quota(1_000), "free": Quota()}


def test_a_quota_of_ones_own_stands_for_the_default_in_both_directions(quotas: Quotas) -> None:
    quotas.set(None, Quota(100, 100))
    quotas.set("a", Quota(producer_byte_rate=100))
    assert quotas.meter("a", "consume").take(10**9) == 0.0


def test_producing_and_consuming_do_not_share_a_rate(quotas: Quotas) -> None:
    quotas.set("a", Quota(100, 1_000))
    assert quotas.meter("a", "produce").take(200) == 1.0
    assert quotas.meter("a", "consume").take(3_000) == 2.0


def test_all_meters_of_a_client_id_share_its_rate(quotas: Quotas, tmp_path: Path, clock: Clock) -> None:
    quotas.set("a", Quota(100))
    meters = [quotas.meter("a", "produce") for _ in range(3)]
    meters += [Quotas(str(tmp_path), clock).meter("a", "produce") for _ in range(3)]
    assert [meter.take(100) for meter in meters] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_running_client_follows_every_change_within_a_second(quotas: Quotas, clock: Clock) -> None:
    meter = quotas.meter("a", "produce")

    def wait_for_a_burst() -> float:
        clock.move(1)
        seconds = meter.take(1_000)
        clock.move(60)
        return seconds

    assert wait_for_a_burst() == 0.0
    quotas.set(None, Quota(100))
    assert wait_for_a_burst() == 9.0
    quotas.set("a", Quota(500))
    assert wait_for_a_burst() == 1.0
    quotas.set("a", Quota(250))
    assert wait_for_a_burst() == 3.0
    quotas.remove("a")
    assert wait_for_a_burst() == 9.0
    quotas.remove(None)
    assert wait_for_a_burst() == 0.0


def test_files_are_opened_for_quotas_only_and_closed_after_them(quotas: Quotas, clock: Clock) -> None:
    meters = [quotas.meter("a", "produce") for _ in range(50)]

    def count() -> int:
        clock.move(1)
        for meter in meters:
            meter.take(1)
        links = [f"/proc/self/fd/{name}" for name in names("/proc/self/fd")]
        return sum(os.path.exists(link) and ".account" in os.readlink(link) for link in links)

    gc.collect()  # other tests may have left some behind
    assert count() == 0
    quotas.set("a", Quota(100))
    assert count() == 1
    quotas.remove("a")
    assert count() == 0


# --- of a log


def test_quotas_of_a_log_are_there_when_it_is_opened_again(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        assert log.quotas() == {}
        log.set_quota("a", producer_byte_rate=5)
        log.set_quota(None, consumer_byte_rate=7)
        log.set_quota("b")
        log.create_topic("quotas").append(b"v")
    for mode in ("r", "w"):
        with commitlog.open(log_path, mode=mode) as log:
            assert log.quotas() == {"a": Quota(5), None: Quota(None, 7), "b": Quota()}
            assert log.topics() == ["quotas"]
    with commitlog.open(log_path) as log:
        log.remove_quota("a")
        log.remove_quota("a")
        log.remove_quota(None)
        assert log.quotas() == {"b": Quota()}
        assert log.recovery[0].clean


def test_only_writers_change_quotas(log_path: Path) -> None:
    with commitlog.open(log_path) as writer, commitlog.open(log_path, mode="r") as log:
        with pytest.raises(ReadOnlyError):
            log.set_quota("a", producer_byte_rate=5)
        with pytest.raises(ReadOnlyError):
            log.remove_quota("a")
        writer.set_quota("a", producer_byte_rate=5)
        assert log.quotas() == {"a": Quota(5)}
    for call in (writer.quotas, lambda: writer.set_quota("a"), lambda: writer.remove_quota("a")):
        with pytest.raises(ClosedError):
            call()


def test_a_wrong_quota_is_refused_and_leaves_nothing_behind(log: CommitLog) -> None:
    before = tree(log.path)
    with pytest.raises(ConfigError):
        log.set_quota("a", producer_byte_rate=0)
    with pytest.raises(ConfigError):
        log.set_quota("x" * 300, producer_byte_rate=1)
    with pytest.raises(ConfigError):
        log.producer(client_id="x" * 300)
    assert tree(log.path) == before
