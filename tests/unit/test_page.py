from __future__ import annotations

from pathlib import Path

import pytest
from helpers import flip

from commitlog.partitions.page import Checkpoint, StatePage

SLOTS = [range(512, 584), range(1024, 1096)]


@pytest.fixture
def page(tmp_path: Path) -> StatePage:
    page = StatePage.create(str(tmp_path))
    page.begin_change()
    page.publish_layout(40, 800, 50)
    page.end_change()
    return page


def test_a_reader_sees_what_the_writer_publishes_as_it_is_published(page: StatePage, tmp_path: Path) -> None:
    reader = StatePage.open(str(tmp_path))
    assert reader is not None
    assert (reader.base_offset, reader.end_position, reader.next_offset) == (40, 800, 50)
    page.publish_append(51, 888)
    assert (reader.next_offset, reader.end_position, reader.high_watermark) == (51, 888, 51)
    page.publish_start(45)
    page.publish_durable(49)
    assert (reader.start_offset, reader.durable_offset) == (45, 49)


def test_there_is_no_page_before_a_layout_was_published(tmp_path: Path) -> None:
    assert StatePage.open(str(tmp_path)) is None
    StatePage.create(str(tmp_path))
    assert StatePage.open(str(tmp_path)) is None


@pytest.mark.parametrize("junk", [b"", b"CLSTATE1", bytes(4_096), b"\xff" * 4_096, b"x" * 100])
def test_a_page_that_is_not_ours_or_not_whole_is_not_trusted(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "state").write_bytes(junk)
    assert StatePage.open(str(tmp_path)) is None


def test_the_generation_is_odd_while_segments_change_and_grows(page: StatePage) -> None:
    before = page.generation
    assert before % 2 == 0
    page.begin_change()
    assert page.generation % 2 == 1
    page.begin_change()
    assert page.generation == before + 1
    page.end_change()
    assert page.generation == before + 2


def test_a_change_that_a_crash_interrupted_is_ended_by_the_next_one(page: StatePage) -> None:
    page.begin_change()
    page.end_change()
    assert page.generation % 2 == 0


def test_a_page_keeps_its_contents_when_it_is_opened_for_writing_again(
    page: StatePage, tmp_path: Path
) -> None:
    page.publish_durable(45)
    again = StatePage.create(str(tmp_path))
    assert again.valid
    assert (again.next_offset, again.durable_offset) == (50, 45)


def test_every_number_an_offset_can_be_fits(page: StatePage) -> None:
    page.publish_append(2**63 - 1, 2**31)
    assert (page.next_offset, page.end_position) == (2**63 - 1, 2**31)


# --- what outlives the writer


@pytest.fixture
def kept(page: StatePage, tmp_path: Path) -> Path:
    """A page whose two checkpoints say that 41 and then 42 is durable."""
    page.publish_start(40)
    page.publish_durable(41)
    page.publish_durable(42)
    return tmp_path


def durable_in(directory: Path) -> int | None:
    page = StatePage.open(str(directory))
    assert page is not None
    return page.checkpoint.durable_offset if page.checkpoint else None


def test_a_checkpoint_is_what_stood_when_it_was_kept(page: StatePage, tmp_path: Path) -> None:
    assert page.checkpoint is None
    page.publish_start(45)
    page.publish_durable(49)
    page.publish_append(51, 888)
    reader = StatePage.open(str(tmp_path))
    assert reader is not None
    assert reader.checkpoint == Checkpoint(45, 49, 40, 800, 50, 0, 0)
    page.publish_clean(44)
    page.sync()
    assert reader.checkpoint == Checkpoint(45, 49, 40, 888, 51, 44, 0)


def test_any_flipped_bit_costs_only_one_of_two_checkpoints(kept: Path) -> None:
    whole = (kept / "state").read_bytes()
    found = set()
    for place in (*SLOTS[0], *SLOTS[1]):
        for bit in range(8):
            flip(kept / "state", place, 1 << bit)
            found.add(durable_in(kept))
            flip(kept / "state", place, 1 << bit)
    assert found == {41, 42}
    assert (kept / "state").read_bytes() == whole


def test_without_a_sound_checkpoint_there_is_none(kept: Path) -> None:
    for slot in SLOTS:
        flip(kept / "state", slot[3])
    assert durable_in(kept) is None


def test_what_was_synced_stands_in_both_checkpoints(page: StatePage, tmp_path: Path) -> None:
    page.publish_durable(42)
    page.publish_start(41)
    page.sync()
    for slot in SLOTS:
        flip(tmp_path / "state", slot[0])
        again = StatePage.open(str(tmp_path))
        assert again is not None
        assert again.checkpoint == Checkpoint(41, 42, 40, 800, 50, 0, 0)
        flip(tmp_path / "state", slot[0])


def test_a_page_opened_again_writes_over_the_older_checkpoint(kept: Path) -> None:
    again = StatePage.create(str(kept))
    again.publish_durable(43)
    assert durable_in(kept) == 43
    damaged = [durable_after(kept, slot[0]) for slot in SLOTS]
    assert sorted(damaged) == [42, 43]


def durable_after(directory: Path, place: int) -> int:
    flip(directory / "state", place)
    found = durable_in(directory)
    flip(directory / "state", place)
    assert found is not None
    return found


# --- the high watermark


def test_without_replicas_the_high_watermark_is_next_offset_and_none_is_kept(page: StatePage) -> None:
    assert page.kept_high_watermark is None
    page.publish_append(51, 888)
    assert page.high_watermark == 51
    page.sync()
    assert page.kept_high_watermark is None


def test_a_published_high_watermark_is_seen_and_outlives_the_writer(page: StatePage, tmp_path: Path) -> None:
    reader = StatePage.open(str(tmp_path))
    assert reader is not None
    for mark in (41, 44, 43):
        page.publish_high_watermark(mark)
        assert (reader.high_watermark, reader.kept_high_watermark) == (mark, mark)
    again = StatePage.create(str(tmp_path))
    again.publish_high_watermark(42)
    assert reader.kept_high_watermark == 42


def test_after_a_sync_no_older_high_watermark_is_left(page: StatePage, tmp_path: Path) -> None:
    page.publish_high_watermark(48)
    page.publish_high_watermark(41)
    page.sync()
    for slot in (1536, 2048):
        flip(tmp_path / "state", slot)
        assert page.kept_high_watermark == 41
        flip(tmp_path / "state", slot)


def test_no_bit_of_a_kept_high_watermark_rots_unnoticed(page: StatePage, tmp_path: Path) -> None:
    page.publish_high_watermark(48)
    (slot,) = [slot for slot in (1536, 2048) if any((tmp_path / "state").read_bytes()[slot : slot + 24])]
    for position in range(slot, slot + 24):
        flip(tmp_path / "state", position, 2)
        assert page.kept_high_watermark is None
        flip(tmp_path / "state", position, 2)
    assert page.kept_high_watermark == 48


def test_a_layout_is_published_with_its_high_watermark(page: StatePage) -> None:
    page.publish_layout(40, 800, 50, 45)
    assert page.high_watermark == 45
    page.publish_layout(40, 800, 50)
    assert page.high_watermark == 50


def test_a_page_that_somebody_made_longer_is_read_and_written_all_the_same(
    page: StatePage, tmp_path: Path
) -> None:
    page.publish_layout(0, 0, 7)
    with open(tmp_path / "state", "ab") as file:
        file.write(b"\0")
    longer = StatePage.open(str(tmp_path))
    assert longer is not None
    assert longer.next_offset == 7
    StatePage.create(str(tmp_path)).publish_append(8, 0)
    assert longer.next_offset == 8
