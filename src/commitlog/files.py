"""Everything asked of the file system: sync, rename, cut, lock, map, write. No other module does these.

Durability rests on these calls, and tests replace them with a disk that lies. Always call them as
`files.name(...)`, so that replacing a function here replaces it everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from struct import Struct

from commitlog.record import Buffer

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TOO_MANY = {errno.EMFILE, errno.ENFILE}

_MAX_PIECES = 1024  # the kernel's limit for one call
PAGE_BYTES = mmap.PAGESIZE
_NEW = os.O_CREAT | os.O_NOFOLLOW  # a link would lead out of the log: see first_link()
_libc = ctypes.CDLL(None, use_errno=True)
_statx = getattr(_libc, "statx", None)
_STATX_BYTES, _NLINK_BYTES = 256, slice(16, 20)
_AT_EMPTY_PATH, _STATX_NLINK = 0x1000, 0x4
_IN_PLACE = {"ext4", "xfs", "tmpfs"}  # file systems that overwrite a block in place
_IN_ORDER = {"x86_64"}  # machines on which all cores see stores in the order in which they were made


def is_full(error: OSError) -> bool:
    """Say whether an error means that the disk is full."""
    return error.errno in _FULL


def is_too_many(error: OSError) -> bool:
    """Say whether an error means that this process, or the machine, has too many files open."""
    return error.errno in _TOO_MANY


def most_descriptors() -> int:
    """Return the limit of open files of this process."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if most == resource.RLIM_INFINITY else most


@cache
def most_maps() -> int:
    """Return how many maps Linux allows a process."""
    try:
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 65_530


def descriptors_left() -> int:
    """Return how many more files this process may open; sys.maxsize if that is not known."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        with contextlib.suppress(FileNotFoundError):  # no /proc here
            return most - len(os.listdir("/proc/self/fd"))
    return sys.maxsize


class Descriptor:
    """A descriptor that is closed when nothing refers to it any more, even after Ctrl-C."""

    fd = -1  # until it is stored: Ctrl-C may come first

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> int:
        return self.fd

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it; closing twice is fine."""
        fd, self.fd = self.fd, -1
        if fd != -1:
            os.close(fd)


def open_empty(path: str) -> Descriptor:
    """Create a file, or empty it, and open it for writing."""
    return Descriptor(os.open(path, os.O_WRONLY | _NEW | os.O_TRUNC, 0o644))


pwrite = os.pwrite  # the fast path of a single append; returns the bytes written


def write_at(fd: int, pieces: Sequence[Buffer], size: int, position: int) -> None:
    """Write all pieces, `size` bytes in total, at `position`; after an OSError some may be written."""
    written = os.pwritev(fd, pieces, position) if len(pieces) <= _MAX_PIECES else 0
    if written != size:
        _write_rest(fd, b"".join(pieces), written, position)


def _write_rest(fd: int, whole: bytes, written: int, position: int) -> None:
    view = memoryview(whole)
    while written < len(whole):
        written += os.pwrite(fd, view[written:], position + written)


def sync_data(fd: int) -> None:
    """Make the contents of a file durable. Never call it again after a failure: the pages may be gone.

    This includes stores into a map of the file: on Linux, maps and writes share the same pages.
    """
    os.fdatasync(fd)


def link_count(fd: int) -> int:
    """Return the number of names of a file, without asking for its times.

    After fstat(), which asks for them, each write also stores a new timestamp, and the next sync waits for
    it: measured, 95 us instead of 65.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx is None or _statx(fd, b"", _AT_EMPTY_PATH, _STATX_NLINK, found) != 0:
        return os.fstat(fd).st_nlink
    return int.from_bytes(found.raw[_NLINK_BYTES], sys.byteorder)


def start_writing(fd: int, start: int, end: int) -> None:
    """Let the kernel start writing [start, end) to disk, so that a later sync waits less.

    That is what Linux does with this advice; dirty pages, as these are, stay in the page cache.
    """
    with contextlib.suppress(OSError):  # the sync reports errors that matter
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)


def sync_map(view: mmap.mmap) -> None:
    """Make the contents of a writable map durable."""
    view.flush()


def sync_directory(path: str) -> None:
    """Make creations, renames and removals in a directory durable."""
    with Descriptor(os.open(path, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        os.fsync(fd)


def make_directories(path: str) -> None:
    """Create a directory and its parents, durably."""
    parent = os.path.dirname(path)
    if not os.path.isdir(path):
        make_directories(parent)
        os.makedirs(path, exist_ok=True)
        sync_directory(parent)


def first_link(directory: str) -> str | None:
    """Return the path of a symbolic link in a directory; None if there is none."""
    with os.scandir(directory) as found:
        return next((one.path for one in found if one.is_symlink()), None)


def replace(source: str, target: str) -> None:
    """Rename a file, replacing `target` if it exists."""
    os.replace(source, target)


def link(path: str, other_name: str) -> None:
    """Give a file a second name."""
    os.link(path, other_name)


def remove(path: str) -> None:
    """Remove a file if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def cut(fd: int, size: int) -> None:
    """Cut a file to `size`. Only for bytes that were never published to readers: see map_file."""
    os.ftruncate(fd, size)


def reserve(fd: int, size: int, start: int = 0) -> None:
    """Allocate blocks for [start, size) of a file, so that a store into its map cannot meet a full disk."""
    os.posix_fallocate(fd, start, size - start)


def reserve_ahead(fd: int, start: int, end: int) -> None:
    """Allocate blocks for [start, end) behind the end of a file, whose size a sync then need not store.

    OSError on a full disk, and on a file system that may not keep them.
    """
    if _file_system(os.fstat(fd).st_dev) not in _IN_PLACE:
        raise OSError(errno.EOPNOTSUPP, "blocks are not overwritten in place")
    reserve(fd, end, start)


def open_same(path: str, inode: int | None, mode: int = os.O_RDONLY) -> int:
    """Open a file, by default for reading; FileNotFoundError if another file has taken its name."""
    fd = os.open(path, mode | os.O_NOFOLLOW)
    try:
        if inode is not None and os.fstat(fd).st_ino != inode:
            raise FileNotFoundError(errno.ENOENT, "replaced by another file", path)
    except BaseException:
        os.close(fd)
        raise
    return fd


if sys.version_info >= (3, 13):

    def _map_for_reading(fd: int, size: int) -> mmap.mmap:
        """Map a file, without a descriptor: a process may have far fewer of these than maps."""
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ, trackfd=False)

else:
    _map_at = _libc.mmap
    _map_at.restype = ctypes.c_void_p
    _map_at.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    _MAP_FIXED = 0x10
    _lost_maps: list[mmap.mmap] = []

    def _map_for_reading(fd: int, size: int) -> mmap.mmap:
        """Map a file, without a descriptor: a process may have far fewer of these than maps.

        Python's map of a file would keep a copy of the descriptor. One of memory has none, and the file then
        takes the place of the memory. Measured: 14 us instead of 9.
        """
        import numpy as np  # a process that maps nothing does without

        view = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
        address = np.frombuffer(view, np.uint8).ctypes.data
        if _map_at(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != address:
            _lost_maps.append(view)  # never unmapped: the addresses may be somebody else's by now
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return view


def map_file(path: str, inode: int | None = None) -> mmap.mmap | None:
    """Map a whole file for reading; None if it is empty. With `inode`, it must still be that file.

    Touching a lost page of a mapped file that has shrunk kills the process. So a file that may be mapped
    never shrinks below what was published: it is replaced by a shorter copy instead.
    """
    with Descriptor(open_same(path, inode)) as fd:
        size = os.fstat(fd).st_size
        return _map_for_reading(fd, size) if size else None


def map_again(path: str, inode: int | None) -> mmap.mmap:
    """Map a whole file for writing; FileNotFoundError if it is gone or another file has its name."""
    with Descriptor(open_same(path, inode, os.O_RDWR)) as fd:
        return mmap.mmap(fd, 0)


def map_writable(path: str, size: int) -> mmap.mmap:
    """Map a file for writing, with at least `size` bytes on reserved blocks; create it if necessary."""
    with Descriptor(os.open(path, os.O_RDWR | _NEW, 0o644)) as fd:
        if os.fstat(fd).st_size < size:
            reserve(fd, size)
        return mmap.mmap(fd, 0)


def map_tail(fd: int, start: int, end: int) -> mmap.mmap:
    """Map [start, end) of a file for writing, on reserved blocks; `start` is a multiple of PAGE_BYTES.

    OSError where a store is less safe than pwrite(): on a full disk; on a file system that may allocate
    another block at each store, because a full disk would then kill the process; and on a machine where a
    reader could see the new end of a log before the bytes.
    """
    if os.uname().machine not in _IN_ORDER:
        raise OSError(errno.EOPNOTSUPP, "pwrite() is safer here")
    reserve_ahead(fd, start, end)
    return mmap.mmap(fd, end - start, offset=start)


@cache
def _file_system(device: int) -> str | None:
    """Return the type of a mounted file system, None if it is not known."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[2] == number:
                return fields[fields.index("-") + 1]
    return None


def write_whole(path: str, contents: bytes, temporary: str) -> None:
    """Replace a small file durably: readers, also after a crash, see the old contents or the new."""
    with open_empty(temporary) as fd:
        write_at(fd, [contents], len(contents), 0)
        sync_data(fd)
    # crash: the temporary file stays beside the old one -> the next write_whole overwrites it
    replace(temporary, path)
    sync_directory(os.path.dirname(path))


def write_unsynced(path: str, contents: bytes) -> None:
    """Write a small file that may be lost and whose contents show whether it is complete."""
    with open_empty(path) as fd:
        write_at(fd, [contents], len(contents), 0)


def copy_start(source: str, fd: int, size: int) -> None:
    """Copy the first `size` bytes of the file `source` to another file."""
    with Descriptor(os.open(source, os.O_RDONLY | os.O_NOFOLLOW)) as reading:
        done = 0
        while done < size:
            moved = os.sendfile(fd, reading, done, size - done)
            if moved == 0:
                raise OSError(errno.EIO, f"ended after {done} of {size} bytes", source)
            done += moved


def try_lock(fd: int, *, shared: bool = False) -> bool:
    """Take the lock of an open file; return False if it is held elsewhere."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(fd: int, *, shared: bool = False) -> None:
    """Take the lock of an open file, waiting until it is free."""
    fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def lockers(fd: int) -> list[int]:
    """Return the ids of the processes that hold the lock of an open file, as far as the kernel shows them."""
    about = os.fstat(fd)
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as file:
            found = [line.split() for line in file]
    except OSError:
        return []
    pids = {fields[4] for fields in found if fields[1:2] == ["FLOCK"] and fields[5:6] == [place]}
    return sorted(int(pid) for pid in pids if pid.isdigit() and pid != "0")


_RANGE_LOCK = Struct("hhxxxxqqixxxx")  # struct flock: type, whence, start, length, process


def show_shared(fd: int) -> None:
    """Take a lock that does not conflict with flock() and that is_shared() can see."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RANGE_LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))


def is_shared(fd: int) -> bool:
    """Say whether a process has called show_shared(), without taking a lock."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _RANGE_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    return bool(_RANGE_LOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def unlock(fd: int) -> None:
    """Release the lock, even if a forked child still has the file open."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def unlocking(fd: int) -> Callable[[], None]:
    """Return a C function that unlocks a file: no signal handler can run inside it."""
    return partial(fcntl.flock, fd, fcntl.LOCK_UN)
