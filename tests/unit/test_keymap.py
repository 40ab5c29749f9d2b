from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog import keymap
from commitlog.keymap import SLOT_BYTES, KeyMap

PLENTY = 1 << 24


def add(keys_map: KeyMap, keys: Sequence[bytes], first: int = 0) -> int:
    return keys_map.add(keys, np.arange(first, first + len(keys)))


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"key %d" % number for number in range(first, first + count)]


def test_an_unknown_key_has_no_offset() -> None:
    keys_map = KeyMap(PLENTY)
    assert keys_map.latest([b"a", b""]).tolist() == [-1, -1]
    add(keys_map, [b"a"])
    assert keys_map.latest([b"b", b"a", b"", b"A"]).tolist() == [-1, 0, -1, -1]


def test_the_last_of_several_offsets_counts_in_one_call_and_over_several() -> None:
    keys_map = KeyMap(PLENTY)
    assert add(keys_map, [b"a", b"b", b"a", b"a", b""]) == 5
    assert add(keys_map, [b"b", b"c", b"b"], 10) == 3
    assert keys_map.latest([b"a", b"b", b"c", b""]).tolist() == [3, 12, 11, 4]
    assert keys_map.used == 4


def test_offsets_may_be_any() -> None:
    keys_map = KeyMap(PLENTY)
    offsets = np.array([0, 1, (1 << 62) - 1, 1 << 62])
    keys_map.add([b"a", b"b", b"c", b"a"], offsets)
    assert keys_map.latest([b"a", b"b", b"c"]).tolist() == [1 << 62, 1, (1 << 62) - 1]
    assert keys_map.into_offsets().tolist() == [1, (1 << 62) - 1, 1 << 62]


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=40), max_size=6),
    st.sampled_from([1, 3 * SLOT_BYTES, 5 * SLOT_BYTES, 20 * SLOT_BYTES, PLENTY]),
)
def test_a_map_is_a_dictionary_that_takes_no_new_key_when_it_is_full(
    calls: list[list[int]], buffer_bytes: int
) -> None:
    keys_map = KeyMap(buffer_bytes)
    known: dict[bytes, int] = {}
    offset = 0
    for call in calls:
        keys = [b"%d" % number for number in call]
        taken = add(keys_map, keys, offset)
        for place, key in enumerate(keys[:taken]):
            known[key] = offset + place
        offset += len(keys)
        assert len(known) == keys_map.used <= keys_map.capacity
        if taken < len(keys):
            assert keys_map.used == keys_map.capacity
            assert keys[taken] not in known, "a known key always has room"
            break
    everything = [b"%d" % number for number in range(35)]
    assert keys_map.latest(everything).tolist() == [known.get(key, -1) for key in everything]
    assert keys_map.into_offsets().tolist() == sorted(known.values())


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_the_smallest_map_has_room_for_one_key(slots: int) -> None:
    keys_map = KeyMap(slots * SLOT_BYTES or 1)
    assert keys_map.capacity == 1
    assert add(keys_map, [b"a", b"a", b"b", b"a"]) == 2
    assert add(keys_map, [b"a", b"b"], 7) == 1
    assert keys_map.latest([b"a", b"b"]).tolist() == [7, -1]


def test_a_full_map_still_takes_keys_that_it_knows() -> None:
    keys_map = KeyMap(100 * SLOT_BYTES)
    keys = numbered(keys_map.capacity)
    assert add(keys_map, keys) == len(keys)
    assert add(keys_map, keys[::-1], 1_000) == len(keys)
    assert add(keys_map, [*keys[:5], b"new", *keys], 2_000) == 5
    assert keys_map.latest([keys[0], keys[4], keys[5], b"new"]).tolist()[:2] == [2_000, 2_004]
    assert keys_map.latest([b"new"]).tolist() == [-1]


def test_it_grows_and_forgets_nothing() -> None:
    keys_map = KeyMap(PLENTY)
    keys = numbered(150_000)
    for start in range(0, len(keys), 10_000):
        assert add(keys_map, keys[start : start + 10_000], start) == 10_000
        assert keys_map.latest([keys[0], keys[start]]).tolist() == [0, start]
    assert keys_map.used == len(keys)
    assert np.array_equal(keys_map.latest(keys), np.arange(len(keys)))
    assert (keys_map.latest(numbered(1_000, len(keys))) == -1).all()
    assert np.array_equal(keys_map.into_offsets(), np.arange(len(keys)))


@pytest.mark.parametrize("buffer_bytes", [1, 1_000, 98_232, 98_256, 1 << 20, 5_000_001])
def test_its_tables_never_take_more_than_they_may(monkeypatch: pytest.MonkeyPatch, buffer_bytes: int) -> None:
    made: list[int] = []
    real = KeyMap._make_table

    def make(self: KeyMap, slots: int) -> None:
        made.append(slots)
        real(self, slots)

    monkeypatch.setattr(KeyMap, "_make_table", make)
    keys_map = KeyMap(buffer_bytes)
    keys = numbered(keys_map.capacity + 1)
    assert add(keys_map, keys) == len(keys) - 1
    both = [one + other for one, other in zip([0, *made], made, strict=False)]
    assert max(both) * SLOT_BYTES <= max(buffer_bytes, 2 * SLOT_BYTES)


@pytest.mark.parametrize("half", [0, 1])
def test_keys_that_share_half_of_their_hash_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, half: int
) -> None:
    real = keymap.hash_keys

    def weak(keys: Sequence[bytes], seed: int) -> keymap.Hashes:
        hashes = real(keys, seed).copy()
        hashes[:, half] = 0
        return hashes

    monkeypatch.setattr(keymap, "hash_keys", weak)
    keys_map = KeyMap(2_000 * SLOT_BYTES)
    chance = random.Random(half)
    keys = [b"%d" % chance.randrange(500) for _ in range(3_000)]
    for start in range(0, 3_000, 500):
        assert add(keys_map, keys[start : start + 500], start) == 500
    latest = {key: offset for offset, key in enumerate(keys)}
    assert keys_map.latest(list(latest)).tolist() == list(latest.values())
    assert keys_map.latest([b"unknown"]).tolist() == [-1]
    assert keys_map.into_offsets().tolist() == sorted(latest.values())


def test_every_map_hashes_with_a_seed_of_its_own() -> None:
    keys = numbered(10)
    one, other = KeyMap(PLENTY), KeyMap(PLENTY)
    assert not np.array_equal(keymap.hash_keys(keys, one._seed), keymap.hash_keys(keys, other._seed))


def test_no_keys_are_added_in_no_time() -> None:
    keys_map = KeyMap(PLENTY)
    assert add(keys_map, []) == 0
    assert keys_map.latest([]).tolist() == []
    assert keys_map.into_offsets().tolist() == []
