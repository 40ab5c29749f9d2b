"""The activity of a website's visitors: recorded as it happens, watched live, and counted in bulk.

The site sends every view, search and click with the visitor as key, so that everything a visitor does is in
one partition, in order. A dashboard reads along; a nightly job reads the same records as Arrow columns.

    python examples/website_activity.py
"""

import json
import random
import tempfile
from collections import Counter

import pyarrow.compute as pc

import commitlog

PAGES = ["/", "/apples", "/pears", "/plums", "/basket", "/checkout"]
KINDS = ["views", "searches", "clicks"]
MIDNIGHT = 1_785_542_400_000  # 2026-08-01, in milliseconds
HOUR = 3_600_000


def visits(count: int) -> list[tuple[int, str, str, dict[str, str]]]:
    """Invent a day of activity: time, kind, visitor and page."""
    chance = random.Random(7)
    times = sorted(MIDNIGHT + chance.randrange(24 * HOUR) for _ in range(count))
    found = []
    for time in times:
        kind = chance.choices(KINDS, [8, 1, 3])[0]
        page = chance.choices(PAGES, [9, 5, 4, 3, 2, 1])[0]
        found.append((time, kind, f"visitor-{chance.randrange(500)}", {"page": page}))
    return found


def serve(log: commitlog.CommitLog, count: int) -> None:
    """The website: sends a record for each action of a visitor; they are appended in batches."""
    with log.producer(
        key_serializer=str.encode, value_serializer=lambda what: json.dumps(what).encode()
    ) as producer:
        for time, kind, visitor, what in visits(count):
            producer.send(f"activity-{kind}", what, visitor, timestamp=time)


def watch(path: str) -> None:
    """The dashboard, in a separate process if you like: counts new records of all topics of a pattern."""
    with commitlog.open(path, mode="r") as log, log.consumer(group_id="dashboard") as consumer:
        consumer.subscribe(pattern="activity-.*")
        seen = Counter[str]()
        while found := consumer.poll_batches(timeout=0.2):
            for partition, batches in found.items():
                seen[partition.topic] += sum(len(batch) for batch in batches)
    for topic, count in seen.most_common():
        print(f"  {topic:18} {count:6}")


def count_pages(log: commitlog.CommitLog) -> None:
    """The nightly job: reads columns instead of records, and appends its result to another topic."""
    pages = Counter[str]()
    for partition in log.topic("activity-views").partitions:
        for batch in partition.to_reader(columns=["value"]):
            page = pc.extract_regex(batch["value"].cast("string"), r'"page": "(?P<page>[^"]*)"')
            for found in pc.value_counts(pc.struct_field(page, "page")).to_pylist():
                pages[found["values"]] += found["counts"]
    top = pages.most_common(3)
    counts, keys = [b"%d" % count for _, count in top], [page.encode() for page, _ in top]
    log.topic("top-pages").append_many(counts, keys=keys)


def path_of(log: commitlog.CommitLog, visitor: str) -> list[str]:
    """Return everything that one visitor looked at, in order, from a single partition."""
    views = log.topic("activity-views")
    for partition in views.partitions:
        found = [json.loads(one.value)["page"] for one in partition.records() if one.key == visitor.encode()]
        if found:
            return found
    return []


def main(path: str) -> None:
    with commitlog.open(path) as log:
        for kind in KINDS:
            log.create_topic(f"activity-{kind}", partitions=4, config={"retention_ms": -1})
        log.create_topic("top-pages", config={"cleanup_policy": "compact"})

        serve(log, 60_000)
        print("the dashboard sees")
        watch(path)
        print("its lag:", sum(one.lag for one in log.describe_group("dashboard").partitions))

        count_pages(log)
        print("the most wanted pages")
        for page, count in log.topic("top-pages").latest().items():
            print(f"  {page.decode():18} {count.decode():>6}")
        print("visitor-42 began with", ", ".join(path_of(log, "visitor-42")[:5]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(directory)
