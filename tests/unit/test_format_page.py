"""docs/format.md is the only description of the bytes, so what it shows must be true."""

from __future__ import annotations

import re
from pathlib import Path
from struct import unpack_from

import pytest
from crc32c import crc32c

from commitlog import Record, RecordBatch, aborted_index
from commitlog.aborted_index import Aborted
from commitlog.batches.format import HEADER_BYTES, BatchHeader, check
from commitlog.batches.markers import encode_marker, first_offset_of
from commitlog.partitions.epochs import EpochHistory, EpochStart, from_text
from commitlog.partitions.page import NAME, SIZE_BYTES, Checkpoint, StatePage

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def section(heading: str) -> str:
    (found,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return str(found)


def places(text: str) -> dict[str, int]:
    """The rows of tables that give the byte where something stands."""
    return {name: int(place) for place, name in re.findall(r"^\| (\d+) \| (\w+) \|", text, re.MULTILINE)}


def example(heading: str = "Body") -> bytes:
    (block,) = re.findall(r"```hex\n(.*?)```", section(heading), re.DOTALL)
    return bytes.fromhex("".join(line.split("  ", 1)[1] for line in block.splitlines()))


def test_the_hex_example_decodes_to_the_records_the_page_names() -> None:
    batch = RecordBatch.decode(example())
    assert list(batch.records()) == [
        Record(42, 1700000000000, b"alice", b"three apples"),
        Record(43, 1700000000003, b"bob", b"a pear"),
        Record(44, 1700000000250, b"alice", None),
    ]
    assert batch.size_bytes == len(example())


def test_the_hex_example_of_a_marker_is_the_one_the_page_names() -> None:
    raw = example("Markers")
    header = check(raw, 0, len(raw), "format.md")
    assert header.is_marker and header.commits
    assert (header.base_offset, header.producer_id, header.producer_epoch) == (44, 7, 5)
    assert first_offset_of(header, raw, 0) == 42
    marker = encode_marker(7, 5, commits=True, first_offset=42, timestamp=1700000000000)
    assert b"".join(marker.stamped(44, 0)) == raw


def test_the_table_of_aborted_transactions_is_true(tmp_path: Path) -> None:
    log, entry = str(tmp_path / f"{0:020d}.log"), Aborted(7, 42, 44)
    aborted_index.store(log, [entry], (4000, 45))
    raw = Path(aborted_index.path_beside(log)).read_bytes()
    sizes = [
        int(size)
        for size in re.findall(r"^\|[\w ]*\| [iu](\d+) \|", section("Indexes").partition("###")[2], re.M)
    ]
    assert sizes == [64, 64, 32, 32, 64, 64, 64, 32, 32] and sum(sizes) == 8 * len(raw)
    size, end, count, crc, *entry_fields, entry_crc, zero = unpack_from("<QQIIqqqII", raw)
    assert (size, end, count, tuple(entry_fields), zero) == (4000, 45, 1, entry, 0)
    assert entry_crc == crc32c(raw[24:48])
    assert crc == crc32c(raw[:20] + bytes(4), crc32c(raw[24:]))


def test_the_example_of_leader_epochs_is_one() -> None:
    (block,) = re.findall(r"```\n(1\n.*?)```", PAGE, re.DOTALL)
    assert from_text(block) == EpochHistory((EpochStart(0, 0), EpochStart(5, 41250)))


def test_the_header_table_names_every_field_in_its_place() -> None:
    found = places(section("Batch header"))
    assert list(found) == [name.replace("crc", "checksum") for name in BatchHeader._fields]
    starts = list(found.values())
    assert starts[0] == 0 and starts == sorted(starts) and starts[-1] + 2 == HEADER_BYTES


@pytest.fixture
def written(tmp_path: Path) -> tuple[StatePage, bytes]:
    """A state page on which every word has a value of its own, and its bytes."""
    page = StatePage.create(str(tmp_path))
    page.publish_layout(base_offset=100, end_position=4000, next_offset=170, high_watermark=150)
    page.end_change()
    page.publish_start(110)
    page.publish_clean(120)
    page.publish_producers()
    for _ in range(6):
        page.count_truncation()
    page.hold()
    page.publish_append(180, 4800)
    page.publish_high_watermark(160)
    page.publish_gone()
    page.publish_transactions(140, aborts=3)
    page.publish_durable(130)
    page.sync()
    return page, (tmp_path / NAME).read_bytes()


def test_the_table_of_live_words_has_each_word_in_its_place(written: tuple[StatePage, bytes]) -> None:
    page, raw = written
    table = places(section("State page").partition("**Checkpoints**")[0])
    found = {name: unpack_from("<q", raw, place)[0] for name, place in table.items()}
    assert found.pop("magic").to_bytes(8, "little") == b"CLSTATE1"
    assert (found.pop("held") - 1, found.pop("held_next")) == page.left_by_the_dead == (4000, 170)
    assert found.pop("undecided") - 2 == page.undecided_offset == 140
    assert found == {name: getattr(page, name) for name in found}
    assert found == {
        "generation": 2, "start_offset": 110, "next_offset": 180, "high_watermark": 160,
        "durable_offset": 130, "end_position": 4800, "base_offset": 100, "clean_offset": 120,
        "has_producers": 1, "truncations": 6, "gone": 1, "aborts": 3,
    }  # fmt: skip
    assert sorted(table.values()) == list(range(0, 8 * len(table), 8))
    assert len(raw) == SIZE_BYTES and not any(raw[8 * len(table) : 512])


def test_the_table_of_a_checkpoint_has_each_field_in_its_place(written: tuple[StatePage, bytes]) -> None:
    page, raw = written
    table = places(section("State page").partition("**Checkpoints**")[2])
    assert list(table) == ["sequence", *Checkpoint._fields]
    for slot in (512, 1024):
        stored = {name: unpack_from("<q", raw, slot + place)[0] for name, place in table.items()}
        assert stored.pop("sequence") in (2, 3)
        assert Checkpoint(**stored) == page.checkpoint
        assert unpack_from("<2I", raw, slot + 64) == (crc32c(raw[slot : slot + 64]), 1)


def test_the_kept_high_watermarks_stand_where_the_page_says(written: tuple[StatePage, bytes]) -> None:
    page, raw = written
    for slot in (1536, 2048):
        assert unpack_from("<q", raw, slot + 8)[0] == page.kept_high_watermark == 160
        assert unpack_from("<2I", raw, slot + 16) == (crc32c(raw[slot : slot + 16]), 1)
        assert not any(raw[slot + 24 : slot + 512])
