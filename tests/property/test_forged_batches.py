"""Batches whose checksum is right and whose contents are forged: right data, or a typed error, within bounds.

Each is read in every way there is. A child with little memory reads them: code that believes
a forged count or size dies of it.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import soak
from crc32c import crc32c
from soak import SEED, SOAK

_ROOM_BYTES = 256 << 20
_MANY = 1_000


def test_a_forged_batch_is_read_rightly_or_refused_in_little_memory() -> None:
    pytest.importorskip("pyarrow")
    inputs = 100_000 if SOAK else 4_000
    folders = [str(Path(__file__).parent.parent), *sys.path]
    environment = {"PYTHONPATH": os.pathsep.join(folders), "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(
        [sys.executable, __file__, str(SEED), str(inputs)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"seed {SEED}\n{done.stdout}{done.stderr}"
    refused, passed = map(int, done.stdout.split())
    assert refused > inputs // 10 and passed > inputs // 10  # both kinds were met
    soak.count("forged batches read", inputs)


# --- in the child --------------------------------------------------------------------------------


def main(seed: int, count: int) -> None:
    """Forge and read `count` batches; prints how many were refused, and how many were not."""
    batches = [raw for codec in CODECS for raw in _sound(codec)]
    for raw in batches:
        assert _read(raw)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _ROOM_BYTES,) * 2)
    passed = 0
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        raw = _forged(bytearray(chance.choice(batches)), chance)
        try:
            passed += _read(raw)
        except BaseException:
            print(f"number {number}: {raw.hex()}", file=sys.stderr)
            raise
    print(count - passed, passed)


def _sound(codec: str) -> list[bytes]:
    config = TopicConfig(compression_type=codec)  # type: ignore[arg-type]
    names = ["h", "\N{GREEK SMALL LETTER LAMDA}\N{GREEK SMALL LETTER MU}", ""]
    headers = [[(name, b"x" * number) for name in names[: number % 4]] for number in range(40)]
    values = [b"value %d" % number * 9 for number in range(40)]
    times = [1_000 + number * number for number in range(40)]
    some = [None if number % 3 else b"k" * number for number in range(40)]
    gaps = gappy(list(range(0, 80, 2)), 90)
    with_horizon = assemble(
        Columns(NO_STRINGS, pack_bytes(some, "value")), 40, 7, Rules(config).flags, 40, delete_horizon=99
    )
    found = [
        encoded(values, keys=some, headers=headers, timestamps=times, config=config),
        encoded([b"same"] * 40, keys=[b"key"] * 40, config=config),
        encoded([None] * 40, config=config),
        encoded([bytes(70_000), None, b"", b"x"], timestamps=[1, 2, 1 << 40, 3], config=config),
        encoded([b"one"], config=config),
        encoded([b"one"], headers=[[("h", None)] * 40], config=config),
        encoded([None] * 40, headers=[[("", None)]] * 40, config=config),
        encode_empty(7, 1_000),
        gaps,
        with_horizon,
    ]
    return [stored(batch, 100, 3) for batch in found]


def _forged(raw: bytearray, chance: random.Random) -> bytes:
    """Change a few bytes, mostly of header and descriptors, and make size and checksum right again."""
    flags = int.from_bytes(raw[62:64], "little")
    body = 72 if flags & DELETE_HORIZON else 64
    codec_id = flags & CODEC_MASK
    if codec_id and chance.random() < 0.5:  # change what is compressed, then compress it again
        raw_size, stored_size = COMPRESSED.unpack_from(raw, body)
        inner = bytearray(compression.unpack(codec_id, raw[body + 8 : body + 8 + stored_size], raw_size))
        _change(inner, chance, 0)
        packed = compression.get(codec_id).compress([inner])
        claimed = len(inner) if chance.random() < 0.9 else chance.choice(_NUMBERS)
        raw[body:] = COMPRESSED.pack(claimed, len(packed)) + packed
    else:
        _change(raw, chance, body)
        if chance.random() < 0.1:  # bytes that nobody asked for, or fewer than there should be
            raw[body + 16 :] = raw[body + 16 :] + bytes(chance.choice((1, 8, 64)))
    raw += bytes(-len(raw) % 8)
    raw[16:20] = MAGIC_BYTES
    raw[20:24] = len(raw).to_bytes(4, "little")
    raw[62:64] = (int.from_bytes(raw[62:64], "little") & KNOWN_FLAGS).to_bytes(2, "little")
    if raw[62] & CODEC_MASK > 4:
        raw[62] &= ~CODEC_MASK & 0xFF
    base_offset, epoch, _ = STAMP.unpack_from(raw)
    raw[:16] = stamp(base_offset, epoch, crc32c(raw[16:]))
    return bytes(raw)


_NUMBERS = [
    0,
    1,
    2,
    39,
    41,
    255,
    1 << 16,
    1 << 20,
    (1 << 20) + 1,
    1 << 28,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
]


def _change(raw: bytearray, chance: random.Random, body: int) -> None:
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        kind = chance.random()
        if kind < 0.3 and body:  # a count, a span, a timestamp, an offset
            place = chance.choice((0, 32, 40, 52, 56))
            raw[place : place + 4] = chance.choice(_NUMBERS).to_bytes(4, "little")
        elif kind < 0.6:  # a form, a kind of nulls
            raw[min(body + chance.randrange(8), len(raw) - 1)] = chance.choice((0, 1, 2, 3, 4, 5, 255))
        elif kind < 0.7:  # a constant, a size
            place = min(body + chance.choice((0, 4, 8, 12, 20, 20, 24, 28)), len(raw) - 4)
            raw[place : place + 4] = chance.choice(_NUMBERS).to_bytes(4, "little")
        else:
            raw[chance.randrange(min(24, len(raw) - 1), len(raw))] = chance.randrange(256)


def _read(raw: bytes) -> bool:
    """Read a batch in every way; say whether it was passed by all of them."""
    try:
        batch = RecordBatch.decode(raw)
        rows = batch.to_arrow()
        rows.validate(full=True)
        if (
            len(batch) > _MANY
        ):  # a few bytes may stand for a million rows: all are read, the last are compared
            deque(batch.records(), maxlen=0)
            batch = batch.slice(batch.next_offset - _MANY, batch.next_offset)
            rows = batch.to_arrow()
        records = list(batch.records())
        assert _plain(rows) == [tuple(record) for record in records]
        assert list(batch.consumer_records(TopicPartition("t", 0)))[-1:] == [
            ("t", 0, *record) for record in records[-1:]
        ]
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets)) == batch.offsets.tolist()
        assert all(batch.base_offset <= offset < batch.next_offset for offset in offsets)
        assert batch.key_lengths.clip(0).sum() == sum(len(record.key or b"") for record in records)
        assert len(batch.value_lengths) == len(batch.timestamps) == len(records) == len(batch)
        middle = (batch.base_offset + batch.next_offset) // 2
        assert list(batch.slice(0, middle).records()) == [one for one in records if one.offset < middle]
        BatchMerger(lambda *_: None, 0).keep(batch, np.arange(len(batch)), None, NO_PRODUCER)
        readable = True
    except (CorruptionError, UnsupportedFormatError):
        readable = False
    base_offset = int.from_bytes(raw[:8], "little", signed=True)
    epoch = int.from_bytes(raw[8:12], "little", signed=True)
    if 0 < base_offset < 1 << 62:
        both = stored(encoded([b"before"]), base_offset - 1, leader_epoch=epoch) + raw
        found = joined(joinable_run(both, 0, len(both), JOINING), both, "here", 0, JOINING)
        if found is not None:
            assert readable, "what cannot be read alone was read with others"
            assert list(found[0].records())[1:] == records
    for take in (lambda: accepted(raw, TopicConfig(), 5), lambda: received(raw, max(base_offset, 0), "here")):
        try:
            take()
        except CommitLogError:
            continue
        assert readable, "it would be stored, and no reader could pass it"
    return readable


def _plain(rows: Any) -> list[tuple[Any, ...]]:
    columns = [
        rows.column("offset").to_pylist(),
        rows.column("timestamp").cast(pa.int64()).to_pylist(),
        rows.column("key").to_pylist(),
        rows.column("value").to_pylist(),
        # row by row: a million headers, the most in a batch, take 225 MB as dictionaries
        [tuple((one["key"], one["value"]) for one in each.as_py()) for each in rows.column("headers")],
    ]
    return list(zip(*columns, strict=True))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    from collections import deque
    from typing import Any

    import numpy as np
    import pyarrow as pa
    from helpers import CODECS, encoded, gappy, stored

    from commitlog import CorruptionError, RecordBatch, TopicConfig
    from commitlog.batches import compression
    from commitlog.batches.columns import pack_bytes
    from commitlog.batches.encode import NO_STRINGS, Columns, Rules, assemble, encode_empty
    from commitlog.batches.format import (
        CODEC_MASK,
        COMPRESSED,
        DELETE_HORIZON,
        KNOWN_FLAGS,
        MAGIC_BYTES,
        NO_PRODUCER,
        STAMP,
        stamp,
    )
    from commitlog.batches.merge import BatchMerger
    from commitlog.batches.runs import Joining, joinable_run, joined
    from commitlog.errors import CommitLogError, UnsupportedFormatError
    from commitlog.partitions.slices import received
    from commitlog.record import TopicPartition
    from commitlog.replication.remote.intake import accepted

    JOINING = Joining(1 << 63, 1 << 20, 16 << 20)

    main(int(sys.argv[1]), int(sys.argv[2]))
