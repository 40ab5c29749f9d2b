from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import commitlog
from commitlog.batches import compression
from commitlog.errors import MissingDependencyError

COMPRESSING = ["zstd", "gzip", "lz4", "snappy"]
PACKAGES = {"lz4": "lz4.frame", "snappy": "cramjam"}


def test_codec_numbers_are_kafkas() -> None:
    assert compression.IDS == {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@pytest.mark.parametrize("name", COMPRESSING)
@pytest.mark.parametrize("raw", [b"x", b"abc" * 1_000, bytes(range(256)) * 40], ids=len)
def test_what_is_compressed_comes_back(name: str, raw: bytes) -> None:
    chosen = compression.get(compression.IDS[name])
    for given in (raw, bytearray(raw), memoryview(raw)):
        packed = chosen.compress([given])
        assert chosen.decompress(packed, len(raw)) == raw
        assert chosen.decompress(memoryview(packed), len(raw)) == raw


@pytest.mark.parametrize("name", COMPRESSING)
@pytest.mark.parametrize(
    "sizes", [(), (0,), (1, 0, 2_000), (600, 600, 600), (5_000, 1, 5_000), (200_000, 3_000)]
)
def test_pieces_come_back_as_one(name: str, sizes: tuple[int, ...]) -> None:
    chance = random.Random(len(sizes))
    pieces = [chance.randbytes(size) for size in sizes]
    raw = b"".join(pieces)
    codec_id = compression.IDS[name]
    assert compression.unpack(codec_id, compression.get(codec_id).compress(pieces), len(raw)) == raw


class Interrupted(list[bytes]):
    """Pieces between which other code compresses something, as a signal handler may."""

    def __init__(self, pieces: list[bytes], codec: compression.Codec) -> None:
        super().__init__(pieces)
        self._codec = codec

    def __iter__(self) -> Iterator[bytes]:
        for piece in super().__iter__():
            yield piece
            self._codec.compress([b"something else" * 1_000, b"and more" * 1_000])


@pytest.mark.parametrize("name", COMPRESSING)
def test_what_is_compressed_meanwhile_in_the_same_thread_does_no_harm(name: str) -> None:
    codec_id = compression.IDS[name]
    codec = compression.get(codec_id)
    pieces = [b"abc" * 2_000, bytes(range(256)) * 20, b"xyz" * 3_000]
    raw = b"".join(pieces)
    assert compression.unpack(codec_id, codec.compress(Interrupted(pieces, codec)), len(raw)) == raw


def test_columns_that_are_different_take_less_room_in_blocks_of_their_own() -> None:
    chance, zstd = random.Random(1), compression.get(compression.IDS["zstd"])
    digits = "".join(chance.choices("0123456789", k=10_000)).encode()
    noise = chance.randbytes(20_000)
    assert len(zstd.compress([digits, noise])) < 0.95 * len(zstd.compress([digits + noise]))


@pytest.mark.parametrize("name", COMPRESSING)
def test_only_what_was_packed_is_unpacked_with_nothing_behind_it(name: str) -> None:
    raw, codec_id = b"abc" * 1_000, compression.IDS[name]
    packed = compression.get(codec_id).compress([raw])
    assert compression.unpack(codec_id, packed, len(raw)) == raw
    for stored, size in (
        (packed, len(raw) - 1),
        (packed, len(raw) + 1),
        (packed + packed, len(raw)),
        (packed + packed, 2 * len(raw)),
        (packed + b"\0", len(raw)),
        (packed[:-1], len(raw)),
        (packed, 1 << 31),
        (b"", 0),
    ):
        with pytest.raises(ValueError, match=r"bytes|decompress"):
            compression.unpack(codec_id, stored, size)


@pytest.mark.parametrize("name", COMPRESSING)
def test_threads_may_share_a_codec(name: str) -> None:
    chosen = compression.get(compression.IDS[name])

    def there_and_back(number: int) -> bool:
        raw = b"%d" % number * 5_000
        return chosen.decompress(chosen.compress([raw]), len(raw)) == raw

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(there_and_back, range(60)))


@pytest.mark.parametrize("name", PACKAGES)
def test_a_codec_whose_package_is_missing_says_what_to_install_and_appends_nothing(
    name: str, log: commitlog.CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log.create_topic("t", config={"compression_type": name}).partition(0)
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    compression.get.cache_clear()
    try:
        with pytest.raises(MissingDependencyError) as caught:
            partition.append_many([b"x" * 1_000])
        assert f"pip install {PACKAGES[name].partition('.')[0]}" in str(caught.value)
        assert name in str(caught.value)
        assert partition.next_offset == 0
        assert partition.size_bytes == 0
    finally:
        compression.get.cache_clear()
