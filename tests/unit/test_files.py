from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog import files


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def whole(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def test_pieces_are_written_one_after_another_at_the_position(fd: int) -> None:
    files.write_at(fd, [b"ab", bytearray(b"cd"), memoryview(b"ef")], 6, 3)
    assert whole(fd) == b"\0\0\0abcdef"


@pytest.mark.parametrize("count", [1_023, 1_024, 1_025, 5_000])
def test_more_pieces_than_the_kernel_takes_at_once_are_written_all_the_same(fd: int, count: int) -> None:
    pieces = [b"%04d" % number for number in range(count)]
    files.write_at(fd, pieces, 4 * count, 0)
    assert whole(fd) == b"".join(pieces)


@pytest.mark.parametrize("accepted", [0, 1, 5, 9])
def test_a_short_write_is_continued(fd: int, accepted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(fd: int, pieces: list[bytes], position: int) -> int:
        return os.pwrite(fd, b"".join(pieces)[:accepted], position)

    monkeypatch.setattr(os, "pwritev", short)
    files.write_at(fd, [b"01234", b"56789"], 10, 2)
    assert whole(fd) == b"\0\x000123456789"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_the_ways_of_a_disk_to_be_full_are_known(number: int) -> None:
    assert files.is_full(OSError(number, "full"))
    assert not files.is_full(OSError(errno.EIO, "broken"))


def test_removing_a_file_that_is_gone_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    files.remove(str(path))
    files.remove(str(path))
    assert not path.exists()


def test_an_empty_file_has_no_map(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert files.map_file(str(path)) is None
    path.write_bytes(b"abc")
    view = files.map_file(str(path))
    assert view is not None
    assert bytes(view) == b"abc"


def test_a_map_for_reading_keeps_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(5_000))
    before = os.listdir("/proc/self/fd")
    view = files.map_file(str(path))
    assert os.listdir("/proc/self/fd") == before
    assert view is not None and len(view) == 5_000
    assert memoryview(view).readonly
    with path.open("r+b") as file:
        file.write(b"x")
    assert view[:2] == b"x\0"  # what is written later shows
    path.unlink()
    assert view[:2] == b"x\0"


def test_a_file_that_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with files.Descriptor(os.open(path, os.O_WRONLY)) as fd, pytest.raises(PermissionError):
        files._map_for_reading(fd, 3)


def test_a_writable_map_has_real_blocks_and_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    view = files.map_writable(str(path), 8_192)
    assert len(view) == 8_192
    assert os.stat(path).st_blocks * 512 >= 8_192
    view[3:6] = b"new"
    assert path.read_bytes()[:6] == b"oldnew"


def test_a_writable_map_never_makes_a_file_shorter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10_000))
    assert len(files.map_writable(str(path), 4_096)) == 10_000


def test_reserved_space_reads_as_zeros_and_cutting_takes_it_back(fd: int) -> None:
    files.write_at(fd, [b"data"], 4, 0)
    files.reserve(fd, 1_000)
    assert whole(fd) == b"data" + bytes(996)
    files.cut(fd, 4)
    assert whole(fd) == b"data"


def test_a_file_written_whole_replaces_the_old_one_and_leaves_no_temporary(tmp_path: Path) -> None:
    path, temporary = str(tmp_path / "file"), str(tmp_path / "temporary")
    for contents in (b"first", b"", b"third" * 1_000):
        files.write_whole(path, contents, temporary)
        assert Path(path).read_bytes() == contents
        assert os.listdir(tmp_path) == ["file"]


def test_a_file_written_whole_is_synced_before_it_is_renamed_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    for name in ("sync_data", "replace", "sync_directory"):
        real = getattr(files, name)
        monkeypatch.setattr(
            files, name, lambda *args, real=real, name=name: (steps.append(name), real(*args))[1]
        )
    files.write_whole(str(tmp_path / "file"), b"x", str(tmp_path / "temporary"))
    assert steps == ["sync_data", "replace", "sync_directory"]


def test_the_start_of_a_file_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(range(256)) * 1_000)
    with target.open("wb") as file:
        files.copy_start(str(source), file.fileno(), 100_000)
    assert target.read_bytes() == source.read_bytes()[:100_000]


def test_copying_more_than_there_is_fails_rather_than_coming_short(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    with (tmp_path / "target").open("wb") as file, pytest.raises(OSError, match="3 of 5"):
        files.copy_start(str(source), file.fileno(), 5)


def test_a_lock_excludes_others_and_shared_locks_do_not_exclude_each_other(tmp_path: Path) -> None:
    handles = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    one, two, three = handles
    try:
        assert files.try_lock(one)
        assert not files.try_lock(two)
        assert not files.try_lock(two, shared=True)
        files.unlock(one)
        assert files.try_lock(two, shared=True)
        assert files.try_lock(three, shared=True)
        assert not files.try_lock(one)
    finally:
        for handle in handles:
            os.close(handle)


def test_a_mapped_tail_is_part_of_the_file_and_has_real_blocks(fd: int, mapped_tail: None) -> None:
    page = files.PAGE_BYTES
    files.write_at(fd, [b"x" * (page + 10)], page + 10, 0)
    tail = files.map_tail(fd, page, page + 20_000)
    assert len(tail) == 20_000
    assert tail[:10] == b"x" * 10
    tail[10:14] = b"data"
    assert os.pread(fd, 5, page + 10) == b"data\0"
    files.write_at(fd, [b"more"], 4, page + 14)
    assert tail[10:18] == b"datamore"
    assert os.fstat(fd).st_blocks * 512 >= page + 20_000
    tail.close()


def test_no_tail_is_mapped_where_a_full_disk_could_kill(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_file_system", lambda device: "btrfs")
    with pytest.raises(OSError, match="in place"):
        files.map_tail(fd, 0, 4096)
    assert os.fstat(fd).st_size == 0


def test_the_kind_of_a_file_system_is_known_or_not(fd: int) -> None:
    assert files._file_system(os.stat("/proc/self").st_dev) == "proc"
    assert files._file_system(os.makedev(4095, 77)) is None


def test_without_proc_nobody_is_refused_for_want_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> list[str]:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", missing)
    assert files.descriptors_left() == sys.maxsize


@pytest.mark.parametrize("statx", ["as it is", "missing"])
def test_the_names_of_a_file_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statx: str) -> None:
    if statx == "missing":
        monkeypatch.setattr(files, "_statx", None)
    path = tmp_path / "file"
    with files.Descriptor(os.open(path, os.O_CREAT | os.O_RDWR)) as fd:
        assert files.link_count(fd) == 1
        os.link(path, tmp_path / "another name")
        assert files.link_count(fd) == 2
        path.unlink()
        (tmp_path / "another name").unlink()
        assert files.link_count(fd) == 0
    with pytest.raises(OSError, match="descriptor"):
        files.link_count(-1)


def test_a_descriptor_that_ctrl_c_kept_from_being_made_closes_nothing() -> None:
    half_made = files.Descriptor.__new__(files.Descriptor)
    half_made.close()
    del half_made
