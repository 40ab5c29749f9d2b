"""Transactions on the page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli.rig import undecided

import commitlog
from commitlog import CommitLog, TransactionAbortedError
from commitlog.ui.outcomes import outcomes
from commitlog.ui.tail_api import Follower

from .client import Client, served
from .test_page import HOSTILE, expect_text, show, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

RECORDS = "topics/orders/partitions/0/records"
UNCOMMITTED = "isolation_level=read_uncommitted"


@pytest.fixture
def writing(log_path: Path) -> Iterator[tuple[CommitLog, commitlog.Producer]]:
    """A log of rig.undecided(), in the hands of an application."""
    with undecided(log_path, "shared") as (log, producer):
        yield log, producer


@pytest.fixture
def looking(writing: object, log_path: Path) -> Iterator[Client]:
    """A page that only looks at it."""
    with commitlog.open(log_path, mode="r") as reader, served(reader) as client:
        yield client


def values(found: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    return [one["value"]["text"] for one in found["records"]]


# --- what the server says


def test_records_are_those_that_are_committed_unless_others_are_asked_for(looking: Client) -> None:
    found = looking.get(RECORDS)
    assert (values(found), found["end_offset"]) == (["plain", "committed"], 5)
    assert values(looking.get(f"{RECORDS}?order=newest")) == ["committed", "plain"]
    every = looking.get(f"{RECORDS}?{UNCOMMITTED}")
    assert (values(every), every["end_offset"]) == (["plain", "committed", "aborted", "open", "after"], 7)
    assert [one["transaction"] for one in every["records"]] == [None, None, "aborted", "open", None]
    assert values(looking.get(f"{RECORDS}?order=newest&limit=2&{UNCOMMITTED}")) == ["after", "open"]
    assert looking.refused(f"{RECORDS}?isolation_level=none") == (
        400, "isolation_level must be read_committed or read_uncommitted"
    )  # fmt: skip


def test_a_record_that_is_not_committed_is_shown_in_full_only_on_request(looking: Client) -> None:
    assert looking.refused(f"{RECORDS}/5")[0] == 409
    assert looking.refused(f"{RECORDS}/3") == (
        404, "there is no record at offset 3; it was aborted, a marker is there, or compaction removed it"
    )  # fmt: skip
    assert looking.get(f"{RECORDS}/5?{UNCOMMITTED}")["value"]["text"] == "open"
    assert looking.get(f"{RECORDS}/3?{UNCOMMITTED}")["value"]["text"] == "aborted"


def test_what_ended_after_the_stable_offset_is_told_by_its_marker(log: CommitLog) -> None:
    partition = log.create_topic("t").partition(0)
    first, *others = (log.producer(transactional_id=f"id-{number}") for number in range(3))
    for producer in (first, *others):
        producer.begin_transaction()
        producer.send("t", b"x")
        producer.flush()
    others[0].commit_transaction()
    others[1].abort_transaction()
    assert partition.last_stable_offset == 0
    assert outcomes(partition, [2, 0, 1]) == {0: "open", 2: "aborted"}
    first.commit_transaction()
    assert outcomes(partition, range(3)) == {2: "aborted"}


def test_transactions_are_listed_with_the_oldest_that_is_open_first(
    looking: Client, writing: tuple[CommitLog, commitlog.Producer]
) -> None:
    writing[0].producer(transactional_id="another")
    found = looking.get("transactions")
    assert [one["transactional_id"] for one in found["transactions"]] == ["billing-1", "another"]
    one = found["transactions"][0]
    assert (one["state"], one["partitions"], one["age_ms"] >= 6_000) == ("Ongoing", 2, True)
    assert one["listed"] == [{"topic": "orders", "partition": 0}, {"topic": "pay", "partition": 0}]
    assert int(one["producer_id"]) == writing[0].transactions()[1].producer_id
    assert looking.get("transactions?search=ANOTHER")["total"] == 1


def test_a_log_without_transactions_has_none(client: Client, log: CommitLog) -> None:
    log.create_topic("t").append(b"x")
    assert client.get("transactions") == {"transactions": [], "from": 0, "total": 0}
    found = client.get("topics/t/partitions/0")
    assert (found["open_transactions"], found["has_gaps"]) == ([], False)


def test_a_partition_tells_what_is_open_in_it_and_how_many_records_are_newer(looking: Client) -> None:
    found = looking.get("topics/orders/partitions/0?since=1")
    assert (found["last_stable_offset"], found["next_offset"], found["has_gaps"]) == (5, 7, True)
    (one,) = found["open_transactions"]
    assert (one["transactional_id"], one["first_offset"], one["state"]) == ("billing-1", 5, "Ongoing")
    assert found["newer"] == 1  # without the marker, and without what is aborted
    assert looking.get(f"topics/orders/partitions/0?since=1&{UNCOMMITTED}")["newer"] == 4


def test_a_tail_waits_for_the_commit_unless_told_otherwise(
    writing: tuple[CommitLog, commitlog.Producer],
) -> None:
    log, producer = writing
    partition = log.topic("orders").partition(0)
    committed, every = Follower({0: partition}), Follower({0: partition}, "read_uncommitted")
    producer.send("orders", b"more", partition=0)
    producer.flush()
    assert committed.look() == []
    assert [one["value"]["text"] for one in every.look()[0]["records"]] == ["more"]
    producer.commit_transaction()
    assert every.look() == []  # there is only a marker
    assert [one["value"]["text"] for one in committed.look()[0]["records"]] == ["open", "after", "more"]


def test_an_abort_ends_the_transaction_of_another_process(
    writing: tuple[CommitLog, commitlog.Producer], writable: Client
) -> None:
    done = writable.post("transaction/abort", {"transactional_id": "billing-1"})
    assert done.json == {"transactional_id": "billing-1", "aborted": True}
    assert writing[0].topic("orders").partition(0).last_stable_offset == 8
    again = writable.post("transaction/abort", {"transactional_id": "billing-1"})
    assert (again.status, "no open transaction" in again.json["error"]) == (409, True)
    with pytest.raises(TransactionAbortedError):
        writing[1].commit_transaction()


# --- what a browser shows


def test_uncommitted_records_are_shown_with_what_became_of_them(page: Page, looking: Client) -> None:
    show(page, looking, "#/t/orders/0")
    page.wait_for_selector(".record")
    assert page.locator(".record").count() == 2
    page.get_by_label("Isolation").select_option("read_uncommitted")
    page.get_by_role("button", name="Show", exact=True).click()
    until(page, "document.querySelectorAll('.record').length === 5")
    chips = [page.locator(".record").nth(index).locator(".chip") for index in range(5)]
    assert [chip.all_inner_texts() for chip in chips] == [[], ["open"], ["aborted"], [], []]
    page.get_by_role("button", name="Clear").click()
    until(page, "document.querySelectorAll('.record').length === 2")


def test_the_stable_offset_and_open_transactions_are_marked(
    page: Page, looking: Client, writing: tuple[CommitLog, commitlog.Producer]
) -> None:
    show(page, looking, "#/t/orders/0")
    page.wait_for_selector(".strip.big .stable")
    assert page.locator(".strip.big .begins").count() == 1
    stable = float(page.locator(".strip.big .stable").get_attribute("x") or 0)
    bar = page.locator(".strip.big .bar")
    width = float(bar.get_attribute("width") or 0)
    assert stable / width == pytest.approx(5 / 7, abs=0.01)
    expect_text(page, "readers stop at last_stable_offset 5")
    assert "Open transaction billing-1 from offset 5, for " in page.locator(".opened").inner_text()
    assert "not readable yet" in page.locator(".legend").inner_text()
    bar.hover(position={"x": 5, "y": 20})
    assert "≤ 7 records" in page.locator("#tip").inner_text()
    bar.click(position={"x": 5, "y": 20})
    expect_text(page, "5 in 5 batches, 2 markers")
    writing[1].commit_transaction()
    page.wait_for_selector(".strip.big .stable", state="detached")
    expect_text(page, "2 newer records: show")
    page.get_by_text("2 newer records: show").click()
    until(page, "document.querySelectorAll('.record').length === 4")
    assert not page.locator(".opened").is_visible()


def test_a_topic_marks_the_stable_offset_of_its_partitions(page: Page, looking: Client) -> None:
    show(page, looking, "#/t/orders")
    page.wait_for_selector(".strip .stable")
    assert page.locator(".strip .stable").count() == 1
    expect_text(page, "≤ 5")


def test_transactions_are_shown_and_lead_to_their_partitions(page: Page, looking: Client) -> None:
    show(page, looking, "#/transactions")
    expect_text(page, "1 transactional id")
    row = page.locator("tr", has_text="billing-1")
    assert row.get_by_text("Ongoing").is_visible()
    assert page.get_by_role("button", name="Abort").count() == 0
    row.get_by_role("link", name="orders-0").click()
    page.get_by_role("link", name="billing-1").click()
    expect_text(page, "1 transactional id")


def test_a_log_without_transactions_says_so(page: Page, client: Client, log: CommitLog) -> None:
    show(page, client, "#/transactions")
    expect_text(page, "No transactions")


def test_a_writable_page_aborts_after_asking(
    page: Page, writing: tuple[CommitLog, commitlog.Producer], writable: Client
) -> None:
    partition = writing[0].topic("orders").partition(0)
    show(page, writable, "#/transactions")
    page.get_by_role("button", name="Abort").click()
    dialog = page.locator("dialog")
    expect_text(page, "Discards what the open transaction of billing-1 has written to 2 partitions.")
    dialog.get_by_role("button", name="Cancel").click()
    assert partition.last_stable_offset == 5
    page.get_by_role("button", name="Abort").click()
    dialog.get_by_role("button", name="Abort").click()
    expect_text(page, "The transaction is aborted.")
    assert partition.last_stable_offset == 8
    dialog.get_by_role("button", name="Close").click()
    expect_text(page, "CompleteAbort")
    until(page, "[...document.querySelectorAll('td button')].every((one) => one.hidden)")


def test_the_live_tail_shows_what_is_not_committed_on_request(
    page: Page, looking: Client, writing: tuple[CommitLog, commitlog.Producer]
) -> None:
    _, producer = writing
    show(page, looking, "#/live/orders")
    expect_text(page, "live, 2 partitions")
    page.get_by_label("Isolation").select_option("read_uncommitted")
    until(page, "location.hash.includes('read_uncommitted')")
    expect_text(page, "live, 2 partitions")
    producer.send("orders", b"not decided", partition=0)
    producer.flush()
    expect_text(page, "not decided")


def test_a_hostile_id_stays_text(page: Page, client: Client, log: CommitLog) -> None:
    log.create_topic("t")
    for text in HOSTILE:
        producer = log.producer(transactional_id=text)
        producer.begin_transaction()
        producer.send("t", b"x")
        producer.flush()
    show(page, client, "#/transactions")
    expect_text(page, f"{len(HOSTILE)} transactional ids")
    shown = page.locator("main").inner_text()
    show(page, client, "#/t/t/0")
    page.wait_for_selector(".opened li")
    shown += page.locator(".opened").inner_text()
    for text in HOSTILE:
        assert shown.count(text) == 2, text
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script, main iframe, main svg[onload]").count() == 0
