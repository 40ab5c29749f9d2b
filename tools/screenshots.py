"""Take the screenshots of docs/ui.md: a log in use, shown in Debian's chromium.

python tools/screenshots.py [FOLDER] [--all]
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

import commitlog
from commitlog.ui.server import Server

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
NAMES = ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"]
FRUIT = ["apples", "pears", "plums", "cherries", "figs"]


def order(number: int, dice: random.Random) -> bytes:
    """Return an order as JSON."""
    customer = dice.choice(NAMES)
    items = [{"sku": dice.choice(FRUIT), "count": dice.randint(1, 9)} for _ in range(dice.randint(1, 3))]
    about = {"id": 2**60 + number, "customer": customer, "items": items, "paid": dice.random() < 0.8}
    return json.dumps(about).encode()


def fill(log: commitlog.CommitLog, dice: random.Random) -> None:
    """Create four topics: one with many segments, a compacted, a small and an empty one."""
    now = time.time_ns() // 1_000_000
    orders = log.create_topic("orders", 6, {"segment_bytes": 150_000, "retention_ms": -1})
    for index, partition in enumerate(orders.partitions):
        count = (3 + index * 2) * 1000
        values = [order(number, dice) for number in range(count)]
        keys = [json.loads(value)["customer"].encode() for value in values]
        times = [now - (count - number) * 900 for number in range(count)]
        for at in range(0, count, 250):
            part = slice(at, at + 250)
            headers = [(("trace", b"%016x" % dice.getrandbits(64)), ("source", b"web"))] * 250
            partition.append_many(values[part], keys=keys[part], timestamps=times[part], headers=headers)
    orders.partition(2).trim_before(1500)
    users = log.create_topic(
        "users", 2, {"cleanup_policy": "compact", "segment_bytes": 36_000, "min_cleanable_dirty_ratio": 1.0}
    )
    for number in range(6000):
        about = {"name": dice.choice(NAMES), "visits": number, "likes": dice.sample(FRUIT, 2), "admin": False}
        value = None if dice.random() < 0.1 else json.dumps(about).encode()
        users.append(value, key=b"user-%d" % dice.randint(0, 1500), headers=[("source", b"web")])
        if number == 3600:
            for partition in users.partitions:
                partition.compact()
    frames = log.create_topic("camera-frames", 1, {"segment_bytes": 400_000})
    for _ in range(60):
        frames.append(b"\x89FRM" + dice.randbytes(20_000), key=b"door")
    log.create_topic("audit")
    for group, share in (("billing", 0.97), ("analytics", 0.6), ("fraud-check", 1.0)):
        ends = [(number, one.next_offset) for number, one in enumerate(orders.partitions)]
        log.commit_offsets(
            group, {commitlog.TopicPartition("orders", number): int(end * share) for number, end in ends}
        )


@contextmanager
def busy(log: commitlog.CommitLog) -> Iterator[None]:
    """Keep appending orders, and read them with a consumer."""
    ending, dice = threading.Event(), random.Random(2)

    def write() -> None:
        number = 1_000_000
        while not ending.wait(0.05 + dice.random() * 0.15):
            for _ in range(dice.randint(1, 25)):
                number += 1
                value = order(number, dice)
                log.topic("orders").append(value, key=json.loads(value)["customer"].encode())

    def read() -> None:
        with log.consumer("orders", group_id="fraud-check", client_id="fraud") as consumer:
            while not ending.is_set():
                consumer.poll(0.2)

    threads = [threading.Thread(target=one) for one in (write, read)]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        ending.set()
        for one in threads:
            one.join()


def partition_shot(page: Page) -> None:
    """Open a segment and a record of a partition."""
    page.locator(".strip.big .bar").nth(9).click()
    page.wait_for_selector("text=Timestamps")
    page.locator(".record > button").nth(1).click()


SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "topics": ("#/", {}),
    "topic": ("#/t/orders", {"height": 620, "wait": 25.0}),
    "partition": ("#/t/users/0", {"act": partition_shot, "height": 1000, "wait": 5.0}),
    "partition-dark": ("#/t/orders/5", {"act": partition_shot, "dark": True}),
    "compacted": ("#/t/users/0", {}),
    "binary": ("#/t/camera-frames/0", {"act": lambda page: page.locator(".record > button").first.click()}),
    "search": ("#/t/orders/1?key=alice&contains=figs", {}),
    "live-dark": ("#/live/orders", {"dark": True, "wait": 2.0, "height": 600}),
    "groups": ("#/groups", {}),
    "group": ("#/g/analytics", {}),
    "small": ("#/t/orders/5", {"act": partition_shot, "width": 390}),
    "small-topics": ("#/", {"width": 390, "dark": True}),
    "empty": ("#/t/audit/0", {}),
}
KEPT = ("partition", "topic", "live-dark")


def take(url: str, folder: Path, names: list[str]) -> None:
    """Take screenshots of the served page."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        for name in names:
            address, how = SHOTS[name]
            context = browser.new_context(
                viewport={"width": how.get("width", 1200), "height": how.get("height", 820)},
                color_scheme="dark" if how.get("dark") else "light",
                timezone_id="UTC",
                reduced_motion="reduce",
            )
            page = context.new_page()
            page.goto(url + address)
            page.wait_for_timeout(int(how.get("wait", 9.0) * 1000))  # so that rates have a history
            if "act" in how:
                how["act"](page)
                page.wait_for_timeout(300)
            page.screenshot(path=str(folder / f"ui-{name}.png"))
            context.close()
        browser.close()


def main() -> None:
    """Fill a log, serve its page, and take the screenshots."""
    arguments = [one for one in sys.argv[1:] if one != "--all"]
    folder = Path(arguments[0]) if arguments else IMAGES
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "shop-log"
        with commitlog.open(path) as log:
            fill(log, random.Random(1))
            with busy(log), commitlog.open(path, mode="r") as reader:
                server = Server(reader)
                thread = threading.Thread(target=server.run)
                thread.start()
                try:
                    take(server.url, folder, list(SHOTS) if "--all" in sys.argv else list(KEPT))
                finally:
                    server.stop()
                    thread.join()


if __name__ == "__main__":
    main()
