from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.state import StatePage


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
