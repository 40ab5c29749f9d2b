"""Codecs for the fields of a message in the header of its frame; each value is checked on arrival.

A wrong value is a ValueError here; wire.py adds which message it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from commitlog.record import TopicPartition
from commitlog.replication.messages import Acks, Bytes, Data


class Left:
    """The rest of a frame's data, from which each data field takes the size that it announces."""

    def __init__(self, view: memoryview) -> None:
        self._view = view

    def take(self, size: int) -> memoryview:
        """Return the next `size` bytes."""
        if size > len(self._view):
            raise ValueError(f"{size} bytes of data are announced, but {len(self._view)} are left")
        taken, self._view = self._view[:size], self._view[size:]
        return taken

    def check_nothing_is_left(self) -> None:
        """Raise ValueError unless all data were taken."""
        if len(self._view):
            raise ValueError(f"{len(self._view)} bytes of data belong to no field")


class Codec(NamedTuple):
    """Packs and unpacks a field. The header has the size of each data field; the data are collected aside."""

    pack: Callable[[Any, list[Data]], Any]
    unpack: Callable[[Any, Left], Any]


def _plain(name: str, holds: Callable[[Any], bool]) -> Codec:
    def unpack(value: Any, left: Left) -> Any:
        if not holds(value):
            raise ValueError(f"{value!r:.80} is not {name}")
        return value

    return Codec(lambda value, data: value, unpack)


def _is_int(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63


def _is_scalar(value: Any) -> bool:
    return value is None or type(value) in (bool, str, float) or _is_int(value)


INT = _plain("an integer of 64 bits", _is_int)
COUNT = _plain("a count", lambda value: _is_int(value) and value >= 0)
TEXT = _plain("a text", lambda value: type(value) is str)
FLAG = _plain("true or false", lambda value: type(value) is bool)
SCALAR = _plain("a number, a text, a flag or null", _is_scalar)
ACKS = _plain('1 or "all"', lambda value: value == "all" or (type(value) is int and value == 1))


def optional(codec: Codec) -> Codec:
    """Return the codec of a field that may be null."""
    return Codec(
        lambda value, data: None if value is None else codec.pack(value, data),
        lambda raw, left: None if raw is None else codec.unpack(raw, left),
    )


def several(codec: Codec, most: int | None = None) -> Codec:
    """Return the codec of a tuple of any length, or of `most` items at most."""
    pack, unpack = codec

    def unpack_all(raw: Any, left: Left) -> Any:
        if most is not None and len(_listed(raw)) > most:
            raise ValueError(f"{len(raw)} items; there can be {most}")
        return tuple([unpack(one, left) for one in _listed(raw)])

    return Codec(lambda values, data: [pack(one, data) for one in values], unpack_all)


def mapping(key: Codec, value: Codec) -> Codec:
    """Return the codec of a dictionary: a list of pairs, because JSON keys are texts."""
    pairs = several(fixed(key, value))

    def unpack(raw: Any, left: Left) -> Any:
        found = dict(pairs.unpack(raw, left))
        if len(found) < len(raw):
            raise ValueError("a key occurs twice")
        return found

    return Codec(lambda value, data: pairs.pack(value.items(), data), unpack)


def fixed(*codecs: Codec, make: Callable[[Iterable[Any]], Any] = tuple) -> Codec:
    """Return the codec of a tuple of this many items."""

    def unpack(raw: Any, left: Left) -> Any:
        if len(_listed(raw)) != len(codecs):
            raise ValueError(f"{len(raw)} items instead of {len(codecs)}")
        return make([codec.unpack(one, left) for codec, one in zip(codecs, raw, strict=True)])

    return Codec(
        lambda value, data: [codec.pack(one, data) for codec, one in zip(codecs, value, strict=True)], unpack
    )


def _listed(raw: Any) -> list[Any]:
    if type(raw) is not list:
        raise ValueError(f"{raw!r:.80} is not a list")
    return raw


def _unpack_nested(raw: Any, left: Left) -> Any:
    if type(raw) is list:
        return tuple([_unpack_nested(one, left) for one in raw])
    return SCALAR.unpack(raw, left)


def _pack_data(value: Data, data: list[Data]) -> int:
    data.append(value)
    return value.size


DATA = Codec(_pack_data, lambda raw, left: Bytes(left.take(COUNT.unpack(raw, left))))
NESTED = several(Codec(lambda value, data: value, _unpack_nested))  # fields of errors, with tuples in them
NAME = fixed(TEXT, COUNT, make=TopicPartition._make)
TYPES: dict[Any, Codec] = {
    int: INT, str: TEXT, bool: FLAG, Any: SCALAR, TopicPartition: NAME, Data: DATA, Acks: ACKS
}  # fmt: skip


def fields(make: type, **limited: Codec) -> Codec:
    """Return the codec of an object: exactly its fields, by name.

    The types of the fields decide their codecs, except for those in `limited`.
    """
    codecs = {name: limited.get(name) or _typed(hint) for name, hint in get_type_hints(make).items()}
    packers = [(name, codec.pack) for name, codec in codecs.items()]
    unpackers = [(name, codec.unpack) for name, codec in codecs.items()]

    def unpack(raw: Any, left: Left) -> Any:
        if type(raw) is not dict or raw.keys() != codecs.keys():
            raise ValueError(f"{raw!r:.80} does not have the fields {', '.join(codecs) or '(none)'}")
        return make(**{name: unpack_one(raw[name], left) for name, unpack_one in unpackers})

    return Codec(
        lambda value, data: {name: pack(getattr(value, name), data) for name, pack in packers}, unpack
    )


def listed(make: type) -> Codec:
    """Return the compact codec of an object of which there are many: a list of its fields, without names."""
    hints = get_type_hints(make)
    names, row = tuple(hints), fixed(*map(_typed, hints.values()))
    return Codec(
        lambda value, data: row.pack([getattr(value, name) for name in names], data),
        lambda raw, left: make(*row.unpack(raw, left)),
    )


def _typed(hint: Any) -> Codec:
    if hint in TYPES:
        return TYPES[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:  # tuple[X, ...]
        return several(_typed(arguments[0]))
    if origin in (Mapping, dict):
        return mapping(*map(_typed, arguments))
    if origin is UnionType:
        assert arguments[1:] == (NoneType,), f"{hint} is not X | None"
        return optional(_typed(arguments[0]))
    return fields(hint)


def named(*kinds: type) -> Codec:
    """Return the codec of an object of one of these classes: a list of the class's name and the object."""
    codecs = {kind.__name__: fields(kind) for kind in kinds}

    def unpack(raw: Any, left: Left) -> Any:
        name, value = _listed(raw) if len(_listed(raw)) == 2 else (None, None)
        if type(name) is not str or name not in codecs:
            raise ValueError(f"{raw!r:.80} is not one of {', '.join(codecs)}")
        return codecs[name].unpack(value, left)

    return Codec(
        lambda value, data: [type(value).__name__, codecs[type(value).__name__].pack(value, data)], unpack
    )
