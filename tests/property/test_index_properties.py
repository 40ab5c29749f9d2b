from __future__ import annotations

import tempfile
from bisect import bisect_right
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from commitlog.index import IndexEntry, OffsetIndex, TimeIndex

BASE = 1_000
LIMIT = 1 << 20

steps = st.lists(st.tuples(st.integers(1, 5_000), st.integers(1, 200), st.integers(1, 10_000)), max_size=60)


def entries_of(given_steps: list[tuple[int, int, int]]) -> list[IndexEntry]:
    """Entries whose timestamps, offsets and positions only grow."""
    found: list[IndexEntry] = []
    timestamp, offset, position = 0, BASE, 0
    for later, further, bytes_ in given_steps:
        timestamp, offset, position = timestamp + later, offset + further, position + 8 * bytes_
        found.append(IndexEntry(offset, position, timestamp))
    return found


def floor(keys: list[int], entries: list[IndexEntry], wanted: int) -> IndexEntry:
    """What a sorted map would answer."""
    number = bisect_right(keys, wanted)
    return entries[number - 1] if number else IndexEntry(BASE, 0)


def filled(kind: Any, directory: str, entries: list[IndexEntry]) -> Any:
    index = kind.open_writable(str(Path(directory) / f"{BASE:020d}{kind.suffix}"), LIMIT)
    for entry in entries:
        put(index, entry)
    return index


def put(index: Any, entry: IndexEntry) -> None:
    if isinstance(index, TimeIndex):
        index.append(entry.timestamp, entry.offset, entry.position)
    else:
        index.append(entry.offset, entry.position)


@given(steps, st.lists(st.integers(0, 15_000)))
def test_looking_up_an_offset_is_a_floor_lookup_in_a_sorted_map(given_steps: Any, wanted: list[int]) -> None:
    entries = [IndexEntry(entry.offset, entry.position) for entry in entries_of(given_steps)]
    keys = [entry.offset for entry in entries]
    with tempfile.TemporaryDirectory() as directory:
        index = filled(OffsetIndex, directory, entries)
        for one in (index, OffsetIndex.open(index.path)):
            for offset in (*wanted, *keys, *(key - 1 for key in keys), *(key + 1 for key in keys)):
                assert one.lookup(offset) == floor(keys, entries, offset)


@given(steps, st.lists(st.integers(0, 400_000)))
def test_looking_up_a_time_is_a_floor_lookup_in_a_sorted_map(given_steps: Any, wanted: list[int]) -> None:
    entries = entries_of(given_steps)
    keys = [entry.timestamp or 0 for entry in entries]
    with tempfile.TemporaryDirectory() as directory:
        index = filled(TimeIndex, directory, entries)
        for one in (index, TimeIndex.open(index.path)):
            for timestamp in (*wanted, *keys, *(key - 1 for key in keys), *(key + 1 for key in keys)):
                assert one.lookup(timestamp) == floor(keys, entries, timestamp)


@given(steps, st.sampled_from([OffsetIndex, TimeIndex]), st.data())
def test_a_truncated_index_is_the_front_of_it_and_grows_again(
    given_steps: Any, kind: Any, data: st.DataObject
) -> None:
    entries = entries_of(given_steps)
    with tempfile.TemporaryDirectory() as directory:
        index = filled(kind, directory, entries)
        for _ in range(3):
            position = data.draw(st.integers(0, (entries[-1].position if entries else 0) + 16))
            index.truncate(position)
            kept = [entry for entry in entries if entry.position < position]
            assert [(index[n].offset, index[n].position) for n in range(len(index))] == [
                (entry.offset, entry.position) for entry in kept
            ]
            assert len(kind.open(index.path)) == len(kept)
            for entry in entries[len(kept) :]:
                put(index, entry)
        assert len(index) == len(entries)
        assert index.in_order()
