"""Compression of batch bodies. zstd is always there; the others when their packages are.

The numbers are Kafka's. A codec is a pair of functions; its package is imported at first use.

What is unpacked may come from anywhere, so the size that it claims is the most that is ever allocated for it,
and only if the codec can make that many bytes of what is stored: see unpack().
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from commitlog.errors import MissingDependencyError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
IDS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
NAMES = {number: name for name, number in IDS.items()}

Bytes = bytes | bytearray | memoryview


class Codec(NamedTuple):
    """compress(raw) -> stored, and decompress(stored, raw_size) -> raw, which takes no more than raw_size.

    `most_expansion` is how many bytes one stored byte can stand for, at most.
    """

    compress: Callable[[Bytes], bytes]
    decompress: Callable[[Bytes, int], bytes]
    most_expansion: int


@cache
def get(codec_id: int) -> Codec:
    """Return the codec with this number; MissingDependencyError if its package is not installed."""
    return _LOADERS[codec_id]()


def unpack(codec_id: int, stored: Bytes, raw_size: int) -> bytes:
    """Return the `raw_size` bytes that were stored; ValueError if these are not what is there.

    Time and memory are bounded by raw_size, whatever the stored bytes hold.
    """
    codec = get(codec_id)
    if raw_size > len(stored) * codec.most_expansion:
        raise ValueError(f"{len(stored)} bytes cannot stand for {raw_size}")
    try:
        raw = codec.decompress(stored, raw_size)
    except (ValueError, MemoryError):
        raise
    except Exception as problem:  # each package has its own
        raise ValueError(f"the body does not decompress: {problem}") from None
    if len(raw) != raw_size:
        raise ValueError(f"the body has other than {raw_size} bytes")
    return raw


def _zstd() -> Codec:
    import zstandard

    # zstandard's objects must not be used by two threads at once
    local = threading.local()

    def compress(raw: Bytes) -> bytes:
        if not hasattr(local, "compressor"):
            local.compressor = zstandard.ZstdCompressor(level=3)
        packed: bytes = local.compressor.compress(raw)
        return packed

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        if not hasattr(local, "decompressor"):
            local.decompressor = zstandard.ZstdDecompressor(max_window_size=8 << 20)
        # a frame that states its size is given that much room, whatever max_output_size says
        if zstandard.frame_content_size(stored) != raw_size:
            raise ValueError(f"no zstd frame of {raw_size} bytes")
        raw: bytes = local.decompressor.decompress(stored, allow_extra_data=False)
        return raw

    return Codec(compress, decompress, 1 << 15)  # a block of 128 KiB that repeats one byte has 4


def _gzip() -> Codec:
    gzip_window = 31  # zlib's number for "the largest window, with a gzip header"

    def compress(raw: Bytes) -> bytes:
        packer = zlib.compressobj(6, zlib.DEFLATED, gzip_window)
        return packer.compress(raw) + packer.flush()

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        # measured: 5 % more than without a limit; piece by piece 20 %
        unpacker = zlib.decompressobj(gzip_window)
        raw = unpacker.decompress(stored, raw_size + 1)  # one more, or it would not look for the end
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError(f"no gzip stream of {raw_size} bytes")
        return raw

    return Codec(compress, decompress, 1032)  # 258 bytes for 2 bits


def _lz4() -> Codec:
    frame = _optional("compression_type lz4", "lz4.frame", "lz4")

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        context = frame.create_decompression_context()
        raw, used, ended = frame.decompress_chunk(context, stored, max_length=raw_size + 1)
        if not ended or used != len(stored):
            raise ValueError(f"no lz4 frame of {raw_size} bytes")
        return bytes(raw)

    return Codec(lambda raw: bytes(frame.compress(raw, store_size=True)), decompress, 255)


def _snappy() -> Codec:
    snappy = _optional("compression_type snappy", "cramjam", "cramjam").snappy

    def decompress(stored: Bytes, raw_size: int) -> bytes:
        if snappy.decompress_raw_len(stored) != raw_size:
            raise ValueError(f"no snappy block of {raw_size} bytes")
        return bytes(snappy.decompress_raw(stored))

    return Codec(lambda raw: bytes(snappy.compress_raw(raw)), decompress, 22)  # 64 bytes for 3


def _optional(feature: str, module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(feature, package) from None


_LOADERS: dict[int, Callable[[], Codec]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
