"""Damage: what disks, crashes and strangers do to bytes, and to JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

_BYTES = (0x00, 0x01, 0x07, 0x08, 0x10, 0x20, 0x40, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS = (
    0, 1, 2, 7, 8, 63, 64, 255, 256, 4095, 4096, (1 << 16) - 1, 1 << 16, (1 << 31) - 1, 1 << 31,
    (1 << 32) - 1, 1 << 32, (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip


def number(random: Random, width: int) -> int:
    """An integer of `width` bytes of the kind that breaks programs."""
    found = random.choice(_NUMBERS)
    if random.random() < 0.3:
        found += random.randrange(-9, 10)
    elif random.random() < 0.2:
        found = random.getrandbits(8 * width)
    return found & (1 << 8 * width) - 1


def mutated(random: Random, data: bytes, donor: bytes) -> bytes:
    """Bytes with one to four kinds of damage; some may come from `donor`, another file."""
    found = bytearray(data)
    for _ in range(1 if random.random() < 0.6 else random.randrange(2, 5)):
        random.choice(_DAMAGE)(random, found, donor)
    return bytes(found)


def _flip_bit(random: Random, data: bytearray, donor: bytes) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite_byte(random: Random, data: bytearray, donor: bytes) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice(_BYTES)


def _overwrite_number(random: Random, data: bytearray, donor: bytes) -> None:
    width = random.choice((2, 4, 8))
    if len(data) >= width:
        place = random.randrange(len(data) - width + 1)
        if random.random() < 0.8:
            place -= place % width
        data[place : place + width] = number(random, width).to_bytes(width, "little")


def _add_to_number(random: Random, data: bytearray, donor: bytes) -> None:
    width = random.choice((1, 2, 4, 8))
    if len(data) >= width:
        place = random.randrange(len(data) - width + 1) // width * width
        before = int.from_bytes(data[place : place + width], "little")
        after = before + random.choice((-8, -2, -1, 1, 2, 8)) & (1 << 8 * width) - 1
        data[place : place + width] = after.to_bytes(width, "little")


def _cut(random: Random, data: bytearray, donor: bytes) -> None:
    del data[_place(random, data) :]


def _extend(random: Random, data: bytearray, donor: bytes) -> None:
    count = random.choice((1, 2, 7, 8, 64, 4096))
    more = (bytes(count), random.randbytes(min(count, 64)), bytes(data[-count:]), donor[:count])
    data += random.choice(more)


def _zero_range(random: Random, data: bytearray, donor: bytes) -> None:
    start, end = _range(random, data)
    data[start:end] = bytes(end - start)


def _remove_range(random: Random, data: bytearray, donor: bytes) -> None:
    start, end = _range(random, data)
    del data[start:end]


def _repeat_range(random: Random, data: bytearray, donor: bytes) -> None:
    start, end = _range(random, data)
    data[end:end] = data[start:end]


def _move_range(random: Random, data: bytearray, donor: bytes) -> None:
    start, end = _range(random, data)
    taken = bytes(data[start:end])
    del data[start:end]
    place = _place(random, data)
    data[place:place] = taken


def _copy_range_over_another(random: Random, data: bytearray, donor: bytes) -> None:
    start, end = _range(random, data)
    place = _place(random, data)
    size = min(end - start, len(data) - place)
    data[place : place + size] = bytes(data[start : start + size])


def _splice(random: Random, data: bytearray, donor: bytes) -> None:
    place = _place(random, data)
    data[place:] = donor[place:]


def _take_range_of_the_donor(random: Random, data: bytearray, donor: bytes) -> None:
    start, end = _range(random, donor)
    data[start:end] = donor[start:end]


def _place(random: Random, data: bytes | bytearray) -> int:
    """A position: often of a word, of a sector, or near one end."""
    place = random.randrange(len(data) + 1)
    kind = random.random()
    if kind < 0.5:
        place -= place % 8
    elif kind < 0.6:
        place -= place % 512
    elif kind < 0.7:
        place = max(len(data) - random.randrange(1, 10), 0)
    return place


def _range(random: Random, data: bytes | bytearray) -> tuple[int, int]:
    start = _place(random, data)
    size = random.choice((1, 2, 4, 8, 16, 24, 64, 512)) if random.random() < 0.7 else _place(random, data)
    return start, min(start + size, len(data))


_DAMAGE: tuple[Callable[[Random, bytearray, bytes], None], ...] = (
    _flip_bit, _flip_bit, _flip_bit, _overwrite_byte, _overwrite_number, _overwrite_number, _add_to_number,
    _cut, _extend, _zero_range, _remove_range, _repeat_range, _move_range, _copy_range_over_another, _splice,
    _take_range_of_the_donor,
)  # fmt: skip

# --- JSON --------------------------------------------------------------------------------------------

_LARGE = 16_384
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 1023, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**30, 10**400,
    0.5, 1e308, float("inf"), float("nan"), "", "0", "x", "..", "../x", "a/b", "\0", "\ud800", "é" * 99,
    [], {},
    [[]], [0], ["x"], [None], {"": 0}, {"x": None}, [["t", 0]], [[[[[[]]]]]],
)  # fmt: skip


def mutated_json(random: Random, raw: bytes) -> bytes:
    """JSON with one to three of its values, keys or items changed; other bytes if it is none, or large."""
    try:
        if len(raw) > _LARGE:
            raise ValueError
        root = [json.loads(raw)]
    except (ValueError, RecursionError):
        return mutated(random, raw, raw)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _change(random, root)
    if not root:
        return b""
    return json.dumps(root[0]).encode("utf-8", "surrogatepass")


def _change(random: Random, root: list[Any]) -> None:
    places = list(_places(root))
    if not places:
        return
    holder, key = random.choice(places)
    kind = random.randrange(8)
    if kind < 4:
        holder[key] = _copy(random.choice(_VALUES))
    elif kind == 4:
        del holder[key]
    elif kind == 5:
        old = holder[key]
        holder[key] = random.choice(([old], {"x": old}, str(old), [old, _copy(old)]))
    elif kind == 6 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
        holder[key] = holder[key] + random.choice((-1, 1, 8)) if random.random() < 0.5 else number(random, 8)
    else:
        other, its = random.choice(places)
        if key in holder if isinstance(holder, dict) else key < len(holder):
            holder[key] = _copy(other[its])


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(holder: Any) -> Any:
    keys = holder.keys() if isinstance(holder, dict) else range(len(holder))
    for key in list(keys):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])
