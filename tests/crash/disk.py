"""A disk that loses power: it watches a directory and knows what a power cut would leave of it.

The files are real, so the engine runs unchanged. Beside them FakeDisk keeps a *durable image*: the
contents of a file become durable when it is synced, the names in a directory when the directory is. What
happened since may or may not have reached the disk: page by page for contents, change by change for names.

Every call by which the engine changes or syncs something is a *point*: a place to cut the power, before it
takes effect and after.
"""

from __future__ import annotations

import mmap
import os
import random
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commitlog import files

Image = dict[str, "bytes | Image"]  # a directory: names to contents; a file with two names is one object
_SECTOR_BYTES, _PAGE_BYTES = 512, 4096
_CHANGING = (
    "unlink", "link", "mkdir", "rmdir", "ftruncate", "pwritev", "pwrite", "sendfile", "posix_fallocate"
)  # fmt: skip


@dataclass
class _File:
    """`versions` are the contents seen since the last sync, the first one is durable."""

    handle: int  # kept open, so that the inode's number is not given to another file
    versions: list[bytes]


@dataclass
class _Change:
    """A change of a directory that happens as a whole or not at all; None takes the name away."""

    number: int
    names: dict[str, int | None]


@dataclass
class _Directory:
    handle: int
    durable: dict[str, int] = field(default_factory=dict)
    live: dict[str, int] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)


class _Tail:
    """A mapped tail; each store into it is a point."""

    def __init__(self, view: mmap.mmap, around: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._view = view
        self._around = around
        self.close = view.close

    def __setitem__(self, place: slice, data: bytes) -> None:
        self._around("store into a map", lambda: self._view.__setitem__(place, data))


class FakeDisk:
    """Watches `root`, whose present contents count as durable. `on_point(label)` is called at each point."""

    def __init__(self, root: Path, on_point: Callable[[str], None] = lambda _: None) -> None:
        self._root = os.fspath(root)
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Directory] = {}
        self._maps: dict[int, tuple[mmap.mmap, str, int]] = {}  # kept alive: the key is their id
        self._changes = 0
        self._on_point = on_point
        self._busy = False
        self._starting = True
        self._root_inode = self._adopt(self._root)
        self._starting = False
        for directory in self._directories.values():
            directory.durable, directory.pending = dict(directory.live), []

    # --- what is there

    def _adopt(self, path: str) -> int:
        """Start to watch a file or directory, and all below it."""
        about = os.lstat(path)
        inode = about.st_ino
        if stat.S_ISDIR(about.st_mode):
            if inode not in self._directories:
                self._directories[inode] = _Directory(os.open(path, os.O_RDONLY))
            self._look_at_names(inode, path)
        elif inode not in self._files:
            contents = _read(path)
            versions = [contents] if self._starting else [b"", contents]  # nothing of a new file is durable
            self._files[inode] = _File(os.open(path, os.O_RDONLY), versions)
        return inode

    def _look_at_names(self, inode: int, path: str) -> None:
        directory = self._directories[inode]
        now = {name: self._adopt(os.path.join(path, name)) for name in sorted(os.listdir(path))}
        for name in sorted(directory.live.keys() | now.keys()):
            if directory.live.get(name) != now.get(name):
                self._note(directory, {name: now.get(name)})
        directory.live = now

    def _note(self, directory: _Directory, names: dict[str, int | None]) -> None:
        self._changes += 1
        directory.pending.append(_Change(self._changes, names))

    def _observe(self) -> None:
        """Take note of everything that happened since the last look."""
        self._changes += 1
        self._adopt(self._root)
        for file in self._files.values():
            contents = _read_handle(file.handle)
            if contents != file.versions[-1]:
                file.versions.append(contents)

    def _watched(self, inode: int) -> bool:
        return inode in self._files or inode in self._directories

    # --- what becomes durable

    def _sync(self, inode: int) -> None:
        if inode in self._files:
            self._files[inode].versions = self._files[inode].versions[-1:]
        else:
            directory = self._directories[inode]
            directory.durable, directory.pending = dict(directory.live), []

    # --- what a power cut leaves

    def lost(self) -> Image:
        """Nothing that was not synced."""
        return self._image(lambda directory: directory.durable, lambda file: file.versions[0])

    def kept(self) -> Image:
        """Everything, as after a kill."""
        return self._image(lambda directory: directory.live, lambda file: file.versions[-1])

    def names_only(self) -> Image:
        """All names, but no contents: files that are there and empty."""
        return self._image(lambda directory: directory.live, lambda file: file.versions[0])

    def contents_only(self) -> Image:
        """All contents, but no names."""
        return self._image(lambda directory: directory.durable, lambda file: file.versions[-1])

    def some(self, chance: random.Random) -> Image:
        """Some of the pages, some of the names; names change in order on some disks, on others not."""
        in_order = chance.random() < 0.5
        last = chance.randint(0, self._changes)

        def names(directory: _Directory) -> dict[str, int]:
            found = dict(directory.durable)
            for change in directory.pending:
                if change.number <= last if in_order else chance.random() < 0.5:
                    _apply(found, change)
            return found

        return self._image(names, lambda file: _mixed(file.versions, chance))

    def _image(
        self, names: Callable[[_Directory], dict[str, int]], contents: Callable[[_File], bytes]
    ) -> Image:
        drawn: dict[int, bytes] = {}  # a file with two names has one content

        def below(inode: int) -> bytes | Image:
            if inode in self._directories:
                return {name: below(one) for name, one in names(self._directories[inode]).items()}
            if inode not in drawn:
                drawn[inode] = _Contents(contents(self._files[inode]))
            return drawn[inode]

        image = below(self._root_inode)
        assert isinstance(image, dict)
        return image

    # --- how it sees what the engine does

    @contextmanager
    def watching(self) -> Iterator[FakeDisk]:
        """Stand between the engine and the file system."""
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, self._syncing(name))
            for name in ("replace", "rename"):
                patch.setattr(os, name, self._renaming(name, getattr(os, name)))
            for name in _CHANGING:
                patch.setattr(os, name, self._changing(name, getattr(os, name)))
            patch.setattr(files, "pwrite", self._changing("pwrite", files.pwrite))
            patch.setattr(files, "map_writable", self._mapping(files.map_writable))
            patch.setattr(files, "map_again", self._mapping(files.map_again))
            patch.setattr(files, "map_tail", self._tail(files.map_tail))
            patch.setattr(files, "sync_map", self._sync_map)
            try:
                yield self
            finally:
                self._close()

    def _close(self) -> None:
        opened: list[_File | _Directory] = [*self._files.values(), *self._directories.values()]
        for one in opened:
            os.close(one.handle)

    def _around(self, label: str, action: Callable[[], Any]) -> Any:
        """Do what the engine asked for, with a point before and a point after."""
        if self._busy:
            return action()
        self._point(f"before {label}")
        result = action()
        self._point(f"after {label}")
        return result

    def _point(self, label: str) -> None:
        self._busy = True
        try:
            self._observe()
            self._on_point(label)
        finally:
            self._busy = False

    def _syncing(self, name: str) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            self._sync_inode(os.fstat(fd).st_ino, f"{name} of {_place(fd)}")

        return sync

    def _sync_inode(self, inode: int, label: str) -> None:
        def action() -> None:
            if self._watched(inode):
                self._sync(inode)

        self._around(label, action)

    def _renaming(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, **kwargs: Any) -> None:
            def action() -> None:
                inode = os.lstat(source).st_ino
                real(source, target, **kwargs)
                self._renamed(os.fspath(source), os.fspath(target), inode)

            self._around(f"{name} to {target}", action)

        return rename

    def _renamed(self, source: str, target: str, inode: int) -> None:
        """Note a rename as one change; the names it took and gave are seen already."""
        if not target.startswith(self._root):
            return
        assert os.path.dirname(source) == os.path.dirname(target), "a rename across directories"
        directory = self._directories[os.lstat(os.path.dirname(target)).st_ino]
        names: dict[str, int | None] = {os.path.basename(source): None, os.path.basename(target): inode}
        self._note(directory, names)
        _apply(directory.live, directory.pending[-1])

    def _changing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **kwargs: Any) -> Any:
            return self._around(f"{name} of {_place(args[0])}", lambda: real(*args, **kwargs))

        return change

    def _mapping(self, real: Callable[..., mmap.mmap]) -> Callable[..., mmap.mmap]:
        def map_writable(path: str, *args: Any, **kwargs: Any) -> mmap.mmap:
            view = real(path, *args, **kwargs)
            self._maps[id(view)] = view, path, os.stat(path).st_ino
            return view

        return map_writable

    def _tail(self, real: Callable[..., mmap.mmap]) -> Callable[..., _Tail]:
        return lambda *args: _Tail(real(*args), self._around)

    def _sync_map(self, view: mmap.mmap) -> None:
        _, path, inode = self._maps[id(view)]
        self._sync_inode(inode, f"sync of the map of {_place(path)}")


def _place(what: Any) -> str:
    """Name a path or descriptor for a label."""
    path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.fspath(what)
    return os.path.basename(path)


def _apply(names: dict[str, int], change: _Change) -> None:
    for name, inode in change.names.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _mixed(versions: list[bytes], chance: random.Random) -> bytes:
    """Take each page (or, on a disk that tears those, each sector) from any of the versions."""
    if len(versions) == 1:
        return versions[0]
    unit = chance.choice([_SECTOR_BYTES, _PAGE_BYTES])
    size = len(chance.choice(versions))
    pieces = []
    for position in range(0, size, unit):
        piece = chance.choice(versions)[position : position + unit]
        pieces.append(piece.ljust(min(unit, size - position), b"\0"))
    return b"".join(pieces)[:size]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read_handle(handle: int) -> bytes:
    return os.pread(handle, os.fstat(handle).st_size, 0)


class _Contents(bytes):
    """Bytes that are the same object only where they are of the same file."""


def write_image(image: Image, path: Path, written: dict[int, Path] | None = None) -> None:
    """Make a real directory of an image."""
    written = {} if written is None else written
    path.mkdir()
    for name, contents in image.items():
        if isinstance(contents, dict):
            write_image(contents, path / name, written)
        elif isinstance(contents, _Contents) and id(contents) in written:
            os.link(written[id(contents)], path / name)
        else:
            (path / name).write_bytes(contents)
            written[id(contents)] = path / name
