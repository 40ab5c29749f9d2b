"""What readers must see of transactions, told by a list of what was written and a fate for each transaction.

The model does not guess offsets. It looks at every batch that is stored, and each must be explained: a record
is the next one that its transaction, or somebody outside transactions, wrote there, and a marker says what
was decided. What readers of each level then see follows from the list alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Row = tuple[bytes | None, bytes | None]  # a key and a value
Seen = tuple[int, bytes | None, bytes | None]  # an offset, a key and a value
# "doubt": its owner died while it committed; the first marker tells how it ended
Fate = Literal["open", "committed", "aborted", "doubt"]


@dataclass(eq=False)
class Txn:
    """A transaction: what it was asked to write, by partition, and what became of it."""

    label: str
    key: tuple[int, int]  # producer id and epoch
    fate: Fate = "open"
    waiting: dict[str, list[Row]] = field(default_factory=dict)  # not stored yet, in order
    cut: bool = False  # whether a truncation removed some of it
    left: bool = False  # whether its owner is dead: it may only be aborted

    def wants(self, partition: str, rows: Iterable[Row]) -> None:
        self.waiting.setdefault(partition, []).extend(rows)


@dataclass(eq=False)
class Entry:
    """A stored record, or a marker."""

    offset: int
    key: bytes | None
    value: bytes | None
    txn: Txn | None
    marker: bool = False
    plain: bool = False  # whether compaction has made it a record outside transactions


class Place:
    """One partition of the model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: list[Entry] = []
        self.start = self.next = 0
        self.waiting: list[Row] = []  # written outside transactions, not seen yet
        self.may_go: dict[int, int] = {}  # markers that a pass has seen, and the earliest time they may go
        self.trimmed: dict[Txn, int] = {}  # first offsets of those with records below start, no marker there

    def decided_here(self) -> set[Txn]:
        return {one.txn for one in self.entries if one.marker and one.txn is not None}

    def open_here(self) -> dict[Txn, int]:
        """The transactions without a marker here, and the offset of their first record."""
        ended, found = self.decided_here(), dict[Txn, int]()
        for one in self.entries:
            if one.txn is not None and not one.plain and not one.marker and one.txn not in ended:
                found.setdefault(one.txn, one.offset)
        return found

    def stable(self) -> set[int]:
        """Where readers of committed records may stop."""
        first = min(self.open_here().values(), default=self.next)
        # whether a transaction is open whose records were all trimmed, a restart may have forgotten
        ended = self.decided_here()
        others = {max(offset, self.start) for txn, offset in self.trimmed.items() if txn not in ended}
        return {first, *(min(first, one) for one in others)}

    # --- what readers see

    def uncommitted(self) -> list[Seen]:
        return [(one.offset, one.key, one.value) for one in self.entries if not one.marker]

    def committed(self, end: int | None = None) -> list[Seen]:
        """What is committed below `end`, and has its marker."""
        still_open = self.open_here()
        return [
            (one.offset, one.key, one.value)
            for one in self.entries
            if not one.marker and self.counts(one) and (one.plain or one.txn not in still_open)
            and (end is None or one.offset < end)
        ]  # fmt: skip

    def counts(self, one: Entry) -> bool:
        return one.txn is None or one.plain or one.txn.fate == "committed"

    def latest(self, rows: Iterable[Seen]) -> dict[bytes, bytes]:
        found = {key: value for _, key, value in rows if key is not None}
        return {key: value for key, value in found.items() if value is not None}

    # --- what happens to it

    def trim(self, offset: int) -> None:
        for one in self.entries:
            if one.offset < offset and one.txn is not None:
                if one.marker:
                    self.trimmed.pop(one.txn, None)
                elif not one.plain:
                    self.trimmed.setdefault(one.txn, one.offset)
        self.start = max(self.start, offset)
        self.entries = [one for one in self.entries if one.offset >= offset]

    def truncate(self, offset: int) -> None:
        gone = [one for one in self.entries if one.offset >= offset]
        self.entries = [one for one in self.entries if one.offset < offset]
        self.next, self.start = offset, min(self.start, offset)
        self.may_go = {at: time for at, time in self.may_go.items() if at < offset}
        for one in gone:
            if one.txn is not None and not one.marker:
                one.txn.cut = True
        self.trimmed = {txn: first for txn, first in self.trimmed.items() if first < offset}

    def compacted(self, stored: list[tuple[int, bool, bool]], clean: int, now: int, retention: int) -> None:
        """Check what a pass left, as (offset, is a marker, is part of a transaction), and take it over."""
        left = {offset: (marker, in_txn) for offset, marker, in_txn in stored}
        stable = min(self.stable())
        latest: dict[bytes | None, int] = {}
        for one in self.entries:
            if not one.marker and self.counts(one) and one.offset < stable:
                latest[one.key] = one.offset
        kept: list[Entry] = []
        there: set[Txn] = set()
        for one in self.entries:
            here = left.pop(one.offset, None)
            if one.marker:
                self._check_marker(one, here, clean, now, retention, there)
            elif here is None:
                assert one.offset < stable, f"{self.name}: offset {one.offset} was not decided yet"
                replaced = latest.get(one.key, -1) > one.offset
                assert replaced or one.value is None or not self.counts(one), (
                    f"{self.name}: the pass lost {one}"
                )
            else:
                one.plain = one.plain or not here[1]
                aborted = not one.plain and one.txn is not None and one.txn.fate == "aborted"
                assert not (one.offset < clean and aborted), f"{self.name}: aborted, and still there: {one}"
                if one.txn is not None and not one.plain:
                    there.add(one.txn)
                assert not one.plain or self.counts_as_plain(one), f"{self.name}: not committed: {one}"
            if here is not None:
                kept.append(one)
        assert not left, f"{self.name}: the pass made {left}"
        self.entries = kept

    def counts_as_plain(self, one: Entry) -> bool:
        return one.txn is None or one.txn.fate == "committed"

    def _check_marker(
        self, one: Entry, here: Any, clean: int, now: int, retention: int, there: set[Txn]
    ) -> None:
        if here is None:
            assert one.txn not in there, f"{self.name}: a marker went before its records: {one}"
            assert self.may_go.get(one.offset, 1 << 62) <= now, f"{self.name}: a marker went early: {one}"
            assert one.txn is not None
            self.trimmed.pop(one.txn, None)
        elif one.offset < clean:
            self.may_go.setdefault(one.offset, now + retention)


class Model:
    """All partitions, and all transactions by producer id and epoch."""

    def __init__(self, names: Iterable[str]) -> None:
        self.places = {name: Place(name) for name in names}
        self.txns: dict[tuple[int, int], Txn] = {}

    def begin(self, label: str, key: tuple[int, int]) -> Txn:
        assert key not in self.txns, "every transaction has an epoch of its own"
        txn = self.txns[key] = Txn(label, key)
        return txn

    def everybody_died(self, *, exclusive: bool) -> None:
        """Nobody goes on with what was open; what is not stored never will be."""
        for txn in self.txns.values():
            if txn.fate == "open":
                txn.left = True
                txn.waiting = {}
                if exclusive:
                    txn.fate = "aborted"
        for place in self.places.values():
            place.waiting = []

    def look(self, name: str, batches: Iterator[Any]) -> None:
        """Explain what was stored since the last look."""
        place = self.places[name]
        for batch in batches:
            header = batch.header
            assert header.base_offset == place.next, f"{name}: offset {header.base_offset}, not {place.next}"
            if header.is_marker:
                self._explain_marker(place, header)
            else:
                self._explain_records(place, header, list(batch.records()))
            place.next = header.next_offset

    def _explain_marker(self, place: Place, header: Any) -> None:
        txn = self.txns.get((header.producer_id, header.producer_epoch))
        assert txn is not None, f"{place.name}: a marker of nobody at offset {header.base_offset}"
        fate, ended = txn.fate, "committed" if header.commits else "aborted"
        first = place.open_here().get(txn, place.trimmed.get(txn))
        assert first is not None or txn.cut, f"{place.name}: {txn} ends where it is not open"
        if fate == "doubt":
            txn.fate = ended  # type: ignore[assignment]
        elif fate == "open" and txn.left:
            assert ended == "aborted", f"{place.name}: {txn} is committed, and nobody asked for it"
            txn.fate = "aborted"
        else:
            assert fate == ended, f"{place.name}: {txn} is {fate}, its marker says {ended}"
        place.entries.append(Entry(header.base_offset, None, None, txn, marker=True))

    def _explain_records(self, place: Place, header: Any, records: list[Any]) -> None:
        txn, waiting = None, place.waiting
        if header.is_transactional:
            txn = self.txns.get((header.producer_id, header.producer_epoch))
            assert txn is not None, f"{place.name}: records of nobody at offset {header.base_offset}"
            assert txn not in place.decided_here(), f"{place.name}: {txn} writes after its end"
            waiting = txn.waiting.get(place.name, [])
        for record in records:
            row = record.key, record.value
            assert waiting and waiting[0] == row, f"{place.name}: {row} at {record.offset}, not {waiting[:1]}"
            waiting.pop(0)
            place.entries.append(Entry(record.offset, *row, txn))

    def check_fates(self) -> None:
        """What is committed is stored, all of it; call this after every look at all partitions."""
        for txn in self.txns.values():
            if txn.fate == "committed":
                missing = {name: rows for name, rows in txn.waiting.items() if rows}
                assert not missing, f"{txn} is committed without {missing}"

    def is_open_anywhere(self, txn: Txn) -> bool:
        return any(txn in place.open_here() for place in self.places.values())
