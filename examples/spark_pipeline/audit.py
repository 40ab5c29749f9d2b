"""The audit: is every event counted exactly once, in every window? It reads the log without Spark.

It computes the expected result from the raw events, in plain Python.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import events

import commitlog

WINDOW_MS, LATE_MS = 10 * events.MINUTE_MS, 15 * events.MINUTE_MS
Window = tuple[int, str]  # where it starts, and a category


@dataclass
class Audit:
    """Expected and actual counts, by window and category."""

    raw: int = 0
    duplicates: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    expected: Counter[Window] = field(default_factory=Counter)
    clean: Counter[Window] = field(default_factory=Counter)
    table: Counter[Window] = field(default_factory=Counter)
    archive: Counter[Window] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def check(self, so: bool, problem: str) -> None:
        """Note a problem, unless `so`."""
        if not so:
            self.problems.append(problem)


def audit(log: commitlog.CommitLog, archived: Iterable[tuple[int, str, int]]) -> Audit:
    """Compare every window; `archived` is (start, category, views) of each row in Parquet."""
    found = Audit()
    expect(log, found)
    look_at_clean(log, found)
    for value in log.topic("views").latest().values():
        row = json.loads(value)
        found.table[row["start"], row["category"]] = row["views"]
    for start, category, views in archived:
        found.check((start, category) not in found.archive, f"{start} {category} is archived twice")
        found.archive[start, category] = views
    compare(found)
    return found


def expect(log: commitlog.CommitLog, found: Audit) -> None:
    """Compute what the pipeline should make of the raw events."""
    seen: set[str] = set()
    for partition in log.topic("raw").partitions:
        for record in partition.records():
            found.raw += 1
            view = parsed(record.value)
            if view is None:
                found.rejected["malformed"] += 1
            elif view["time"] < record.timestamp - LATE_MS:
                found.rejected["late"] += 1
            elif view["page"] not in events.PAGES:
                found.rejected["unknown page"] += 1
            elif view["id"] in seen:
                found.duplicates += 1
            else:
                seen.add(view["id"])
                found.expected[window(view["time"]), events.PAGES[view["page"]]] += 1


def parsed(value: bytes) -> dict[str, Any] | None:
    """Return a page view, or None if the record is not one."""
    try:
        view: dict[str, Any] = json.loads(value)
        return view if {"id", "user", "page"} < view.keys() and isinstance(view["time"], int) else None
    except (ValueError, KeyError):
        return None


def window(time_ms: int) -> int:
    """Return the start of the window that contains a time."""
    return time_ms // WINDOW_MS * WINDOW_MS


def look_at_clean(log: commitlog.CommitLog, found: Audit) -> None:
    """Count clean and rejected events; none may occur twice."""
    ids: set[str] = set()
    for partition in log.topic("clean").partitions:
        for record in partition.records():
            view = json.loads(record.value)
            found.check(view["id"] not in ids, f"{view['id']} is clean twice")
            ids.add(view["id"])
            found.clean[window(view["time"]), view["category"]] += 1
    reasons: Counter[str] = Counter()
    for partition in log.topic("rejected").partitions:
        reasons.update(dict(record.headers)["reason"].decode() for record in partition.records())
    found.check(reasons == found.rejected, f"rejected {reasons}, should be {found.rejected}")


def compare(found: Audit) -> None:
    """Check that every window is right in the topic and in the table, and in Parquet if it is final."""
    for name in ("clean", "table"):
        counted = getattr(found, name)
        for at in found.expected.keys() | counted.keys():
            wrong = f"{name}: {at} has {counted[at]} views, should have {found.expected[at]}"
            found.check(counted[at] == found.expected[at], wrong)
    for at, views in found.archive.items():
        found.check(views == found.expected[at], f"archive: {at} has {views}, not {found.expected[at]}")
    final = max(start for start, _ in found.expected) - 2 * events.HOUR_MS
    for at in found.expected:
        found.check(at[0] >= final or at in found.archive, f"archive: {at} is missing")
    total = sum(found.clean.values()) + sum(found.rejected.values()) + found.duplicates
    found.check(total == found.raw, f"{found.raw} went in, {total} are accounted for")
