"""The catalog: the topics of a directory, in small files that are replaced whole.

commitlog.json        marks the directory as a log, with the format and the id of the log
topics/orders.json    id, partitions and settings of a topic; removing it deletes the topic
orders-0/             a partition
clean-shutdown        exists only while nobody writes and everything is synced
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from commitlog import files
from commitlog.config import TopicConfig
from commitlog.errors import (
    ConfigError,
    CorruptionError,
    DiskFullError,
    InvalidTopicError,
    NotALogError,
    TooManyOpenFilesError,
    TopicExistsError,
    UnsupportedFormatError,
)
from commitlog.ids import is_id, new_id
from commitlog.locks import MUTEX_NAME, LogLock, ProcessLock
from commitlog.locks import NAME as LOCK_NAME
from commitlog.segment import DELETED_SUFFIX, LOG_SUFFIX, TEMPORARY_SUFFIX

FORMAT = 1
# several processes may write these topics, in any mode
INTERNAL = ("__consumer_offsets", "__publications", "__transaction_state")
# written even by processes that have the log open for reading, or while the log has another writer
ALWAYS_SHARED = ("__consumer_offsets", "__publications")
MOST_PARTITIONS = 9999  # of a topic
_ABOUT, _TOPICS, _CLEAN, _NEW = "commitlog.json", "topics", "clean-shutdown", "new" + TEMPORARY_SUFFIX
_NEW_INTERNAL = "internal" + TEMPORARY_SUFFIX
_JSON, _GONE = ".json", ".gone"  # a topic, and one being deleted: equally long, because names may be long
_PARTITION = re.compile(r".+-\d+|.+" + re.escape(DELETED_SUFFIX))  # or one being deleted
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_topic_name(name: object) -> None:
    """Raise InvalidTopicError unless `name` can name a topic (and so a directory)."""
    if not isinstance(name, str) or not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicError(name)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """What is stored of a topic: the number of partitions, and the settings that are not the defaults.

    `topic_id` differs from that of an earlier topic with the same name. It is None in a log that no version
    with ids has opened for writing yet.
    """

    name: str
    partitions: int
    config: dict[str, Any]
    topic_id: str | None


class Catalog:
    """Reads and changes the catalog of a directory; the log's lock guards changes."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.log_id: str | None = None  # None until a version with ids has opened the log for writing

    @classmethod
    def open(cls, directory: str) -> Self:
        """Open the catalog of an existing log."""
        catalog = cls(directory)
        catalog.log_id = catalog.read_log_id()
        catalog._check_links()
        return catalog

    @classmethod
    def open_or_create(cls, directory: str, *, shared: bool = False) -> tuple[Self, LogLock]:
        """Lock a directory for writing; make it a log if it is new or empty."""
        catalog = cls(directory)
        if catalog._is_vacant():
            files.make_directories(directory)
        else:
            catalog.read_log_id()
        catalog._check_links()
        lock = LogLock.take(directory, shared=shared)
        try:
            files.make_directories(catalog._path(_TOPICS))
            # crash: a lock and a folder -> still vacant, the next open starts over
            catalog._identify()
        except BaseException:
            lock.release()
            raise
        return catalog, lock

    def _check_links(self) -> None:
        """Raise CorruptionError if the directory, or a folder in it other than a partition, holds a link."""
        check_no_links(self._directory)
        with os.scandir(self._directory) as found:
            folders = [one.path for one in found if one.is_dir() and not _PARTITION.fullmatch(one.name)]
        for folder in folders:
            check_no_links(folder)

    def _identify(self) -> None:
        """Give the log an id if it is new or older than ids."""
        with ProcessLock(self._path(MUTEX_NAME)):  # another process that shares the log may do this, too
            self.log_id = None if self._is_vacant() else self.read_log_id()
            if self.log_id is None:
                self.renew_id()

    def renew_id(self) -> str:
        """Give the log another id and return it; the log's lock must be held."""
        self.log_id = new_id()
        self._write(_ABOUT, json.dumps({"format": FORMAT, "log_id": self.log_id}).encode())
        return self.log_id

    def _is_vacant(self) -> bool:
        try:
            names = set(os.listdir(self._directory))
        except FileNotFoundError:
            return True
        except NotADirectoryError:
            raise NotALogError(self._directory, "it is a file") from None
        return names <= {LOCK_NAME, MUTEX_NAME, _TOPICS, _NEW}

    def read_log_id(self) -> str | None:
        """Read the id of the log from its file; None if it has no id yet."""
        path = self._path(_ABOUT)
        try:
            about = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            reason = "it does not exist" if not os.path.exists(self._directory) else f"it has no {_ABOUT}"
            raise NotALogError(self._directory, reason) from None
        found = about.get("format")
        if not isinstance(found, int | str):
            raise not_ours(path)
        if type(found) is not int or found != FORMAT:
            raise UnsupportedFormatError(self._directory, found, FORMAT)
        return _checked_id(about.get("log_id"), path)

    # --- topics

    def entries(self) -> list[TopicEntry]:
        """Return all topics."""
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in os.listdir(self._path(_TOPICS)) if name.endswith(_JSON)]
            found = [self.entry(name.removesuffix(_JSON)) for name in sorted(names)]
            return [entry for entry in found if entry is not None]
        return []

    def entry(self, name: str) -> TopicEntry | None:
        """Return a topic; None if it does not exist."""
        check_topic_name(name)
        return self._read_entry(name, _JSON)

    def _read_entry(self, name: str, suffix: str) -> TopicEntry | None:
        path = self._path(_TOPICS, name + suffix)
        try:
            stored = read_json(path)
        except FileNotFoundError:
            if self._is_lost(name) and not os.path.exists(path):  # another process may just have made it
                reason = f"it is missing, but there are records in {name}-0"
                raise CorruptionError(path, 0, reason) from None
            return None
        count, config = stored.get("partitions"), stored.get("config")
        if type(count) is not int or not 1 <= count <= MOST_PARTITIONS:
            raise CorruptionError(path, 0, f"no topic has {count!r} partitions")
        if not isinstance(config, dict):
            raise not_ours(path)
        return TopicEntry(name, count, config, _checked_id(stored.get("topic_id"), path))

    def settings(self, entry: TopicEntry) -> TopicConfig:
        """Return the settings of a topic; CorruptionError if they are invalid."""
        try:
            return TopicConfig().altered(entry.config)
        except ConfigError as problem:
            path = self.description_of(entry.name)
            raise CorruptionError(path, 0, f"an invalid setting: {problem}") from None

    def _is_lost(self, name: str) -> bool:
        """Say whether the description of an internal topic, which is never deleted, is lost."""
        return name in INTERNAL and self.holds_records(f"{name}-0")

    def description_of(self, name: str) -> str:
        """Return the path of a topic's description."""
        return self._path(_TOPICS, name + _JSON)

    def count_directories(self, entry: TopicEntry) -> int:
        """Return how many partitions of a topic have a directory."""
        prefix = f"{entry.name}-"
        with os.scandir(self._path()) as found:
            ends = [one.name[len(prefix) :] for one in found if one.name.startswith(prefix) and one.is_dir()]
        return sum(one.isdecimal() and one.isascii() and int(one) < entry.partitions for one in ends)

    def holds_records(self, partition: str) -> bool:
        """Say whether the directory of a partition holds records, even if its topic does not exist."""
        try:
            with os.scandir(self._path(partition)) as found:
                return any(one.name.endswith(LOG_SUFFIX) and _has_records(one.path) for one in found)
        except FileNotFoundError:
            return False

    def check_internal(self, *, salvage: bool) -> None:
        """Raise CorruptionError if the description of an internal topic is lost; `salvage` writes a new one.

        Only the cleanup policy, which all internal topics share, is restored.
        """
        for name in INTERNAL:
            if salvage and not os.path.exists(self._path(_TOPICS, name + _JSON)) and self._is_lost(name):
                self.store(TopicEntry(name, 1, {"cleanup_policy": "compact"}, new_id()))
            self.entry(name)

    def store(self, entry: TopicEntry) -> None:
        """Store a topic durably."""
        stored = {"topic_id": entry.topic_id, "partitions": entry.partitions, "config": entry.config}
        # a process in mode "r" may create an internal topic at the same time as the writer
        temporary = _NEW_INTERNAL if entry.name in INTERNAL else _NEW
        contents = json.dumps(stored, indent=1).encode()
        self._write(os.path.join(_TOPICS, entry.name + _JSON), contents, temporary)

    @contextlib.contextmanager
    def new_partitions(self, entry: TopicEntry, first: int = 0) -> Iterator[None]:
        """Create the directories of partitions [first, entry.partitions) for a block that stores the topic.

        If the block fails before the topic is stored, the new directories are removed.
        """
        made: list[str] = []
        try:
            for number in range(first, entry.partitions):
                path = self._path(f"{entry.name}-{number}")
                if not os.path.isdir(path):
                    made.append(path)
                    os.mkdir(path)
                files.sync_directory(path)
            for number in range(first, entry.partitions + 1):
                partition = f"{entry.name}-{number}"
                if self.holds_records(partition):
                    where = self._path(partition)
                    raise TopicExistsError(f"{entry.name} (records without a topic in {where})")
            files.sync_directory(self._directory)
            yield
        except BaseException:
            stored = self.entry(entry.name)
            if stored is None or stored.partitions < entry.partitions:
                for path in made:
                    _remove_tree(path)
            raise

    def delete(self, name: str) -> None:
        """Delete a topic; this works on a full disk, where it may be what makes room."""
        entry = self.entry(name)
        assert entry is not None
        files.replace(self._path(_TOPICS, name + _JSON), self._path(_TOPICS, name + _GONE))
        files.sync_directory(self._path(_TOPICS))
        # crash: marked, partitions still there -> finish_deletions() at the next open
        self._finish_deletion(entry)

    def _finish_deletion(self, entry: TopicEntry) -> None:
        for number in range(entry.partitions):
            with contextlib.suppress(FileNotFoundError):
                hidden = self._path(os.urandom(16).hex() + DELETED_SUFFIX)
                files.replace(self._path(f"{entry.name}-{number}"), hidden)
        files.sync_directory(self._directory)
        # crash: marked, partitions out of sight -> finish_deletions() at the next open
        files.remove(self._path(_TOPICS, entry.name + _GONE))
        files.sync_directory(self._path(_TOPICS))
        # crash: directories out of sight -> finish_deletions() removes them
        self._remove_hidden()

    def finish_deletions(self) -> None:
        """Finish deletions that a crash interrupted."""
        for name in os.listdir(self._path(_TOPICS)):
            if name.endswith(_GONE):
                entry = self._read_entry(name.removesuffix(_GONE), _GONE)
                if entry is not None:
                    self._finish_deletion(entry)
        self._remove_hidden()

    def _remove_hidden(self) -> None:
        for name in os.listdir(self._directory):
            if name.endswith(DELETED_SUFFIX):
                _remove_tree(self._path(name))

    # --- the clean marker

    def has_clean_marker(self) -> bool:
        """Say whether the log was closed cleanly and has not been opened for writing since."""
        return os.path.exists(self._path(_CLEAN))

    def take_clean_marker(self) -> bool:
        """Remove the marker durably; returns whether it existed."""
        found = self.has_clean_marker()
        if found:
            files.remove(self._path(_CLEAN))
            files.sync_directory(self._directory)
        return found

    def leave_clean_marker(self) -> None:
        """Mark the log as durable and closed; no marker is left if that fails."""
        try:
            self._write(_CLEAN, b"")
        except OSError:
            files.remove(self._path(_CLEAN))
            raise

    def _path(self, *names: str) -> str:
        return os.path.join(self._directory, *names)

    def _write(self, name: str, contents: bytes, new: str = _NEW) -> None:
        write_small(self._path(name), contents, new)


def check_no_links(directory: str) -> None:
    """Raise CorruptionError if an entry of a directory is a symbolic link.

    A link would lead out of the log, to files that are not ours to write, cut or remove. The path of the log
    itself may contain links.
    """
    with contextlib.suppress(FileNotFoundError):  # the next use of the directory will notice
        link = files.first_link(directory)
        if link is not None:
            raise CorruptionError(link, 0, "a symbolic link; nothing inside a log may be one")


def typed(error: OSError, path: str) -> OSError:
    """Return the typed error for an error of the operating system, if there is one."""
    if files.is_full(error) and not isinstance(error, DiskFullError):
        return DiskFullError(path, error.strerror)
    if files.is_too_many(error) and not isinstance(error, TooManyOpenFilesError):
        return TooManyOpenFilesError(path, error.strerror)
    return error


def _has_records(path: str) -> bool:
    """Say whether a segment holds more than reserved blocks."""
    with open(path, "rb") as file:
        return any(file.read(64))


def _checked_id(value: object, path: str) -> str | None:
    if value is not None and not is_id(value):
        raise not_ours(path)
    return value  # type: ignore[return-value]


def not_ours(path: str) -> CorruptionError:
    """Return the error for a file whose contents are not ours."""
    return CorruptionError(path, 0, "not what commitlog wrote there")


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in a small file; CorruptionError if it holds something else."""
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise not_ours(path)
    return found


def write_small(path: str, contents: bytes, new: str = _NEW) -> None:
    """Replace a small file durably; if that fails, nothing changes."""
    # the writer holds a lock, so one temporary name is enough; a name for each file could be too long
    temporary = os.path.join(os.path.dirname(path), new)
    try:
        files.write_whole(path, contents, temporary)
    except OSError as error:
        files.remove(temporary)
        raise typed(error, path) from error


def _remove_tree(path: str) -> None:
    """Remove a directory and what is in it, as far as possible."""
    import shutil  # it imports formats of archives, so only when needed

    shutil.rmtree(path, ignore_errors=True)
