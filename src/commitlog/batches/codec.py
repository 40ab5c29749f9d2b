"""Compression of batch bodies. zstd is always there; the others when their packages are.

The numbers are Kafka's. A codec is a pair of functions; its package is imported at first use.
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
    """compress(raw) -> stored, and decompress(stored, raw_size) -> raw."""

    compress: Callable[[Bytes], bytes]
    decompress: Callable[[Bytes, int], bytes]


@cache
def get(codec_id: int) -> Codec:
    """Return the codec with this number; MissingDependencyError if its package is not installed."""
    return _LOADERS[codec_id]()


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
            local.decompressor = zstandard.ZstdDecompressor()
        raw: bytes = local.decompressor.decompress(stored, max_output_size=raw_size)
        return raw

    return Codec(compress, decompress)


def _gzip() -> Codec:
    gzip_window = 31  # zlib's number for "the largest window, with a gzip header"

    def compress(raw: Bytes) -> bytes:
        packer = zlib.compressobj(6, zlib.DEFLATED, gzip_window)
        return packer.compress(raw) + packer.flush()

    return Codec(compress, lambda stored, raw_size: zlib.decompress(stored, gzip_window, raw_size))


def _lz4() -> Codec:
    frame = _optional("compression_type lz4", "lz4.frame", "lz4")
    return Codec(
        lambda raw: bytes(frame.compress(raw, store_size=True)),
        lambda stored, raw_size: bytes(frame.decompress(stored)),
    )


def _snappy() -> Codec:
    snappy = _optional("compression_type snappy", "cramjam", "cramjam").snappy
    return Codec(
        lambda raw: bytes(snappy.compress_raw(raw)),
        lambda stored, raw_size: bytes(snappy.decompress_raw(stored)),
    )


def _optional(feature: str, module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingDependencyError(feature, package) from None


_LOADERS: dict[int, Callable[[], Codec]] = {GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
