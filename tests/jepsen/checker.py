"""What a history of appends and reads proves: Jepsen's checks for queues, for a log with offsets.

Pure: a history goes in, a list of findings comes out. Times are of one clock. An append is acknowledged when
its caller got its offsets. If the caller got an error, the append may be in the log or not, but not twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

FOREVER = 1 << 62
Place = tuple[int, int]  # partition and offset


@dataclass(frozen=True)
class Append:
    """One append of a batch; `first_offset` is None if its end is not known."""

    partition: int
    values: tuple[str, ...]
    invoked: int
    returned: int = FOREVER
    first_offset: int | None = None


@dataclass(frozen=True)
class Read:
    """What one read returned, in the order in which it came."""

    partition: int
    records: tuple[tuple[int, str], ...]  # offset and value


@dataclass(frozen=True)
class History:
    """All that clients did, and what each replica holds in the end: offsets and values by partition."""

    appends: Sequence[Append]
    reads: Sequence[Read]
    replicas: Mapping[str, Mapping[int, Sequence[tuple[int, str]]]]


@dataclass(frozen=True)
class Finding:
    """Something that must never happen."""

    kind: str  # lost, duplicate, out of order, read then gone, never appended, torn batch, replicas differ
    what: str


def check(history: History) -> list[Finding]:
    """Return everything that is wrong, in an order that is the same each time."""
    final = _final(history)
    places = _places(final)
    return [
        *_replicas_differ(history),
        *_holes(final),
        *_lost(history.appends, final),
        *_duplicate(places),
        *_never_appended(history, places),
        *_torn(history.appends, places),
        *_out_of_order(history.appends, places),
        *_read_out_of_order(history.reads),
        *_read_then_gone(history.reads, final),
    ]


def _final(history: History) -> dict[Place, str]:
    """What the first replica holds; that all hold the same is checked apart."""
    first = next(iter(history.replicas.values()), {})
    return {(number, offset): value for number, records in first.items() for offset, value in records}


def _places(final: Mapping[Place, str]) -> dict[str, list[Place]]:
    places: dict[str, list[Place]] = {}
    for place, value in final.items():
        places.setdefault(value, []).append(place)
    return places


def _replicas_differ(history: History) -> Iterable[Finding]:
    names = list(history.replicas)
    for name in names[1:]:
        for number, expected in history.replicas[names[0]].items():
            found = history.replicas[name].get(number, [])
            if list(found) != list(expected):
                pairs = zip([*expected, None], [*found, None], strict=False)
                where = next((pair for pair in pairs if pair[0] != pair[1]), None)
                yield Finding("replicas differ", f"partition {number} of {names[0]} and {name}: {where}")


def _holes(final: Mapping[Place, str]) -> Iterable[Finding]:
    ends: dict[int, int] = {}
    for number, offset in sorted(final):
        if offset != ends.get(number, 0):
            yield Finding(
                "lost", f"no record has an offset from {ends.get(number, 0)} to {offset - 1} of {number}"
            )
        ends[number] = offset + 1


def _lost(appends: Sequence[Append], final: Mapping[Place, str]) -> Iterable[Finding]:
    for one in appends:
        if one.first_offset is None:
            continue
        for offset, value in enumerate(one.values, one.first_offset):
            found = final.get((one.partition, offset))
            if found != value:
                yield Finding(
                    "lost", f"{value} was acknowledged at {one.partition}@{offset}, where {found} is"
                )


def _duplicate(places: Mapping[str, list[Place]]) -> Iterable[Finding]:
    for value, found in places.items():
        if len(found) > 1:
            yield Finding("duplicate", f"{value} is at {found}")


def _never_appended(history: History, places: Mapping[str, list[Place]]) -> Iterable[Finding]:
    known = {value for one in history.appends for value in one.values}
    read = {value for one in history.reads for _, value in one.records}
    for value in sorted((places.keys() | read) - known):
        yield Finding("never appended", value)


def _torn(appends: Sequence[Append], places: Mapping[str, list[Place]]) -> Iterable[Finding]:
    """A batch is in the log as a whole, side by side, or not at all."""
    for one in appends:
        found = [places[value][0] for value in one.values if value in places]
        if not found:
            continue
        expected = [(one.partition, found[0][1] + number) for number in range(len(one.values))]
        if found != expected:
            yield Finding("torn batch", f"{one.values} is at {found}")


def _out_of_order(appends: Sequence[Append], places: Mapping[str, list[Place]]) -> Iterable[Finding]:
    """An append that began after another was acknowledged has the higher offsets."""
    stored = [(places[one.values[0]][0], one) for one in appends if one.values[0] in places]
    earliest: dict[int, Append] = {}  # of those at higher offsets, the one that was acknowledged first
    for (number, offset), one in sorted(stored, key=lambda pair: pair[0], reverse=True):
        after = earliest.get(number)
        if after is not None and after.returned < one.invoked:
            later = after.values[0]
            what = f"{one.values[0]} at {number}@{offset} began after {later} was acknowledged behind it"
            yield Finding("out of order", what)
        if after is None or one.returned < after.returned:
            earliest[number] = one


def _read_out_of_order(reads: Sequence[Read]) -> Iterable[Finding]:
    for one in reads:
        offsets = [offset for offset, _ in one.records]
        if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            kind = "duplicate" if max(Counter(offsets).values()) > 1 else "out of order"
            yield Finding(kind, f"a read of partition {one.partition} returned the offsets {offsets}")


def _read_then_gone(reads: Sequence[Read], final: Mapping[Place, str]) -> Iterable[Finding]:
    seen: set[tuple[Place, str]] = set()
    for one in reads:
        for offset, value in one.records:
            place = (one.partition, offset)
            if final.get(place) != value and (place, value) not in seen:
                seen.add((place, value))
                yield Finding("read then gone", f"{value} was read at {place}, where {final.get(place)} is")
