"""The state page: what a partition's writer tells readers in other processes, and its own next run.

The first words are live. Each is an aligned 64-bit word, so a reader never sees half a value; a word that
depends on others is stored last. They are valid only while the writer lives.

Checkpoints outlive the writer. They have a checksum and are written to two slots in turn, so that a power cut
or a rotten bit costs at most the newer one. The page is derived, like the indexes: if it is lost, it is
rebuilt from the .log files.
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

from commitlog import files
from commitlog.checksum import crc32c
from commitlog.errors import CommitLogError, CorruptionError
from commitlog.open_files import OpenFiles, Restable

NAME = "state"
MAGIC = int.from_bytes(b"CLSTATE1", "little")
SIZE_BYTES = 4096
NOT_REPLICATED = -1

_MAGIC, _GENERATION, _START, _NEXT, _HIGH_WATERMARK, _DURABLE, _END_POSITION, _BASE, _CLEAN = range(9)
_PRODUCERS, _TRUNCATIONS, _HELD, _HELD_NEXT, _GONE, _UNDECIDED, _ABORTS = 9, 10, 11, 12, 13, 14, 15
_ALL_DECIDED = 1  # 0: there never was a transaction; above, 2 less is the first undecided offset
_SLOTS = (512, 1024)  # each in its own sector
_SLOT = Struct("<8q")  # sequence, and the fields of a checkpoint
_MARK_SLOTS = (1536, 2048)
_MARK = Struct("<2q")  # sequence, high_watermark
_CHECKSUM = Struct("<Q")
_NEVER = 1 << 62  # no sequence gets this far: a bit has rotted


class Checkpoint(NamedTuple):
    """The state of a partition. After a crash, base_offset, end_position and next_offset do not count."""

    start_offset: int
    durable_offset: int
    base_offset: int
    end_position: int
    next_offset: int
    clean_offset: int
    has_producers: int


class _Word:
    """A live word of the page, to be read as an attribute."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __get__(self, page: StatePage, _: type[StatePage]) -> int:
        return page._words[self._number]


class StatePage:
    """start_offset <= durable_offset <= next_offset; generation grows when the set of segments changes."""

    __slots__ = ("_map", "_mark_sequence", "_owner", "_path", "_sequence", "_words", "_writable", "inode")

    def __init__(self, directory: str, view: mmap.mmap, inode: int | None, writable: bool) -> None:
        self._path = os.path.join(directory, NAME)
        self._map = view
        self._writable = writable
        self.inode = inode
        self._owner: tuple[weakref.ref[Restable], OpenFiles] | None = None
        self._words = memoryview(view)[:SIZE_BYTES].cast("q")  # the file may be longer
        self._sequence = max((sequence for sequence, _ in self._checkpoints()), default=0)
        self._mark_sequence = max(self._kept_marks(), default=(0, 0))[0]

    @classmethod
    def create(cls, directory: str) -> Self:
        """Open the page for writing; a new one is all zeros, and not valid before publish_layout()."""
        view = files.map_writable(os.path.join(directory, NAME), SIZE_BYTES)
        return cls(directory, view, cls.inode_in(directory), True)

    @classmethod
    def open(cls, directory: str) -> Self | None:
        """Open the page for reading; None if there is no valid one."""
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
        """Unmap the page until its next use. A thread that is reading keeps the map until it is done."""
        for name in ("_words", "_map"):
            with contextlib.suppress(AttributeError):  # it is already unmapped
                delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        if name not in ("_words", "_map"):
            raise AttributeError(name)
        owner = None if self._owner is None else self._owner[0]()
        try:
            again = files.map_again if self._writable else files.map_file
            view = again(self._path, self.inode)
        except (FileNotFoundError, ValueError):  # ValueError: the file is empty
            view = None
        if view is None or len(view) < SIZE_BYTES:
            problem: CommitLogError = CorruptionError(self._path, 0, "the state page is gone")
            raise problem if owner is None else owner.lost(problem)
        if owner is not None:
            owner.mapped_again()
        self._map = view
        self._words = memoryview(view)[:SIZE_BYTES].cast("q")
        if self._owner is not None and owner is not None:
            self._owner[1].woke(owner)
        return getattr(self, name)

    def belongs_to(self, owner: Restable, cache: OpenFiles) -> None:
        """Report `owner` to `cache` as having files open whenever the page is mapped again."""
        self._owner = weakref.ref(owner), cache

    @staticmethod
    def inode_in(directory: str) -> int | None:
        """Return the inode of the page in a directory, None if there is none."""
        try:
            return os.stat(os.path.join(directory, NAME)).st_ino
        except FileNotFoundError:
            return None

    @property
    def valid(self) -> bool:
        """Whether this is a state page."""
        return self._words[_MAGIC] == MAGIC

    # --- the checkpoint

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint with a correct checksum, None if there is none."""
        return max(self._checkpoints(), default=(0, None))[1]

    def _checkpoints(self) -> list[tuple[int, Checkpoint]]:
        found = [self._kept_at(slot, _SLOT) for slot in _SLOTS]
        return [(one[0], Checkpoint(*one[1:])) for one in found if one is not None and _can_be(*one)]

    @property
    def kept_high_watermark(self) -> int | None:
        """The last high watermark published, None if there never was one: the partition has no replicas."""
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
        """Overwrite the older checkpoint with the present state."""
        words, known = self._words, self._sequence
        if (words[_SLOTS[known % 2] // 8], words[_SLOTS[1 - known % 2] // 8]) != (known, known - 1):
            # another process has written one, or a bit has rotted
            known = max([known, *(sequence for sequence, _ in self._checkpoints())])
        self._sequence = known + 1
        slot = _SLOTS[self._sequence % 2]
        raw = _SLOT.pack(
            self._sequence, words[_START], words[_DURABLE],
            words[_BASE], words[_END_POSITION], words[_NEXT], words[_CLEAN], words[_PRODUCERS],
        )  # fmt: skip
        self._map[slot : slot + _SLOT.size + _CHECKSUM.size] = raw + _CHECKSUM.pack(_checksum(raw))

    def _keep_mark(self) -> None:
        """Overwrite the older stored high watermark with the present one."""
        self._mark_sequence += 1
        slot = _MARK_SLOTS[self._mark_sequence % 2]
        raw = _MARK.pack(self._mark_sequence, self._words[_HIGH_WATERMARK])
        self._map[slot : slot + _MARK.size + _CHECKSUM.size] = raw + _CHECKSUM.pack(_checksum(raw))

    def sync(self) -> None:
        """Make the page durable, with the present state in both slots, so that either may be lost."""
        self.keep()
        self.keep()
        if self._mark_sequence:  # publish_high_watermark() has written the other slot
            self._keep_mark()
        files.sync_map(self._map)

    def close(self) -> None:
        """Unmap the page at once."""
        # AttributeError: it is not mapped; BufferError: two threads have mapped it at the same time
        with contextlib.suppress(AttributeError, BufferError):
            object.__getattribute__(self, "_words").release()
            object.__getattribute__(self, "_map").close()

    # --- publishing

    def begin_change(self) -> None:
        """Tell readers that segments are about to change: the generation is odd until end_change()."""
        if self._words[_GENERATION] % 2 == 0:
            self._words[_GENERATION] += 1

    def end_change(self) -> None:
        """Tell readers that the segments have changed, or not: the generation is even again."""
        self.begin_change()
        self._words[_GENERATION] += 1

    def publish_layout(
        self, base_offset: int, end_position: int, next_offset: int, high_watermark: int = NOT_REPLICATED
    ) -> None:
        """Tell readers which segment is active and where it ends. Between begin_change() and end_change()."""
        words = self._words
        words[_BASE], words[_END_POSITION] = base_offset, end_position
        words[_HIGH_WATERMARK] = high_watermark
        words[_NEXT] = next_offset
        words[_MAGIC] = MAGIC
        if words[_HELD]:  # if the writer dies from here on, its leftovers are in this segment
            self.hold()

    def publish_start(self, start_offset: int) -> None:
        """Tell readers to read nothing below `start_offset`; call sync() before removing anything."""
        self._words[_START] = start_offset

    def publish_append(self, next_offset: int, end_position: int) -> None:
        """Tell readers that everything below `next_offset` can be read."""
        words = self._words
        words[_END_POSITION] = end_position
        words[_NEXT] = next_offset

    def publish_high_watermark(self, high_watermark: int) -> None:
        """Tell readers how far to read. This survives a kill, and after sync() a power cut."""
        self._words[_HIGH_WATERMARK] = high_watermark
        self._keep_mark()

    # for callers that do what publish_append() does without a call: words[END_POSITION], then words[NEXT]
    END_POSITION, NEXT = _END_POSITION, _NEXT

    @property
    def words(self) -> memoryview[int]:
        """The page as 64-bit words."""
        return self._words

    def publish_durable(self, durable_offset: int) -> None:
        """Store the recovery point. Only ever after a sync has returned."""
        self._words[_DURABLE] = durable_offset
        self.keep()

    def publish_clean(self, clean_offset: int) -> None:
        """Set the clean offset; keep() stores it."""
        self._words[_CLEAN] = clean_offset

    def publish_producers(self) -> None:
        """Note that batches name their producers; without this, nobody looks for them. keep() stores it."""
        self._words[_PRODUCERS] = 1

    @property
    def has_producers(self) -> bool:
        """Whether any batch names its producer."""
        return bool(self._words[_PRODUCERS])

    # --- transactions

    def publish_transactions(self, undecided: int | None, aborts: int) -> None:
        """Tell readers where undecided transactions begin, and how many the active segment's markers aborted.

        Before an append that begins one, and after a marker that ends one.
        """
        words = self._words
        words[_ABORTS] = aborts
        words[_UNDECIDED] = _ALL_DECIDED if undecided is None else undecided + 2

    @property
    def has_transactions(self) -> bool:
        """Whether there ever was a transaction, as far as is known."""
        return self._words[_UNDECIDED] != 0

    @property
    def undecided_offset(self) -> int | None:
        """The offset from which on transactions may be undecided; None if all are decided."""
        word = self._words[_UNDECIDED]
        return word - 2 if word > _ALL_DECIDED else None

    @property
    def last_stable_offset(self) -> int:
        """Everything below it is decided and on every in-sync replica."""
        mark = self.high_watermark  # first: a word that covers what is below it was stored before it
        undecided = self.undecided_offset
        return mark if undecided is None else min(undecided, mark)

    # --- several writers

    def hold(self) -> None:
        """Note the end of the log as a writer starts; the note stays if it dies before let_go()."""
        words = self._words
        words[_HELD_NEXT] = words[_NEXT]
        words[_HELD] = words[_END_POSITION] + 1

    def let_go(self) -> None:
        """Remove the note of hold(): the writer's changes are complete."""
        self._words[_HELD] = 0

    @property
    def letting_go(self) -> Callable[[], None]:
        """A C function that does what let_go() does."""
        return partial(self._words.__setitem__, _HELD, 0)

    @property
    def left_by_the_dead(self) -> tuple[int, int] | None:
        """end_position and next_offset as a writer that died found them; None if none did."""
        words = self._words
        return (words[_HELD] - 1, words[_HELD_NEXT]) if words[_HELD] else None

    def publish_gone(self) -> None:
        """Tell other writers that the topic is deleted."""
        self._words[_GONE] = 1

    @property
    def gone(self) -> bool:
        """Whether the topic was deleted."""
        return bool(self._words[_GONE])

    def count_truncation(self) -> None:
        """Tell readers that a truncation starts; call it again when it ends."""
        self._words[_TRUNCATIONS] += 1

    # --- reading what was published

    generation = _Word(_GENERATION)  # grows when segments are added, removed or replaced; odd meanwhile
    truncations = _Word(_TRUNCATIONS)  # grows when a truncation starts and when it ends
    start_offset = _Word(_START)  # the first offset that may be read
    next_offset = _Word(_NEXT)  # the offset of the next append
    durable_offset = _Word(_DURABLE)  # everything below it survives power loss
    base_offset = _Word(_BASE)  # of the active segment
    clean_offset = _Word(_CLEAN)  # everything below it is compacted
    end_position = _Word(_END_POSITION)  # where the active segment ends
    aborts = _Word(_ABORTS)  # the number of transactions that markers in the active segment aborted

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset if the partition is not replicated."""
        mark = self._words[_HIGH_WATERMARK]
        return self._words[_NEXT] if mark == NOT_REPLICATED else mark


def _can_be(sequence: int, *kept: int) -> bool:
    """Say whether the values of a checkpoint are possible; a correct checksum may be forged."""
    start, durable, base, end_position, next_offset, clean, _ = kept
    in_order = 0 <= start <= next_offset and 0 <= durable <= next_offset and 0 <= base <= next_offset
    return 0 <= sequence < _NEVER and in_order and end_position >= 0 and clean >= 0


def _checksum(raw: bytes) -> int:
    return crc32c(raw) | 1 << 32  # so that a slot of zeros is not valid
