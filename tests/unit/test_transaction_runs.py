"""Runs of batches go across markers and aborted transactions, and are what the batches are one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from helpers import encoded, flip, gappy, write_segment
from hypothesis import given
from hypothesis import strategies as st
from soak import SEED

from commitlog import CommitLog, CorruptionError, Partition, Record, TopicConfig
from commitlog import segment as segments
from commitlog.aborted_index import Aborted, AbortedRanges
from commitlog.batches.encode import EncodedBatch, numbered
from commitlog.batches.format import TRANSACTIONAL
from commitlog.batches.markers import encode_marker
from commitlog.batches.runs import Joining, joinable_run, joined
from commitlog.record import TopicPartition, with_name
from commitlog.segment import Segment

FAR = 1 << 62
PACKED = TopicConfig(compression_type="zstd")
NAME = TopicPartition("t", 0)
CONTENTS = {
    "one": encoded([b"one"]),
    "keyed": encoded([b"v", None], keys=[b"k", b"l"], timestamps=[500, 900]),
    "headers": encoded([b"v"] * 3, headers=[[("name", b"x")], [], [("name", None)]]),
    "packed": encoded([b"v" * 200] * 5, config=PACKED),
    "compacted": gappy([0, 3, 9], 12),
    "empty": gappy([], 4),
    "150 records": encoded([b"v" * 90] * 150),
    "too large for a run": encoded([b"v" * 90] * 400),
}


class Step(NamedTuple):
    """A batch that is appended: outside transactions, in one, or the marker that ends it."""

    producer_id: int | None
    content: str | None = None  # a marker has none
    commits: bool = True
    delete_horizon: int | None = None


PRODUCERS = st.sampled_from([7, 8, 9])
STEPS = st.one_of(
    st.builds(Step, st.none(), st.sampled_from(sorted(CONTENTS))),
    st.builds(Step, PRODUCERS, st.sampled_from(sorted(CONTENTS))),
    st.builds(Step, PRODUCERS, st.none(), st.booleans(), st.sampled_from([None, 1_700_000_000_000])),
)


def laid_out(steps: Sequence[Step]) -> tuple[list[EncodedBatch], list[Aborted]]:
    """Return the batches of these steps, and which transactions they abort."""
    found: list[EncodedBatch] = []
    aborted: list[Aborted] = []
    offset, firsts = 0, dict[int, int]()
    for step in steps:
        if step.content is None:
            assert step.producer_id is not None
            first = firsts.pop(step.producer_id, offset)
            one = encode_marker(
                step.producer_id,
                0,
                commits=step.commits,
                first_offset=first,
                timestamp=50,
                delete_horizon=step.delete_horizon,
            )
            if not step.commits:
                aborted.append(Aborted(step.producer_id, first, offset))
        else:
            one = CONTENTS[step.content]
            if step.producer_id is not None:
                one = numbered(one, (step.producer_id, 0, 0), TRANSACTIONAL)
                firsts.setdefault(step.producer_id, offset)
        found.append(one)
        offset += one.span
    return found, aborted


def one_by_one(
    segment: Segment, aborted: AbortedRanges | None, start: int = 0, end: int = FAR
) -> list[Record]:
    """The reference: every batch by itself."""
    found: list[Record] = []
    for batch in segment.batches():
        header = batch.header
        known = AbortedRanges() if aborted is None else aborted
        if header.is_transactional and known.covers(header.producer_id, header.base_offset):
            continue
        found += [one for one in batch.records() if start <= one.offset < end]
    return found


def check_every_way(segment: Segment, aborted: AbortedRanges | None, start: int, end: int) -> None:
    """Compare runs with the batches one by one; those that start before the end are read, and no others."""
    expected = one_by_one(segment, aborted, start, end)
    after_all = max([one.next_offset for one in segment.batches() if one.base_offset < end], default=start)
    after_all = max(after_all, start)
    reached = start
    found: list[Record] = []
    for records, after in segment.record_runs(start, end, aborted):
        assert after > reached
        reached = after
        found += records
    assert found == expected
    assert reached == after_all
    named = [one for records, _ in segment.record_runs(start, end, aborted, NAME) for one in records]
    assert named == with_name(NAME, expected)

    reached = start
    found = []
    for batch, after in segment.combined_batches(start, end, aborted=aborted):
        assert reached < batch.next_offset <= after
        reached = after
        found += batch.slice(start, end).records() if len(batch) else ()
    assert found == expected
    assert reached == after_all


@given(steps=st.lists(STEPS, max_size=40), repeats=st.integers(1, 8), data=st.data())
def test_runs_give_what_batches_give_one_by_one(steps: list[Step], repeats: int, data: Any) -> None:
    contents, entries = laid_out(steps * repeats)
    with tempfile.TemporaryDirectory() as directory:
        segment = Segment.open(write_segment(Path(directory), contents))
        end = sum(one.span for one in contents)
        places = st.integers(0, end)
        for start, stop in ((0, FAR), sorted([data.draw(places), data.draw(places)])):
            if start < stop:
                check_every_way(segment, AbortedRanges(entries), start, stop)
                check_every_way(segment, None, start, stop)


def transactions(count: int, content: str, *, aborts: Sequence[int] = ()) -> list[Step]:
    """`count` transactions of one batch, of which those in `aborts` are aborted."""
    steps = []
    for number in range(count):
        steps += [Step(7, content), Step(7, commits=number not in aborts)]
    return steps


@pytest.mark.parametrize("content", ["keyed", "packed", "150 records", "too large for a run"])
def test_ranges_may_begin_and_end_anywhere_in_a_run(tmp_path: Path, content: str) -> None:
    contents, entries = laid_out(transactions(25, content, aborts=[0, 3, 4, 24]))
    segment = Segment.open(write_segment(tmp_path, contents))
    span = contents[0].span + 1
    for first in (0, 2, 3, 4, 5, 23):
        for start in (first * span, first * span + span // 2, (first + 1) * span - 1):
            for length in (1, span - 1, span, 2 * span + 1, 9 * span, 100 * span):
                check_every_way(segment, AbortedRanges(entries), start, start + length)


def count_of_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many batches each run has."""
    found: list[int] = []

    def counting(*given: Any) -> Any:
        run = joinable_run(*given)
        found.append(len(run.starts))
        return run

    monkeypatch.setattr(segments, "joinable_run", counting)
    return found


@pytest.mark.parametrize("aborts", [range(0), range(0, 400, 10), range(50, 350), range(400)])
def test_runs_go_across_markers_and_aborted_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aborts: range
) -> None:
    contents, entries = laid_out(transactions(400, "150 records", aborts=aborts))
    segment = Segment.open(write_segment(tmp_path, contents))
    lengths = count_of_runs(monkeypatch)
    found = list(segment.combined_batches(0, aborted=AbortedRanges(entries)))
    assert sum(len(batch) for batch, _ in found) == 150 * (400 - len(aborts))
    assert (len(found), sum(lengths)) == (len(lengths), 800)  # no batch was read alone
    assert len(lengths) <= 5


def test_a_run_without_records_takes_its_offsets(tmp_path: Path) -> None:
    contents, entries = laid_out(transactions(10, "keyed", aborts=range(10)))
    path = write_segment(tmp_path, contents)
    raw = Path(path).read_bytes()
    wanted = Joining(FAR, 1 << 20, 1 << 20, aborted=AbortedRanges(entries))
    result = joined(joinable_run(raw, 0, len(raw), wanted), raw, path, 0, wanted)
    assert result is not None
    batch, run = result
    assert (len(batch), batch.base_offset, batch.next_offset, len(run.starts)) == (0, 0, 30, 20)
    assert (batch.size_bytes, batch.body_bytes, list(batch.records())) == (len(raw), 0, [])
    assert (batch.keys(), batch.values(), batch.headers(), batch.offsets.tolist()) == ([], [], [], [])


def with_damage(path: str, contents: Sequence[EncodedBatch], number: int) -> Segment:
    flip(path, sum(one.size for one in contents[:number]) + 66)
    return Segment.open(path)


@pytest.mark.parametrize("content", ["keyed", "150 records", "too large for a run"])
@pytest.mark.parametrize("damaged", [0, 1, 20, 21, 38, 39])
def test_damage_in_a_marker_or_an_aborted_batch_is_met_after_all_records_before_it(
    tmp_path: Path, content: str, damaged: int
) -> None:
    """Batch 20 is aborted, 21 is its marker; the others are committed."""
    contents, entries = laid_out(transactions(20, content, aborts=[10]))
    aborted = AbortedRanges(entries)
    path = write_segment(tmp_path, contents)
    expected = one_by_one(Segment.open(path), aborted)
    offset = sum(one.span for one in contents[:damaged])
    segment = with_damage(path, contents, damaged)

    def combined() -> Iterator[Record]:
        for batch, _ in segment.combined_batches(0, aborted=aborted):
            yield from batch.records() if len(batch) else ()

    ways = [
        (one for records, _ in segment.record_runs(0, FAR, aborted) for one in records),
        combined(),
    ]
    for way in ways:
        found: list[Record] = []
        with pytest.raises(CorruptionError) as caught:
            for record in way:
                found.append(record)
        assert caught.value.position == sum(one.size for one in contents[:damaged])
        assert found == [one for one in expected if one.offset < offset]


@pytest.mark.parametrize("content", ["keyed", "too large for a run"])
def test_a_marker_at_a_wrong_offset_is_damage(tmp_path: Path, content: str) -> None:
    contents, _ = laid_out(transactions(20, content))
    path = write_segment(tmp_path, contents)
    whole = Path(path).read_bytes()
    place = sum(one.size for one in contents[:21])
    marker = b"".join(contents[21].stamped(999_999, 0))
    Path(path).write_bytes(whole[:place] + marker + whole[place + len(marker) :])
    segment, found = Segment(path, 0, len(whole)), [0, 0]
    with pytest.raises(CorruptionError, match="offset 999999 where"):
        for records, _ in segment.record_runs(0, FAR):
            found[0] += len(list(records))
    with pytest.raises(CorruptionError, match="offset 999999 where"):
        for batch, _ in segment.combined_batches(0):
            found[1] += len(batch)
    assert found == [11 * (contents[0].span)] * 2


@pytest.mark.parametrize("content", ["keyed", "too large for a run"])
def test_no_transaction_is_served_where_a_marker_may_be_missing(tmp_path: Path, content: str) -> None:
    contents, entries = laid_out(transactions(40, content, aborts=range(20)))
    segment = Segment.open(write_segment(tmp_path, contents))
    unsure = AbortedRanges(entries)
    unsure.damage = CorruptionError("x.log", 5, "no batch starts here")
    for read in (segment.record_runs(0, FAR, unsure), segment.combined_batches(0, aborted=unsure)):
        found = 0
        with pytest.raises(CorruptionError, match="no batch starts here"):
            for piece, _ in read:
                found += len(list(piece.records() if hasattr(piece, "records") else piece))
        assert found == 0


# --- through a partition


def written(log: CommitLog, chance: Random, *, compacted: bool) -> Partition:
    """A partition of several segments with plain records and transactions of many sizes."""
    cleanup = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0} if compacted else {}
    topic = log.create_topic("t", config={"segment_bytes": 100_000, "flush_ms": -1, **cleanup})
    partition = topic.partition(0)
    for _ in range(300):
        size = chance.choice([1, 1, 2, 10, 150, 400])
        values = [b"%d" % chance.randrange(10**6) + b"." * chance.choice([0, 90])] * size
        keys = [b"k%d" % chance.randrange(500) for _ in range(size)]
        if chance.random() < 0.3:
            partition.append_many(values, keys=keys)
            continue
        transaction = log.transaction()
        transaction.append_many("t", values, keys=keys)
        transaction.flush()
        if chance.random() < 0.4:
            transaction.abort()
        else:
            transaction.commit()
    return partition


@pytest.mark.parametrize("compacted", [False, True])
def test_a_partition_is_read_the_same_in_every_way(log: CommitLog, compacted: bool) -> None:
    pytest.importorskip("pyarrow")
    chance = Random(SEED)
    partition = written(log, chance, compacted=compacted)
    if compacted:
        partition.compact()
    end = partition.next_offset
    ranges = [(0, end), *(sorted(chance.sample(range(end + 1), 2)) for _ in range(40))]
    for level in ("read_committed", "read_uncommitted"):
        for start, stop in ranges:
            batches = partition.batches(start, stop, isolation_level=level)
            expected = [record for batch in batches for record in batch.records()]
            assert list(partition.records(start, stop, isolation_level=level)) == expected
            table = partition.to_arrow(start, stop, isolation_level=level)
            table.validate(full=True)
            assert table.equals(partition.to_reader(start, stop, isolation_level=level).read_all())
            assert table.column("offset").to_pylist() == [one.offset for one in expected]
            assert table.column("timestamp").cast("int64").to_pylist() == [one.timestamp for one in expected]
            assert table.column("key").to_pylist() == [one.key for one in expected]
            assert table.column("value").to_pylist() == [one.value for one in expected]
    found = []
    with log.consumer("t", auto_offset_reset="earliest") as consumer:
        while tables := consumer.poll_arrow(max_bytes=50_000):
            found += [offset for table in tables.values() for offset in table.column("offset").to_pylist()]
    assert found == [record.offset for record in partition.records()]
