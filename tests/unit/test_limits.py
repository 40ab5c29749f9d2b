"""What a batch may hold: writers stay below the limits, and nobody believes a batch that claims more."""

from __future__ import annotations

import gzip
import io
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from helpers import CODECS, decoded, encoded, stage, stored, tree

import commitlog
from commitlog import CommitLog, CorruptionError, Partition, RecordBatch, TopicConfig
from commitlog.batches import compression, encode, merge
from commitlog.batches.format import (
    CHECKED,
    COMPRESSED,
    MAGIC,
    MAX_BODY_BYTES,
    MAX_HEADERS,
    MAX_RECORDS,
    NO_PRODUCER,
    STAMP,
    stamp,
)
from commitlog.batches.merge import BatchMerger
from commitlog.errors import BatchTooLargeError
from commitlog.partitions.slices import received
from commitlog.replication.remote.intake import MOST_UNPACKED_BYTES, accepted
from commitlog.segment import segment_path

# positions in a batch
RECORD_COUNT, LAST_DELTA, BODY = 52, 56, 64
GIB = 1 << 30


def restamped(raw: bytearray, base_offset: int = 0, leader_epoch: int = 0) -> bytes:
    """A batch with the checksum of what it holds now."""
    raw[: STAMP.size] = stamp(base_offset, leader_epoch, crc32c(raw[STAMP.size :]))
    return bytes(raw)


def claiming(records: int, offsets: int | None = None, raw: bytes | None = None) -> bytes:
    """A batch that says how many records it has, and how many offsets it takes."""
    changed = bytearray(raw or stored(encoded([None])))
    changed[RECORD_COUNT : RECORD_COUNT + 4] = records.to_bytes(4, "little")
    changed[LAST_DELTA : LAST_DELTA + 4] = ((offsets or records) - 1).to_bytes(4, "little")
    return restamped(changed)


def packed(codec_id: int, contents: bytes, raw_size: int, count: int = 1) -> bytes:
    """A batch with these compressed bytes as its body."""
    body = COMPRESSED.pack(raw_size, len(contents)) + contents
    body += bytes(-len(body) % 8)
    head = CHECKED.pack(MAGIC, BODY + len(body), -1, 5, 5, -1, count, count - 1, -1, codec_id)
    return restamped(bytearray(bytes(STAMP.size) + head + body))


READS: dict[str, Callable[[RecordBatch], Any]] = {
    "records": lambda batch: list(batch.records()),
    "consumer_records": lambda batch: list(batch.consumer_records(commitlog.TopicPartition("t", 0))),
    "arrow": lambda batch: batch.to_arrow(),
    "keys": lambda batch: batch.keys(),
    "values": lambda batch: batch.values(),
    "headers": lambda batch: batch.headers(),
    "offsets": lambda batch: batch.offsets,
    "timestamps": lambda batch: batch.timestamps,
    "slice": lambda batch: list(batch.slice(1, 3).records()),
}


def check_refused_by_all(raw: bytes) -> None:
    """Nobody stores it, and nobody reads it."""
    with pytest.raises(CorruptionError):
        accepted(raw, TopicConfig(), 5)
    with pytest.raises(CorruptionError):
        received(raw, 0, "here")
    for read in READS.values():
        with pytest.raises(CorruptionError):
            read(RecordBatch.decode(raw))


# --- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "offsets"), [(2**32 - 1, None), (MAX_RECORDS + 1, None), (3, 2), (2**32 - 1, 1)]
)
def test_a_batch_that_claims_records_it_cannot_have_is_refused_by_all(
    records: int, offsets: int | None
) -> None:
    check_refused_by_all(claiming(records, offsets))


def test_a_batch_on_disk_that_claims_four_billion_records_is_damage_and_what_is_before_it_is_read(
    log: CommitLog, partition: Partition
) -> None:
    partition.append_many([b"a", b"b"])
    partition.append(b"c")
    log.close()
    path = segment_path(partition.path, 0)
    with open(path, "r+b") as file:
        whole = bytearray(file.read())
        third = whole[-88:]
        third[RECORD_COUNT : RECORD_COUNT + 4] = third[LAST_DELTA : LAST_DELTA + 4] = b"\xff" * 4
        file.seek(len(whole) - 88)
        file.write(restamped(third, 2))
    with commitlog.open(log.path, mode="r") as again:
        found = again.topic("t").partition(0)
        assert [one.value for one in found.records(0, 2)] == [b"a", b"b"]
        for read in (lambda: list(found.records()), lambda: found.get(2), lambda: list(found.batches())):
            with pytest.raises(CorruptionError):
                read()
        assert not found.verify().ok


def test_append_many_takes_as_many_records_as_a_batch_holds_and_no_more(partition: Partition) -> None:
    assert partition.append_many([None] * MAX_RECORDS) == range(MAX_RECORDS)
    before = tree(partition.path)
    with pytest.raises(BatchTooLargeError, match=f"{MAX_RECORDS + 1} records, the limit is {MAX_RECORDS}"):
        partition.append_many([None] * (MAX_RECORDS + 1))
    assert tree(partition.path) == before
    assert partition.next_offset == MAX_RECORDS
    assert partition.get(MAX_RECORDS - 1) is not None


def test_arrow_data_of_more_records_becomes_several_batches(partition: Partition) -> None:
    pa = pytest.importorskip("pyarrow")
    count = 2 * MAX_RECORDS + 3
    keys = pa.array(np.arange(count).astype("S8"))
    assert partition.append_arrow(pa.table({"key": keys, "value": pa.nulls(count)})) == range(count)
    assert [len(batch) for batch in partition.batches()] == [MAX_RECORDS, (MAX_RECORDS + 3) // 2, count - (
        MAX_RECORDS + (MAX_RECORDS + 3) // 2
    )]  # fmt: skip
    assert partition.to_arrow(columns=["key"]).column("key").combine_chunks().equals(keys.cast(pa.binary()))


def test_arrow_data_with_more_headers_becomes_several_batches(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(encode, "MAX_HEADERS", 10)
    pairs = [[{"key": "h", "value": b"%d" % number}] * (number % 7) for number in range(20)]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table({"value": pa.array(range(20)).cast(pa.string()), "headers": pa.array(pairs, kind)})
    assert partition.append_arrow(table) == range(20)
    assert [len(one.headers) for one in partition.records()] == [number % 7 for number in range(20)]
    assert [one.value for one in partition.records()] == [b"%d" % number for number in range(20)]
    assert all(sum(map(len, batch.headers())) <= 10 for batch in partition.batches())


def test_a_producer_divides_a_batch_of_more_records(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = log.create_topic("t").partition(0)
    monkeypatch.setattr(encode, "MAX_RECORDS", 10)
    with log.producer(linger_ms=60_000) as producer:
        for number in range(35):
            producer.send("t", b"%d" % number)
    assert [one.value for one in partition.records()] == [b"%d" % number for number in range(35)]
    assert max(len(batch) for batch in partition.batches()) <= 10


@pytest.mark.parametrize("limit", ["MAX_RECORDS", "MAX_HEADERS", "MAX_BODY_BYTES"])
def test_compaction_puts_no_more_together_than_a_batch_holds(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = {"MAX_RECORDS": 10, "MAX_HEADERS": 10, "MAX_BODY_BYTES": 1_000}[limit]
    monkeypatch.setattr(merge, limit, most)
    monkeypatch.setattr(encode, limit, most)
    written: list[encode.EncodedBatch] = []
    merger = BatchMerger(lambda batch, *_: written.append(batch), compression.NONE)
    for number in range(12):
        values = [b"%d" % (3 * number + row) * 20 for row in range(3)]
        batch = decoded(encoded(values, headers=[[("h", b"x")]] * 3), 3 * number)
        merger.keep(batch, np.array([0, 2]), None, NO_PRODUCER)
    merger.write_out()
    assert 1 < len(written) < 12
    found = [decoded(batch) for batch in written]
    values = [value for batch in found for value in batch.values()]
    assert values == [b"%d" % (3 * number + row) * 20 for number in range(12) for row in (0, 2)]


def test_the_most_that_a_few_bytes_stand_for_is_bounded_for_a_poll(log: CommitLog) -> None:
    pytest.importorskip("pyarrow")
    partition = log.create_topic("t").partition(0)
    for _ in range(6):
        partition.append_many([None] * MAX_RECORDS)
    assert partition.size_bytes < 1_000
    with log.consumer("t", fetch_max_bytes=40 << 20) as consumer:
        (table,) = consumer.poll_arrow().values()
        assert table.num_rows == 3 * MAX_RECORDS


# --- columns -------------------------------------------------------------------------------------


def with_body(body: bytes, count: int = 2) -> bytes:
    """A batch of `count` records with this body."""
    body += bytes(-len(body) % 8)
    head = CHECKED.pack(MAGIC, BODY + len(body), -1, 5, 5, -1, count, count - 1, -1, 0)
    return restamped(bytearray(bytes(STAMP.size) + head + body))


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little") for number in numbers)


HALF = "\N{GREEK SMALL LETTER LAMDA}".encode()
WITH_HEADERS = bytes([0, 0, 0, 0, 1, 1, 1, 0]) + words(0, 0) + bytes([0, 0, 0, 1])
MALFORMED: dict[str, tuple[bytes, int]] = {
    "a form that no column has": (bytes([5, 0, 0, 0, 0, 1, 0, 0]) + words(0, 0), 2),
    "lengths in 64 bits, whose sum is small": (
        bytes([0, 4, 0, 0, 1, 0, 0, 0]) + words(0, 0, 0, 1 << 31, 0, 1 << 31), 2),
    "nulls of no kind": (bytes([0, 0, 0, 0, 1, 3, 0, 0]) + words(0, 0), 2),
    "nulls that have bytes": (bytes([0, 0, 0, 0, 1, 1, 0, 0]) + words(0, 4, 0, 0), 2),
    "headers of no kind": (bytes([0, 0, 0, 0, 1, 1, 2, 0]) + bytes(60), 2),
    "a constant length beyond the body": (bytes([0, 0, 0, 0, 1, 0, 0, 0]) + words(0, 2**32 - 1), 2),
    "bytes after the last column": (bytes([0, 0, 0, 0, 1, 1, 0, 0]) + words(0, 0) + bytes(16), 2),
    "offsets that do not grow": (bytes([0, 0, 0, 1, 1, 1, 0, 0]) + words(0, 0) + b"\1\1" + bytes(6), 2),
    "offsets beyond its last": (bytes([0, 0, 0, 1, 1, 1, 0, 0]) + words(0, 0) + b"\0\7" + bytes(6), 2),
    "timestamps beyond 63 bits": (
        bytes([0, 0, 4, 0, 1, 1, 0, 0]) + words(0, 0, 0, 0) + b"\xff" * 8, 2),
    "four billion headers of no bytes": (
        WITH_HEADERS + words(2**32 - 1, 0, 0), 1),
    "one header too many": (
        WITH_HEADERS + words(MAX_HEADERS + 1, 0, 0), 1),
    "a header name that is not UTF-8": (
        WITH_HEADERS + words(1, 2, 0) + b"\xff\xff", 1),
    "a character divided between two header names": (
        WITH_HEADERS + words(1, 1, 0) + HALF, 2),
}  # fmt: skip


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_body_is_refused_by_all(what: str) -> None:
    pytest.importorskip("pyarrow")
    check_refused_by_all(with_body(*MALFORMED[what]))


def test_facts_that_no_reader_relies_on_are_checked_before_a_batch_is_stored() -> None:
    bitmap_of_one = bytes([0, 1, 0, 0, 1, 2, 0, 0]) + words(0, 0) + b"\2\1" + bytes(6) + b"\2" + bytes(7)
    null_with_bytes = with_body(bitmap_of_one + b"abc")
    assert RecordBatch.decode(null_with_bytes).values() == [None, b"c"]
    other_times = bytearray(stored(encoded([b"x"], timestamps=[5])))
    other_times[40] = 9  # the highest timestamp
    for raw in (null_with_bytes, restamped(other_times)):
        with pytest.raises(CorruptionError):
            accepted(raw, TopicConfig(), 5)
        with pytest.raises(CorruptionError):
            received(raw, 0, "here")
        with pytest.raises(CorruptionError):
            received(stored(encoded([b"first"])) + restamped(bytearray(raw), 1), 0, "here")


@pytest.mark.parametrize("field", [72, 76], ids=["key", "value"])
@pytest.mark.parametrize("length", [0, 4, 200, 2**32 - 1])
@pytest.mark.parametrize("before", [0, 2])
def test_a_single_record_whose_lengths_do_not_fill_its_batch_is_neither_stored_nor_read(
    field: int, length: int, before: int
) -> None:
    single = encoded([b"x" * 20], keys=[b"k" * 20])
    raw = bytearray(stored(single, before))
    raw[field : field + 4] = length.to_bytes(4, "little")
    data = b"".join(stored(single, offset) for offset in range(before)) + restamped(raw, before)
    with pytest.raises(CorruptionError):
        received(data, 0, "here")
    with pytest.raises(CorruptionError):
        list(RecordBatch.decode(data, before * single.size).records())


def test_a_null_of_a_single_record_has_no_length() -> None:
    raw = bytearray(stored(encoded([b"x" * 8])))
    raw[BODY + 8 : BODY + 16] = words(8, 0)  # as if the key, which is null, had the bytes
    check_refused_by_all(restamped(raw))
    with pytest.raises(CorruptionError):
        received(stored(encoded([b"first"])) + restamped(raw, 1), 0, "here")


def test_a_batch_of_no_offset_that_there_is_is_refused() -> None:
    for base_offset in (-1, (1 << 63) - 1):
        with pytest.raises(CorruptionError, match="offset"):
            RecordBatch.decode(stored(encoded([b"x"]), base_offset))
    last = RecordBatch.decode(stored(encoded([b"x"]), (1 << 63) - 2))
    assert [one.offset for one in last.records()] == last.offsets.tolist() == [(1 << 63) - 2]


def test_a_record_has_no_more_headers_than_a_batch_holds(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "MAX_HEADERS", 100)
    partition.append(b"x", headers=[("", None)] * 100)
    with pytest.raises(BatchTooLargeError, match="101 headers, the limit is 100"):
        partition.append(b"x", headers=[("", None)] * 101)
    assert partition.next_offset == 1


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec_name", CODECS)
def test_a_batch_of_more_bytes_before_compression_is_refused_and_leaves_nothing_behind(
    codec_name: str, log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "MAX_BODY_BYTES", 1_000_000)
    partition = log.create_topic("t", config={"compression_type": codec_name}).partition(0)
    before = tree(partition.path)
    with pytest.raises(BatchTooLargeError, match="bytes before compression"):
        partition.append_many([bytes(100_000)] * 10)
    assert tree(partition.path) == before
    assert partition.append_many([bytes(100_000)] * 9) == range(9)


def test_a_batch_that_is_new_has_room_for_the_offsets_that_compaction_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # the compiled code takes at most 1,024 at once, and does not look at the limit
    values = [b"%05d" % number for number in range(2_000)]
    size = len(stored(encoded(values))) - BODY
    monkeypatch.setattr(encode, "MAX_BODY_BYTES", size + 4 * 2_000 + 8)
    merger = BatchMerger(lambda batch, *_: None, compression.NONE)
    merger.keep(decoded(encoded(values)), np.arange(0, 2_000, 1_999), None, NO_PRODUCER)
    merger.keep(decoded(encoded(values)), np.delete(np.arange(2_000), 0), None, NO_PRODUCER)
    monkeypatch.setattr(encode, "MAX_BODY_BYTES", size + 4 * 2_000)
    with pytest.raises(BatchTooLargeError):
        encoded(values)


def test_large_values_of_many_batches_are_not_put_together_in_one_arrow_batch(partition: Partition) -> None:
    pytest.importorskip("pyarrow")
    for number in range(40):
        partition.append(b"%d" % number * 300_000)
    partition.append(bytes(1 << 20))
    batches = list(partition.to_reader())
    assert max(batch.nbytes for batch in batches) < 18 << 20
    assert len(batches) > 1
    values = [value.as_py() for batch in batches for value in batch.column("value")]
    assert values == [one.value for one in partition.records()]


def test_a_staged_file_that_claims_more_records_than_it_has_is_refused(log: CommitLog) -> None:
    pytest.importorskip("pyarrow")
    log.create_topic("t")
    staged = stage(log, "t", 0, [b"a", b"b"])
    path = os.path.join(log.path, staged.path)
    raw = bytearray(Path(path).read_bytes())
    raw[RECORD_COUNT : RECORD_COUNT + 4] = b"\xff" * 4
    Path(path).write_bytes(raw)
    with pytest.raises(CorruptionError):
        log.publish("txn", 1, [staged])
    assert log.topic("t").partition(0).next_offset == 0


# --- what is compressed --------------------------------------------------------------------------


def zstd_bomb(size: int, claimed: int | None, frames: int = 1) -> bytes:
    """Frames of blocks that repeat one byte; `claimed` is what they say of their size, None for nothing."""
    blocks = size // (128 << 10)
    head = b"\x28\xb5\x2f\xfd" + (b"\x00\x58" if claimed is None else b"\xe0" + claimed.to_bytes(8, "little"))
    body = [((128 << 10 << 3) | 2 | (number == blocks - 1)).to_bytes(3, "little") for number in range(blocks)]
    return (head + b"\0".join(body) + b"\0") * frames


def gzip_bomb(size: int) -> bytes:
    target = io.BytesIO()
    with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1, mtime=0) as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    return target.getvalue()


def lz4_bomb(size: int, claimed: int) -> bytes:
    frame = pytest.importorskip("lz4.frame")
    context = frame.create_compression_context()
    pieces = [frame.compress_begin(context, source_size=claimed)]
    pieces += [frame.compress_chunk(context, bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join((*pieces, bytes(4)))  # the mark of the end: a flush would see that the size is wrong


def snappy_bomb(size: int, claimed: int) -> bytes:
    length = bytearray()
    while claimed > 127:
        length.append(claimed & 127 | 128)
        claimed >>= 7
    length.append(claimed)
    return bytes(length) + b"\0\0" + b"\xfe\1\0" * (size // 64)  # a zero, then copies of it


def bombs(size: int) -> dict[str, bytes]:
    """Batches whose bodies unpack to `size` bytes, and say something else."""
    found = {
        "zstd, frame tells the truth": packed(compression.ZSTD, zstd_bomb(size, size), 1_000),
        "zstd, frame lies, too": packed(compression.ZSTD, zstd_bomb(size, 1_000), 1_000),
        "zstd, frame says nothing": packed(compression.ZSTD, zstd_bomb(size, None), 1_000),
        "zstd, many frames": packed(compression.ZSTD, zstd_bomb(128 << 10, 128 << 10, size >> 17), 128 << 10),
        "zstd, few bytes that claim all": packed(compression.ZSTD, zstd_bomb(128 << 10, size), size),
        "zstd, cut off": packed(compression.ZSTD, zstd_bomb(size, size)[:-100], size),
        "zstd, more than a body may have": packed(compression.ZSTD, zstd_bomb(size, 2**32 - 1), 2**32 - 1),
        "gzip": packed(compression.GZIP, gzip_bomb(size), 1_000),
        "gzip, few bytes that claim all": packed(compression.GZIP, gzip_bomb(1 << 20), size),
        "gzip, two streams": packed(compression.GZIP, gzip_bomb(1 << 20) * 2, 1 << 20),
        "lz4": packed(compression.LZ4, lz4_bomb(size, size), 1_000),
        "lz4, frame lies, too": packed(compression.LZ4, lz4_bomb(size, 1_000), 1_000),
        "lz4, frame says nothing": packed(compression.LZ4, lz4_bomb(size, 0), 1_000),
        "lz4, few bytes that claim all": packed(compression.LZ4, lz4_bomb(1 << 20, size), size),
        "lz4, two frames": packed(compression.LZ4, lz4_bomb(1 << 20, 1 << 20) * 2, 1 << 20),
        "snappy": packed(compression.SNAPPY, snappy_bomb(size, size), 1_000),
        "snappy, block lies, too": packed(compression.SNAPPY, snappy_bomb(size, 1_000), 1_000),
        "snappy, few bytes that claim all": packed(compression.SNAPPY, snappy_bomb(1 << 20, size), size),
    }
    for codec_id in (compression.ZSTD, compression.GZIP, compression.LZ4, compression.SNAPPY):
        found[f"{compression.NAMES[codec_id]}, nothing at all"] = packed(codec_id, b"", 1_000)
        found[f"{compression.NAMES[codec_id]}, garbage"] = packed(codec_id, bytes(range(256)) * 8, 1_000)
    return found


def honest(size: int) -> list[bytes]:
    """Batches of a few bytes that truly hold one record of `size` bytes, for the codecs that can do that."""
    body = bytes([0, 0, 0, 0, 1, 0, 0, 0]) + words(0, size)
    blocks = zstd_bomb(size, size)[13:]
    first = (len(body) << 3).to_bytes(3, "little")  # a raw block that is not the last
    frame = b"\x28\xb5\x2f\xfd\xe0" + (size + 16).to_bytes(8, "little") + first + body + blocks
    return [packed(compression.ZSTD, frame, size + 16)]


def test_what_unpacks_to_more_than_it_says_is_refused_in_little_memory() -> None:
    """Unpacked, each takes more than the child may have."""
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all refused\n"


def main() -> None:
    """Take bombs in, in a process that may have as much memory again as it has now and 160 MiB."""
    size = 256 << 20
    found, large = bombs(size), honest(size)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (160 << 20),) * 2)
    for what, raw in found.items():
        for take in (
            lambda raw: accepted(raw, TopicConfig(), 5),
            lambda raw: received(raw, 0, "here"),
            lambda raw: list(RecordBatch.decode(raw).records()),
        ):
            try:
                take(raw)
            except (CorruptionError, BatchTooLargeError):
                continue
            raise AssertionError(what)
    for raw in large:
        try:
            accepted(raw, TopicConfig(), 5)
        except BatchTooLargeError:
            continue
        raise AssertionError("a client's batch that holds a record of 256 MiB")
    print("all refused")


@pytest.mark.parametrize("codec_name", ["zstd", "gzip", "lz4", "snappy"])
def test_a_client_s_batch_may_unpack_to_so_much_and_no_more(codec_name: str) -> None:
    config = TopicConfig(compression_type=codec_name, max_message_bytes=1 << 20)  # type: ignore[arg-type]
    fits = encoded([bytes(1 << 20)] * 32, config=config)
    assert accepted(stored(fits), config, 5).span == 32
    with pytest.raises(BatchTooLargeError) as caught:
        accepted(stored(encoded([bytes(1 << 20)] * 33, config=config)), config, 5)
    assert caught.value.args[1] == MOST_UNPACKED_BYTES + config.max_message_bytes
    plain = encoded([bytes(1 << 20)] * 40)
    assert accepted(stored(plain), config, 5).span == 40


def test_what_is_on_disk_may_unpack_to_more(tmp_path: Path) -> None:
    (raw,) = honest(64 << 20)
    assert len(raw) < 3_000
    batch = RecordBatch.decode(raw)
    assert [len(one.value or b"") for one in batch.records()] == [64 << 20]
    assert batch.body_bytes == (64 << 20) + 16 <= MAX_BODY_BYTES


if __name__ == "__main__":
    main()
