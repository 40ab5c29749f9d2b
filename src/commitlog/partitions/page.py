"""The state page: what a partition's writer tells readers in other processes, and its own next run.

The first words are live: each is one aligned 64-bit word, so a reader never sees half a value, and a word
that depends on others is stored last. They are only believed while the writer lives.

What outlives the writer is a checkpoint, with a checksum, in one of two slots that are written in turn: one
that a power cut tore or a bit that rotted costs only the newer of the two. The page is derived, like the
indexes: if it is lost, it is made again from the .log files.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, NamedTuple, Self

from crc32c import crc32c

from commitlog import files
from commitlog.errors import CommitLogError, CorruptionError
from commitlog.open_files import OpenFiles, Restable

NAME = "state"
MAGIC = int.from_bytes(b"CLSTATE1", "little")
SIZE_BYTES = 4096
NOT_REPLICATED = -1

_MAGIC, _GENERATION, _START, _NEXT, _HIGH_WATERMARK, _DURABLE, _END_POSITION, _BASE, _CLEAN = range(9)
_PRODUCERS, _TRUNCATIONS, _HELD, _HELD_NEXT, _GONE = 9, 10, 11, 12, 13
_SLOTS = (512, 1024)  # in sectors of their own
_SLOT = Struct("<8q")  # sequence, and the fields of a checkpoint
_MARK_SLOTS = (1536, 2048)
_MARK = Struct("<2q")  # sequence, high_watermark
_CHECKSUM = Struct("<Q")
_NEVER = 1 << 62  # no sequence comes so far: a bit has rotted


class Checkpoint(NamedTuple):
    """Where a partition stood. After a crash, base_offset, end_position and next_offset are of no use."""

    start_offset: int
    durable_offset: int
    base_offset: int
    end_position: int
    next_offset: int
    clean_offset: int
    has_producers: int


class StatePage:
    """start_offset <= durable_offset <= next_offset; generation grows when the set of segments changes."""

    __slots__ = ("_map", "_mark_sequence", "_owner", "_path", "_sequence", "_words", "_writable", "inode")

    def __init__(self, directory: str, view: mmap.mmap, inode: int | None, writable: bool) -> None:
        self._path = os.path.join(directory, NAME)
        self._map = view
        self._writable = writable
        self.inode = inode
        self._owner: tuple[weakref.ref[Restable], OpenFiles] | None = None
        self._words = memoryview(view)[:SIZE_BYTES].cast("q")  # somebody may have made the file longer
        self._sequence = max((sequence for sequence, _ in self._checkpoints()), default=0)
        self._mark_sequence = max(self._kept_marks(), default=(0, 0))[0]

    @classmethod
    def create(cls, directory: str) -> Self:
        """Open for writing; a new page is all zeros and not valid before publish_layout()."""
        view = files.map_writable(os.path.join(directory, NAME), SIZE_BYTES)
        return cls(directory, view, cls.inode_in(directory), True)

    @classmethod
    def open(cls, directory: str) -> Self | None:
        """Open for reading; None if there is no page of ours."""
        try:
            inode = cls.inode_in(directory)
            view = files.map_file(os.path.join(directory, NAME), inode)
        except FileNotFoundError:
            return None
        if view is None or len(view) < SIZE_BYTES:
            return None
        page = cls(directory, view, inode, False)
        return page if page.valid else None

    def rest(self) -> None:
        """Let the map go for a while: the file keeps what was stored, and the next look maps it again.

        A thread that is just reading keeps the map until it is done.
        """
        for name in ("_words", "_map"):
            with contextlib.suppress(AttributeError):  # it rests already
                delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        if name not in ("_words", "_map"):
            raise AttributeError(name)
        owner = None if self._owner is None else self._owner[0]()
        try:
            again = files.map_again if self._writable else files.map_file
            view = again(self._path, self.inode)
        except (FileNotFoundError, ValueError):  # of a file that is empty
            view = None
        if view is None or len(view) < SIZE_BYTES:
            problem: CommitLogError = CorruptionError(self._path, 0, "the state page is not there any more")
            raise problem if owner is None else owner.lost(problem)
        if owner is not None:
            owner.mapped_again()
        self._map = view
        self._words = memoryview(view)[:SIZE_BYTES].cast("q")
        if self._owner is not None and owner is not None:
            self._owner[1].woke(owner)
        return getattr(self, name)

    def belongs_to(self, owner: Restable, cache: OpenFiles) -> None:
        """Let `cache` know that `owner` has files open whenever the page is mapped again."""
        self._owner = weakref.ref(owner), cache

    @staticmethod
    def inode_in(directory: str) -> int | None:
        """Return which file the page in a directory is, None if there is none."""
        try:
            return os.stat(os.path.join(directory, NAME)).st_ino
        except FileNotFoundError:
            return None

    @property
    def valid(self) -> bool:
        """Whether this is a page of ours."""
        return self._words[_MAGIC] == MAGIC

    # --- the checkpoint

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint whose checksum is right, None if there is none."""
        return max(self._checkpoints(), default=(0, None))[1]

    def _checkpoints(self) -> list[tuple[int, Checkpoint]]:
        found = [self._kept_at(slot, _SLOT) for slot in _SLOTS]
        return [(one[0], Checkpoint(*one[1:])) for one in found if one is not None and _can_be(*one)]

    @property
    def kept_high_watermark(self) -> int | None:
        """The high watermark that was published last, None if none ever was: there are no replicas."""
        kept = max(self._kept_marks(), default=None)
        return None if kept is None else kept[1]

    def _kept_marks(self) -> list[tuple[int, int]]:
        found = [self._kept_at(slot, _MARK) for slot in _MARK_SLOTS]
        return [(one[0], one[1]) for one in found if one is not None and 0 <= one[0] < _NEVER and one[1] >= 0]

    def _kept_at(self, slot: int, shape: Struct) -> tuple[int, ...] | None:
        raw = self._map[slot : slot + shape.size + _CHECKSUM.size]
        true = _CHECKSUM.unpack_from(raw, shape.size)[0] == _checksum(raw[: shape.size])
        return shape.unpack_from(raw) if true else None

    def keep(self) -> None:
        """Write where the partition stands over the older checkpoint."""
        words = self._words
        others = [sequence for sequence, _ in self._checkpoints()]  # another process may have kept one since
        self._sequence = max([self._sequence, *others]) + 1
        slot = _SLOTS[self._sequence % 2]
        raw = _SLOT.pack(
            self._sequence, words[_START], words[_DURABLE],
            words[_BASE], words[_END_POSITION], words[_NEXT], words[_CLEAN], words[_PRODUCERS],
        )  # fmt: skip
        self._map[slot : slot + _SLOT.size + _CHECKSUM.size] = raw + _CHECKSUM.pack(_checksum(raw))

    def _keep_mark(self) -> None:
        """Write the high watermark over the older one that is kept."""
        self._mark_sequence += 1
        slot = _MARK_SLOTS[self._mark_sequence % 2]
        raw = _MARK.pack(self._mark_sequence, self._words[_HIGH_WATERMARK])
        self._map[slot : slot + _MARK.size + _CHECKSUM.size] = raw + _CHECKSUM.pack(_checksum(raw))

    def sync(self) -> None:
        """Make the page durable, in both slots: whichever is lost, what was told here stands in the other."""
        self.keep()
        self.keep()
        if self._mark_sequence:  # publish_high_watermark() has written the other slot
            self._keep_mark()
        files.sync_map(self._map)

    def close(self) -> None:
        """Let the map go, at once."""
        # AttributeError: it rests; BufferError: two threads have mapped it at the same time
        with contextlib.suppress(AttributeError, BufferError):
            object.__getattribute__(self, "_words").release()
            object.__getattribute__(self, "_map").close()

    # --- telling

    def begin_change(self) -> None:
        """Tell readers that segments are about to change: the generation is odd until end_change()."""
        if self._words[_GENERATION] % 2 == 0:
            self._words[_GENERATION] += 1

    def end_change(self) -> None:
        """Let readers look at the segments again."""
        self.begin_change()
        self._words[_GENERATION] += 1

    def publish_layout(
        self, base_offset: int, end_position: int, next_offset: int, high_watermark: int = NOT_REPLICATED
    ) -> None:
        """Tell readers which segment is active and how far it goes. Between begin_ and end_change()."""
        words = self._words
        words[_BASE], words[_END_POSITION] = base_offset, end_position
        words[_HIGH_WATERMARK] = high_watermark
        words[_NEXT] = next_offset
        words[_MAGIC] = MAGIC
        if words[_HELD]:  # what a writer that dies from here on leaves, it leaves in this segment
            self.hold()

    def publish_start(self, start_offset: int) -> None:
        """Tell readers that nothing below `start_offset` may be read; sync() before anything is removed."""
        self._words[_START] = start_offset

    def publish_append(self, next_offset: int, end_position: int) -> None:
        """Tell readers that everything below `next_offset` can be read."""
        words = self._words
        words[_END_POSITION] = end_position
        words[_NEXT] = next_offset

    def publish_high_watermark(self, high_watermark: int) -> None:
        """Tell readers how far to read; it survives a kill, and after sync() a power cut."""
        self._words[_HIGH_WATERMARK] = high_watermark
        self._keep_mark()

    # for who does the same without a call: words[END_POSITION] first, then words[NEXT]
    END_POSITION, NEXT = _END_POSITION, _NEXT

    @property
    def words(self) -> memoryview[int]:
        """The page as 64-bit words."""
        return self._words

    def publish_durable(self, durable_offset: int) -> None:
        """Remember the recovery point. Only ever after a sync has returned."""
        self._words[_DURABLE] = durable_offset
        self.keep()

    def publish_clean(self, clean_offset: int) -> None:
        """Tell up to where compaction came; keep() remembers it."""
        self._words[_CLEAN] = clean_offset

    def publish_producers(self) -> None:
        """Tell that batches name their producer: they are looked at for it only then. keep() remembers it."""
        self._words[_PRODUCERS] = 1

    @property
    def has_producers(self) -> bool:
        """Whether any batch names its producer."""
        return bool(self._words[_PRODUCERS])

    # --- several writers

    def hold(self) -> None:
        """Note where things stand as a writer starts; one that dies before let_go() leaves the note."""
        words = self._words
        words[_HELD_NEXT] = words[_NEXT]
        words[_HELD] = words[_END_POSITION] + 1

    def let_go(self) -> None:
        """Note that everything the writer changed is whole."""
        self._words[_HELD] = 0

    @property
    def letting_go(self) -> Callable[[], None]:
        """A C function that does what let_go() does."""
        return partial(self._words.__setitem__, _HELD, 0)

    @property
    def left_by_the_dead(self) -> tuple[int, int] | None:
        """end_position and next_offset when a writer started that did not come to its end."""
        words = self._words
        return (words[_HELD] - 1, words[_HELD_NEXT]) if words[_HELD] else None

    def publish_gone(self) -> None:
        """Tell other writers that the topic was deleted."""
        self._words[_GONE] = 1

    @property
    def gone(self) -> bool:
        """Whether the topic was deleted."""
        return bool(self._words[_GONE])

    def count_truncation(self) -> None:
        """Tell readers that records are being removed from the back, and again once they are gone."""
        self._words[_TRUNCATIONS] += 1

    # --- reading what was told

    @property
    def generation(self) -> int:
        """Grows whenever segments come, go or are replaced."""
        return self._words[_GENERATION]

    @property
    def truncations(self) -> int:
        """Grows whenever a truncation begins or ends."""
        return self._words[_TRUNCATIONS]

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._words[_START]

    @property
    def next_offset(self) -> int:
        """The offset the next append gets."""
        return self._words[_NEXT]

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        return self._words[_DURABLE]

    @property
    def base_offset(self) -> int:
        """The base_offset of the active segment."""
        return self._words[_BASE]

    @property
    def clean_offset(self) -> int:
        """Up to where compaction came."""
        return self._words[_CLEAN]

    @property
    def end_position(self) -> int:
        """Where the active segment ends."""
        return self._words[_END_POSITION]

    @property
    def high_watermark(self) -> int:
        """Readers stop here; the next_offset of a partition that is not replicated."""
        mark = self._words[_HIGH_WATERMARK]
        return self._words[_NEXT] if mark == NOT_REPLICATED else mark


def _can_be(sequence: int, *kept: int) -> bool:
    """Say whether a partition can have stood where a checkpoint says; a right checksum may be forged."""
    start, durable, base, end_position, next_offset, clean, _ = kept
    in_order = 0 <= start <= next_offset and 0 <= durable <= next_offset and 0 <= base <= next_offset
    return 0 <= sequence < _NEVER and in_order and end_position >= 0 and clean >= 0


def _checksum(raw: bytes) -> int:
    return crc32c(raw) | 1 << 32  # a slot of zeros is none
