"""Compression of batch bodies. zstd is always available, the other codecs if their packages are installed.

The numbers are Kafka's. A codec is a pair of functions; its package is imported at first use.

Compressed bytes may come from anywhere. So no more than the size they claim is ever allocated for them, and
only if the codec can produce that many bytes from what is stored: see unpack().
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from commitlog.errors import MissingDependencyError
from commitlog.record import Buffer

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
IDS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
NAMES = {number: name for name, number in IDS.items()}

Bytes = bytes | bytearray | memoryview
# A column this large starts a block of its own, with entropy tables that fit it. Measured: 2 to 15 % fewer
# bytes for 4 % more time with batches of 1,000 records. In small batches it takes too much time.
_OWN_BLOCK_BYTES, _BLOCKS_BYTES = 512, 8 * 1024


class Codec(NamedTuple):
    """compress(pieces) -> stored, and decompress(stored, raw_size) -> raw, which takes no more than raw_size.

    `most_expansion` is the largest number of bytes that one stored byte can expand to.
    """

    compress: Callable[[Sequence[Buffer]], bytes]
    decompress: Callable[[Bytes, int], bytes]
    most_expansion: int


@cache
def get(codec_id: int) -> Codec:
    """Return the codec with this number; MissingDependencyError if its package is not installed."""
    return _LOADERS[codec_id]()


def unpack(codec_id: int, stored: Bytes, raw_size: int) -> bytes:
    """Return the `raw_size` bytes that were compressed; ValueError if `stored` does not hold exactly these.

    raw_size bounds time and memory, whatever the stored bytes are.
    """
    codec = get(codec_id)
    if raw_size > len(stored) * codec.most_expansion:
        raise ValueError(f"{len(stored)} bytes cannot expand to {raw_size}")
    try:
        raw = codec.decompress(stored, raw_size)
    except (ValueError, MemoryError):
        raise
    except Exception as problem:  # each package has its own exceptions
        raise ValueError(f"the body does not decompress: {problem}") from None
    if len(raw) != raw_size:
        raise ValueError(f"the body does not have {raw_size} bytes")
    return raw


def _zstd() -> Codec:
    import zstandard

    # zstandard's objects must not be used by two threads at once
    local = threading.local()

    def compress(pieces: Sequence[Buffer]) -> bytes:
        # taken away while it is in use: a signal handler that compresses meanwhile must not get the same one
        compressor = local.__dict__.pop("compressor", None) or zstandard.ZstdCompressor(level=3)
        size = sum(map(len, pieces))
        packed: bytes
        if size < _BLOCKS_BYTES:
            packed = compressor.compress(b"".join(pieces))
        else:
            packed = in_blocks(compressor.compressobj(size=size), pieces)
        local.compressor = compressor
        return packed

    def in_blocks(packer: Any, pieces: Sequence[Buffer]) -> bytes:
        packed, open_bytes = [], 0  # open: in the block that has not ended yet
        for piece in pieces:
            if open_bytes and len(piece) >= _OWN_BLOCK_BYTES:
                packed.append(packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
                open_bytes = 0
            packed.append(packer.compress(piece))
            open_bytes += len(piece)
        return b"".join((*packed, packer.flush()))

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        if not hasattr(local, "decompressor"):
            local.decompressor = zstandard.ZstdDecompressor(max_window_size=8 << 20)
        # zstandard allocates the size that a frame states, whatever max_output_size is
        if zstandard.frame_content_size(stored) != raw_size:
            raise ValueError(f"not a zstd frame of {raw_size} bytes")
        raw: bytes = local.decompressor.decompress(stored, allow_extra_data=False)
        return raw

    return Codec(compress, decompress, 1 << 15)  # a 128 KiB block of one repeated byte takes 4 bytes


def _gzip() -> Codec:
    gzip_window = 31  # zlib's number for "the largest window, with a gzip header"

    def compress(pieces: Sequence[Buffer]) -> bytes:
        packer = zlib.compressobj(6, zlib.DEFLATED, gzip_window)
        return b"".join((*map(packer.compress, pieces), packer.flush()))

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        # measured: 5 % slower than without a limit; piece by piece would be 20 % slower
        unpacker = zlib.decompressobj(gzip_window)
        raw = unpacker.decompress(stored, raw_size + 1)  # one more, or it would not reach the end marker
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError(f"not a gzip stream of {raw_size} bytes")
        return raw

    return Codec(compress, decompress, 1032)  # 258 bytes for 2 bits


def _lz4() -> Codec:
    frame = _optional("compression_type lz4", "lz4.frame", "lz4")

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        context = frame.create_decompression_context()
        raw, used, ended = frame.decompress_chunk(context, stored, max_length=raw_size + 1)
        if not ended or used != len(stored):
            raise ValueError(f"not an lz4 frame of {raw_size} bytes")
        return bytes(raw)

    return Codec(lambda pieces: bytes(frame.compress(b"".join(pieces), store_size=True)), decompress, 255)


def _snappy() -> Codec:
    snappy = _optional("compression_type snappy", "cramjam", "cramjam").snappy

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        if snappy.decompress_raw_len(stored) != raw_size:
            raise ValueError(f"not a snappy block of {raw_size} bytes")
        return bytes(snappy.decompress_raw(stored))

    def compress(pieces: Sequence[Buffer]) -> bytes:
        return bytes(snappy.compress_raw(b"".join(pieces)))

    return Codec(compress, decompress, 22)  # 64 bytes for 3


def _optional(feature: str, module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(feature, package) from None


_LOADERS: dict[int, Callable[[], Codec]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
