from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from commitlog import CommitLog, ConfigError, Partitioner, register_partitioner
from commitlog.topics.partitioner import make_partitioner, murmur2, murmur2_many

KAFKAS_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
KEYS = [b"", *(b"key-%d" % number for number in range(200)), *(bytes(size) for size in range(1, 40))]


@pytest.mark.parametrize(("key", "expected"), KAFKAS_VECTORS.items())
def test_murmur2_gives_kafkas_hashes_with_the_sign_cleared(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0x7FFF_FFFF


def test_murmur2_of_many_keys_is_murmur2_of_each() -> None:
    keys: list[Any] = [*KAFKAS_VECTORS, *KEYS]
    assert murmur2_many(keys).tolist() == [murmur2(key) for key in keys]


@pytest.mark.parametrize("name", ["xxhash", "murmur2"])
@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 100])
def test_a_key_goes_to_the_same_partition_alone_and_in_a_batch(name: str, partitions: int) -> None:
    partitioner = make_partitioner(name)
    together = partitioner.many(KEYS, partitions)
    assert together.tolist() == [partitioner.one(key, partitions) for key in KEYS]
    assert set(together.tolist()) <= set(range(partitions))


@pytest.mark.parametrize("name", ["xxhash", "murmur2"])
def test_keys_spread_over_all_partitions(name: str) -> None:
    chosen = make_partitioner(name).many([b"key-%d" % number for number in range(3_000)], 3)
    counts = np.bincount(chosen, minlength=3)
    assert counts.min() > 800


def test_kafkas_partition_is_the_hash_modulo_the_count() -> None:
    partitioner = make_partitioner("murmur2")
    for key, expected in KAFKAS_VECTORS.items():
        assert partitioner.one(key, 10) == (expected & 0x7FFF_FFFF) % 10


@pytest.mark.parametrize("name", ["xxhash", "murmur2"])
def test_unkeyed_records_take_turns_one_by_one_and_batch_by_batch(name: str) -> None:
    partitioner = make_partitioner(name)
    assert sorted(partitioner.one(None, 4) for _ in range(4)) == [0, 1, 2, 3]
    batches = [partitioner.many([None] * 5, 4).tolist() for _ in range(4)]
    assert all(len(set(batch)) == 1 for batch in batches)
    assert sorted(batch[0] for batch in batches) == [0, 1, 2, 3]


def test_in_a_mixed_batch_keys_decide_and_the_unkeyed_stay_together() -> None:
    partitioner = make_partitioner("xxhash")
    keys = [b"a", None, b"b", None, None, b"c"]
    chosen = partitioner.many(keys, 5).tolist()
    assert len({partition for key, partition in zip(keys, chosen, strict=True) if key is None}) == 1
    for key, partition in zip(keys, chosen, strict=True):
        if key is not None:
            assert partition == partitioner.one(key, 5)


@pytest.mark.parametrize("name", ["xxhash", "murmur2"])
def test_keys_may_be_anything_bytes_like(name: str) -> None:
    partitioner = make_partitioner(name)
    keys: list[Any] = [b"abcde", bytearray(b"abcde"), memoryview(b"abcde")]
    assert len(set(partitioner.many(keys, 1_000).tolist())) == 1
    assert len({partitioner.one(key, 1_000) for key in keys}) == 1


def test_no_keys_give_no_partitions() -> None:
    assert make_partitioner("murmur2").many([], 3).tolist() == []


def test_an_unknown_partitioner_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ConfigError, match=r"partitioner = 'dice'.*murmur2, xxhash"):
        make_partitioner("dice")


class LastByte:
    """Chooses by the last byte of the key."""

    def one(self, key: Any, partitions: int) -> int:
        return key[-1] % partitions if key else 0

    def many(self, keys: Sequence[Any], partitions: int) -> Any:
        return np.array([self.one(key, partitions) for key in keys], np.int64)


def test_a_topic_uses_a_partitioner_of_ones_own(log: CommitLog) -> None:
    register_partitioner("last-byte", LastByte)
    chooser: Partitioner = LastByte()
    topic = log.create_topic("t", partitions=3, config={"partitioner": "last-byte"})
    for number in range(9):
        partition, _ = topic.append(b"v", key=bytes([number]))
        assert partition == chooser.one(bytes([number]), 3)
    shares = topic.append_many([b"v"] * 9, keys=[bytes([number]) for number in range(9)])
    assert {partition: len(offsets) for partition, offsets in shares.items()} == {0: 3, 1: 3, 2: 3}


def test_appending_to_a_topic_whose_partitioner_is_not_registered_is_refused(log: CommitLog) -> None:
    topic = log.create_topic("t", partitions=2, config={"partitioner": "elsewhere"})
    with pytest.raises(ConfigError, match="elsewhere"):
        topic.append(b"v", key=b"k")
    with pytest.raises(ConfigError, match="elsewhere"):
        topic.append_many([b"v"], keys=[b"k"])
    assert [partition.next_offset for partition in topic.partitions] == [0, 0]
    topic.append(b"v", key=b"k", partition=1)
    assert topic.partition(1).next_offset == 1
