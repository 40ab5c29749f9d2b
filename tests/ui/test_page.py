"""The page in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from helpers import fill

import commitlog
from commitlog import CommitLog, TopicPartition

from .client import Client

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = [
    "<img src=x onerror=\"window.pwned='img'\">",
    "<script>window.pwned='script'</script>",
    "</pre></div><svg onload=\"window.pwned='svg'\">",
    "javascript:window.pwned='link'",
    "{{constructor.constructor('window.pwned=1')()}}",
    "\"'><iframe srcdoc=\"<script>parent.pwned='frame'</script>\">",
]

# each view of a log with orders(), and what is there once it is filled
VIEWS = {
    "": "td.name",
    "#/t/orders": ".strip .bar",
    "#/t/orders/0": ".record",
    "#/groups": ".empty",
    "#/transactions": ".empty",
    "#/live/orders": ".dot.on",
}


def show(page: Page, client: Client, where: str) -> None:
    """Go to a view, and wait until it has been filled."""
    page.goto(client.url + where)
    page.wait_for_selector("main > *")


def until(page: Page, expression: str, seconds: float = 30.0) -> None:
    """Wait until an expression is true; the page's own policy forbids wait_for_function() to evaluate it."""
    deadline = monotonic() + seconds
    while not page.evaluate(expression):
        assert monotonic() < deadline, f"waited in vain for {expression}"
        page.wait_for_timeout(20)


def expect_text(page: Page, text: str) -> None:
    page.get_by_text(text).first.wait_for()


def orders(log: CommitLog) -> Any:
    topic = log.create_topic("orders", 2, {"segment_bytes": 3000})
    for number in range(200):
        value = json.dumps({"id": 2**62 + number, "items": [{"sku": "figs"}], "paid": True}).encode()
        headers = (("trace", b"7f"), ("raw", b"\x00\x01"), ("none", None))
        topic.append(value, key=b"alice" if number % 50 == 0 else b"bob", headers=headers, partition=0)
    return topic


def test_topics_lead_to_partitions_and_those_to_records(page: Page, client: Client, log: CommitLog) -> None:
    orders(log)
    log.create_topic("empty")
    show(page, client, "")
    expect_text(page, "2 topics")
    page.get_by_role("link", name="orders").click()
    page.get_by_role("link", name="orders-0").click()
    page.wait_for_selector(".record")
    assert page.locator(".record").count() == 50
    assert page.locator(".record .offset").first.inner_text() == "199"
    page.get_by_role("button", name="Older records").click()
    until(page, "document.querySelectorAll('.record').length === 100")
    assert page.locator(".record .offset").last.inner_text() == "100"


def test_an_empty_log_and_an_empty_partition_say_so(page: Page, client: Client, log: CommitLog) -> None:
    show(page, client, "")
    expect_text(page, "No topics yet")
    show(page, client, "#/groups")
    expect_text(page, "No consumer groups")
    log.create_topic("empty")
    show(page, client, "#/t/empty/0")
    expect_text(page, "The partition is empty")
    assert page.locator(".strip.big .bar.active").count() == 1


def test_segments_are_drawn_to_scale_and_told_by_state(page: Page, client: Client, log: CommitLog) -> None:
    topic = log.create_topic("c", config={"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 1.0})
    partition = topic.partition(0)
    for size in (100, 4000, 2000):
        partition.append(b"x" * size, key=b"%d" % size)
        partition.roll()
        if size == 100:
            partition.compact()
    show(page, client, "#/t/c/0")
    page.wait_for_selector(".strip.big .bar")
    bars = page.locator(".strip.big .bar")
    classes = [bars.nth(index).get_attribute("class") for index in range(bars.count())]
    assert classes == ["bar compacted", "bar dirty", "bar dirty", "bar active"]
    widths = [float(bars.nth(index).get_attribute("width") or 0) for index in range(bars.count())]
    sizes = [one.size_bytes for one in partition.segments]
    assert widths[1] / widths[2] == pytest.approx(sizes[1] / sizes[2], rel=0.05)
    legend = page.locator(".legend").inner_text()
    assert "compacted" in legend and "dirty" in legend and "active" in legend and "sealed" not in legend


def test_a_segment_tells_of_itself_by_pointer_and_by_keyboard(
    page: Page, client: Client, log: CommitLog
) -> None:
    topic = orders(log)
    second = topic.partition(0).segments[1]
    show(page, client, "#/t/orders/0")
    page.wait_for_selector(".strip.big .bar")
    page.locator(".strip.big .bar").nth(1).hover()
    assert f"offsets [{second.base_offset}, " in page.locator("#tip").inner_text()
    page.locator(".strip.big").focus()
    page.keyboard.press("Home")
    expect_text(page, "00000000000000000000.log")
    page.keyboard.press("ArrowRight")
    expect_text(page, Path(second.path).name)
    assert re.search(r"\d+ in \d+ batches", page.locator(".facts").inner_text())
    page.keyboard.press("Enter")
    until(page, f"document.querySelector('.record .offset')?.textContent === '{second.base_offset}'")


def test_a_record_is_shown_as_what_it_is(page: Page, client: Client, log: CommitLog) -> None:
    topic = log.create_topic("kinds")
    topic.append(
        b'{"id": 12345678901234567890, "nested": {"list": [1, 2.50, null, "x"]}, "e": {}}', key=b"json"
    )
    topic.append(bytes(range(256)), key=b"\xff\x00", headers=(("h", b"\x01"), ("n", None), ("e", b"")))
    topic.append(None, key=b"gone")
    topic.append(b"", key=None)
    topic.append("plain \u202etxet\u202c text".encode())
    show(page, client, "#/t/kinds/0?order=oldest")
    page.wait_for_selector(".record")
    records = page.locator(".record")
    for index in range(5):
        records.nth(index).locator("button").first.click()
    tree = records.nth(0).locator(".json")
    assert "12345678901234567890" in tree.inner_text() and "2.50" in tree.inner_text()
    tree.get_by_text('"nested"').click()
    assert not tree.get_by_text('"list"').is_visible()
    binary = records.nth(1).inner_text()
    assert "00000010  10 11 12 13 14 15 16 17  18 19" in binary and "0xff00" in binary
    headers = records.nth(1).locator(".headers").inner_text().split("\n")
    assert headers == ["h", "0x01", "n", "null", "e", "empty"]
    assert "null (tombstone)" in records.nth(2).inner_text()
    assert "null (tombstone)" not in records.nth(3).inner_text()
    assert records.nth(3).locator(".line.value").inner_text() == "empty"
    assert records.nth(3).locator(".line.key").inner_text() == "null"
    assert "\\u202etxet\\u202c" in records.nth(4).locator(".line.value").inner_text()


def test_hostile_records_stay_text(page: Page, client: Client, log: CommitLog) -> None:
    topic = log.create_topic("hostile")
    for text in HOSTILE:
        topic.append(text.encode(), key=text.encode(), headers=((text, text.encode()),))
        topic.append(json.dumps({text: [text]}).encode(), key=text.encode())
        log.commit_offsets(text, {TopicPartition("hostile", 0): 0})
    show(page, client, "#/t/hostile/0?order=oldest")
    page.wait_for_selector(".record")
    records = page.locator(".record")
    assert records.count() == 2 * len(HOSTILE)
    for index in range(records.count()):
        records.nth(index).locator("button").first.click()
    shown = page.locator("main").inner_text()
    for text in HOSTILE:
        assert shown.count(text) >= 5, text
    show(page, client, "#/groups")
    page.get_by_text(HOSTILE[0]).click()
    expect_text(page, "hostile-0")
    assert page.locator("h1").inner_text() == HOSTILE[0]
    show(page, client, "#/live/hostile")
    expect_text(page, "live, 1 partition")
    for text in HOSTILE:
        topic.append(text.encode(), key=text.encode())
    until(page, f"document.querySelectorAll('.record').length === {len(HOSTILE)}")
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script, main iframe, main svg[onload]").count() == 0


def test_no_string_can_become_html_in_this_page(page: Page, client: Client, problems: list[str]) -> None:
    show(page, client, "")
    refused = """() => {
        try { document.body.innerHTML = "<b>x</b>"; return "done"; } catch (error) { return error.name; }
    }"""
    assert page.evaluate(refused) == "TypeError"
    assert "TrustedHTML" in problems.pop()


def test_nothing_is_loaded_from_elsewhere(page: Page, client: Client, log: CommitLog) -> None:
    orders(log)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for where, filled in VIEWS.items():
        show(page, client, where)
        page.wait_for_selector(filled)
    assert asked and all(url.startswith(client.url) for url in asked)


def test_records_are_found_by_key_by_offset_and_by_time(page: Page, client: Client, log: CommitLog) -> None:
    topic = orders(log)
    topic.append(b"late", key=b"carol", timestamp=4_000_000_000_000, partition=0)
    show(page, client, "#/t/orders/0")
    page.wait_for_selector(".record")
    page.get_by_label("Key", exact=True).fill("alice")
    page.get_by_role("button", name="Show", exact=True).click()
    expect_text(page, "Found 4")
    offsets = page.locator(".record .offset")
    assert [offsets.nth(index).inner_text() for index in range(4)] == ["150", "100", "50", "0"]
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Order").select_option("oldest")
    page.get_by_label("From offset").fill("120")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.record .offset')?.textContent === '120'")
    page.get_by_label("From time").fill("2090-01-01T00:00:00.000")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.record .offset')?.textContent === '200'")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Value contains").fill("nothing like this")
    page.keyboard.press("Enter")
    expect_text(page, "No record matches.")


def test_a_key_is_found_in_its_partition(page: Page, client: Client, log: CommitLog) -> None:
    topic = log.create_topic("t", 8)
    for number in range(100):
        topic.append(b"value %d" % number, key=b"key %d" % number)
    show(page, client, "#/t/t")
    page.get_by_label("Find a key").fill("key 42")
    page.keyboard.press("Enter")
    expect_text(page, "Found 1")
    expect_text(page, "value 42")


def test_the_live_tail_shows_what_is_appended_and_can_be_held(
    page: Page, client: Client, log: CommitLog
) -> None:
    topic = log.create_topic("t", 2)
    topic.append(b"before", partition=0)
    show(page, client, "#/live/t")
    expect_text(page, "live, 2 partitions")
    topic.append(b"after", partition=1)
    expect_text(page, "after")
    assert page.get_by_text("before", exact=True).count() == 0
    page.get_by_role("button", name="Pause").click()
    topic.append(b"held", partition=0)
    expect_text(page, "1 held back")
    assert page.locator(".record").count() == 1
    page.get_by_role("button", name="Resume").click()
    expect_text(page, "held")
    assert page.locator(".record").first.inner_text().startswith("p0")


def test_rates_and_new_records_show_up_by_themselves(page: Page, client: Client, log: CommitLog) -> None:
    topic = orders(log)
    show(page, client, "#/t/orders/0")
    page.wait_for_selector(".record")
    for _ in range(30):
        topic.append(b"more", partition=0)
    expect_text(page, "30 newer records: show")
    until(page, "/^[1-9]/.test(document.querySelector('.stats .rate span').textContent)")
    page.get_by_text("30 newer records: show").click()
    until(page, "document.querySelector('.record .offset')?.textContent === '229'")


def test_groups_show_members_and_lag(page: Page, client: Client, log: CommitLog) -> None:
    fill(log.create_topic("t").partition(0), 10)
    log.commit_offsets("billing", {TopicPartition("t", 0): 4})
    with log.consumer("t", group_id="workers", client_id="one") as consumer:
        consumer.poll(1.0)
        show(page, client, "#/groups")
        expect_text(page, "2 consumer groups")
        assert page.locator("tr", has_text="workers").get_by_text("Stable").is_visible()
        page.get_by_role("link", name="billing").click()
        expect_text(page, "The group has no members at the moment.")
        row = page.locator("tr", has_text="t-0").inner_text().split()
        assert row[:4] == ["t-0", "4", "10", "6"]


def test_an_error_is_shown_as_a_sentence_and_goes_when_it_is_over(
    page: Page, client: Client, log: CommitLog
) -> None:
    log.create_topic("t")
    show(page, client, "")
    page.route("**/api/topics**", lambda route: route.fulfill(status=200, body="not JSON"))
    page.wait_for_selector("#problem")
    assert "not JSON" in page.locator("#problem").inner_text()
    page.unroute("**/api/topics**")
    page.wait_for_selector("#problem", state="detached")


@pytest.mark.parametrize("width", [360, 768])
def test_a_small_window_needs_no_scrolling_sideways(
    page: Page, client: Client, log: CommitLog, width: int
) -> None:
    orders(log)
    page.set_viewport_size({"width": width, "height": 700})
    for where, filled in VIEWS.items():
        show(page, client, where)
        page.wait_for_selector(filled)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, where


def test_an_address_that_makes_no_sense_shows_the_topics(page: Page, client: Client, log: CommitLog) -> None:
    log.create_topic("t")
    for where in ("#/t/%ZZ", "#/nothing", "#/t/a/b/c"):
        show(page, client, where)
        expect_text(page, "1 topic")


def test_dark_and_light_follow_the_system(page: Page, client: Client) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        show(page, client, "")
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_a_huge_value_is_cut_until_all_of_it_is_asked_for(page: Page, client: Client, log: CommitLog) -> None:
    log.create_topic("huge").append(b"x" * 500_000)
    show(page, client, "#/t/huge/0")
    page.wait_for_selector(".record")
    page.locator(".record button").first.click()
    expect_text(page, "showing the first 2.0 KiB")
    page.get_by_role("button", name="Show all").click()
    until(page, "document.querySelector('pre.content')?.textContent.length === 500000")


def test_a_page_that_only_looks_offers_no_change(page: Page, client: Client, log: CommitLog) -> None:
    orders(log)
    show(page, client, "#/t/orders/0")
    page.wait_for_selector(".record")
    expect_text(page, "read-only")
    for name in ("Append", "Trim", "Roll", "Compact"):
        assert page.get_by_role("button", name=name).count() == 0


def test_a_writable_page_asks_before_it_changes_anything(
    page: Page, writable: Client, log_path: Path
) -> None:
    with commitlog.open(log_path, mode="shared") as log:
        partition = log.create_topic("t", config={"cleanup_policy": "compact"}).partition(0)
        log.commit_offsets("g", {TopicPartition("t", 0): 0})
        show(page, writable, "#/t/t/0")
        page.get_by_role("button", name="Append").click()
        dialog = page.locator("dialog")
        dialog.get_by_label("Key", exact=True).fill("alice")
        dialog.get_by_label("Value", exact=True).fill("three apples")
        dialog.get_by_label("Headers").fill("trace: 7f")
        assert partition.next_offset == 0
        dialog.get_by_role("button", name="Append").click()
        expect_text(page, "Appended at offset 0 of partition 0.")
        (record,) = partition.records()
        assert (record.key, record.value, record.headers) == (b"alice", b"three apples", (("trace", b"7f"),))
        dialog.get_by_role("button", name="Close").click()

        page.get_by_role("button", name="Roll").click()
        dialog.get_by_role("button", name="Roll").click()
        expect_text(page, "The partition now has 2 segments.")
        dialog.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Trim").click()
        dialog.get_by_role("button", name="Cancel").click()
        assert partition.start_offset == 0
        page.get_by_role("button", name="Trim").click()
        dialog.get_by_label("Remove records below offset").fill("1")
        dialog.get_by_role("button", name="Remove").click()
        expect_text(page, "start_offset is now 1.")
        dialog.get_by_role("button", name="Close").click()

        show(page, writable, "#/g/g")
        page.get_by_role("button", name="Reset offsets").click()
        dialog.get_by_label("Continue from").select_option("latest")
        dialog.get_by_role("button", name="Reset").click()
        expect_text(page, "1 partition reset.")
        assert log.describe_group("g").partitions[0].lag == 0
