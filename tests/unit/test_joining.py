from __future__ import annotations

import pyarrow as pa
from helpers import decoded, encoded, gappy
from hypothesis import given
from hypothesis import strategies as st

from commitlog import RecordBatch, TopicConfig
from commitlog.batches import arrow
from commitlog.config import CompressionType

NAMES = arrow.SCHEMA.names
TEXTS = st.lists(st.one_of(st.none(), st.binary(max_size=5)), min_size=1, max_size=10)


def joined(batches: list[RecordBatch]) -> pa.Table:
    table = pa.Table.from_arrays(arrow.joined_arrays(batches, NAMES), schema=arrow.SCHEMA)
    table.validate(full=True)
    return table


def one_by_one(batches: list[RecordBatch]) -> pa.Table:
    return pa.Table.from_batches([arrow.from_batch(batch) for batch in batches])


@given(st.lists(TEXTS, min_size=1, max_size=6), st.data(), st.sampled_from(["none", "zstd"]))
def test_batches_put_together_are_the_same_records(
    contents: list[list[bytes | None]], data: st.DataObject, codec: CompressionType
) -> None:
    batches, offset = [], 0
    for values in contents:
        keys = data.draw(
            st.lists(st.one_of(st.none(), st.binary(max_size=3)), min_size=len(values), max_size=len(values))
        )
        headers = [[("h", value)] if len(value or b"") % 2 else [] for value in values]
        batch = decoded(
            encoded(
                values,
                keys=keys,
                headers=headers if data.draw(st.booleans()) else None,
                timestamps=range(offset, offset + len(values)),
                config=TopicConfig(compression_type=codec),
            ),
            offset,
        )
        low = data.draw(st.integers(offset, offset + len(values)))
        batches.append(batch.slice(low, data.draw(st.integers(low, offset + len(values)))))
        offset += len(values)
    assert joined(batches).equals(one_by_one(batches))


def test_gaps_that_compaction_left_are_kept() -> None:
    batches = [decoded(gappy([0, 3, 9], 12), 100), decoded(gappy([1], 5), 112), decoded(gappy([], 5), 117)]
    assert joined(batches).column("offset").to_pylist() == [100, 103, 109, 113]
    assert joined(batches).equals(one_by_one(batches))
