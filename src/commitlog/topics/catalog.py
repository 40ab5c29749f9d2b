"""The catalog: which topics a directory holds, in small files that are replaced whole.

commitlog.json        says that the directory is ours, in which format, and which log it is
topics/orders.json    id, partitions and settings of a topic; removing it deletes the topic
orders-0/             a partition
clean-shutdown        there only while nobody writes and everything was synced
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import uuid
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
# topics of our own; several processes write them, however the log is open
INTERNAL = ("__consumer_offsets", "__publications")
MOST_PARTITIONS = 9999  # of a topic
_ABOUT, _TOPICS, _CLEAN, _NEW = "commitlog.json", "topics", "clean-shutdown", "new" + TEMPORARY_SUFFIX
_NEW_INTERNAL = "internal" + TEMPORARY_SUFFIX
_JSON, _GONE = ".json", ".gone"  # a topic, and one that is being deleted: of one length, as names may be long
_PARTITION = re.compile(r".+-\d+|.+" + re.escape(DELETED_SUFFIX))  # or one that is being deleted
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


def check_topic_name(name: object) -> None:
    """Raise InvalidTopicError unless `name` can name a topic (and so a directory)."""
    if not isinstance(name, str) or not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicError(name)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """What is kept of a topic: how many partitions it has, and the settings that are not the defaults.

    `topic_id` tells it from an earlier topic of the same name. It is None in a log that no version with ids
    has opened for writing yet.
    """

    name: str
    partitions: int
    config: dict[str, Any]
    topic_id: str | None


class Catalog:
    """Reads and changes the catalog of one directory; the log's lock guards changes."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.log_id: str | None = None  # None until a version with ids has opened the log for writing

    @classmethod
    def open(cls, directory: str) -> Self:
        """Open the catalog of a log that is there."""
        catalog = cls(directory)
        catalog.log_id = catalog.read_log_id()
        catalog._check_links()
        return catalog

    @classmethod
    def open_or_create(cls, directory: str, *, shared: bool = False) -> tuple[Self, LogLock]:
        """Lock a directory for writing, making it a log if it is new or empty."""
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
        """Raise CorruptionError if the directory, or a folder in it that is no partition, holds a link."""
        check_no_links(self._directory)
        with os.scandir(self._directory) as found:
            folders = [one.path for one in found if one.is_dir() and not _PARTITION.fullmatch(one.name)]
        for folder in folders:
            check_no_links(folder)

    def _identify(self) -> None:
        """Give a new log its id, and one that was made before there were ids."""
        with ProcessLock(self._path(MUTEX_NAME)):  # another process that shares the log may be here, too
            self.log_id = None if self._is_vacant() else self.read_log_id()
            if self.log_id is None:
                self.renew_id()

    def renew_id(self) -> str:
        """Give the log another id; the log's lock guards it."""
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
        """Return the id of the log in this directory, as its file has it now; None if it has no id yet."""
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
        """Return a topic; None if there is none."""
        check_topic_name(name)
        return self._read_entry(name, _JSON)

    def _read_entry(self, name: str, suffix: str) -> TopicEntry | None:
        path = self._path(_TOPICS, name + suffix)
        try:
            stored = read_json(path)
        except FileNotFoundError:
            if self._is_lost(name) and not os.path.exists(path):  # or somebody has just made it
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
        """Return the settings of a topic; CorruptionError if they cannot be any."""
        try:
            return TopicConfig().altered(entry.config)
        except ConfigError as problem:
            path = self._path(_TOPICS, entry.name + _JSON)
            raise CorruptionError(path, 0, f"a setting that no topic has: {problem}") from None

    def _is_lost(self, name: str) -> bool:
        """Say whether an internal topic, which nobody deletes, has records but no description."""
        return name in INTERNAL and self.holds_records(f"{name}-0")

    def holds_records(self, partition: str) -> bool:
        """Say whether there are records in the directory of a partition, whatever topics there are."""
        try:
            with os.scandir(self._path(partition)) as found:
                return any(one.name.endswith(LOG_SUFFIX) and _has_records(one.path) for one in found)
        except FileNotFoundError:
            return False

    def check_internal(self, *, salvage: bool) -> None:
        """Raise CorruptionError if the description of an internal topic is lost; `salvage` writes another.

        The settings that it had are lost, but for the one that all of them have.
        """
        for name in INTERNAL:
            if salvage and not os.path.exists(self._path(_TOPICS, name + _JSON)) and self._is_lost(name):
                self.store(TopicEntry(name, 1, {"cleanup_policy": "compact"}, new_id()))
            self.entry(name)

    def store(self, entry: TopicEntry) -> None:
        """Make a topic durable."""
        stored = {"topic_id": entry.topic_id, "partitions": entry.partitions, "config": entry.config}
        # a process that only reads the log may make an internal topic, beside its writer
        temporary = _NEW_INTERNAL if entry.name in INTERNAL else _NEW
        contents = json.dumps(stored, indent=1).encode()
        self._write(os.path.join(_TOPICS, entry.name + _JSON), contents, temporary)

    @contextlib.contextmanager
    def new_partitions(self, entry: TopicEntry, first: int = 0) -> Iterator[None]:
        """Make the directories of partitions [first, entry.partitions), for a body that stores the topic.

        If the body fails before the topic is stored, the directories that were made here go again.
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
                    raise TopicExistsError(
                        f"{entry.name} (records without a topic in {self._path(partition)})"
                    )
            files.sync_directory(self._directory)
            yield
        except BaseException:
            stored = self.entry(entry.name)
            if stored is None or stored.partitions < entry.partitions:
                for path in made:
                    shutil.rmtree(path, ignore_errors=True)
            raise

    def delete(self, name: str) -> None:
        """Delete a topic; needs no room on the disk, for it may be what makes some."""
        entry = self.entry(name)
        assert entry is not None
        files.replace(self._path(_TOPICS, name + _JSON), self._path(_TOPICS, name + _GONE))
        files.sync_directory(self._path(_TOPICS))
        # crash: marked, partitions still there -> finish_deletions() at the next open
        self._finish_deletion(entry)

    def _finish_deletion(self, entry: TopicEntry) -> None:
        for number in range(entry.partitions):
            with contextlib.suppress(FileNotFoundError):
                hidden = self._path(uuid.uuid4().hex + DELETED_SUFFIX)
                files.replace(self._path(f"{entry.name}-{number}"), hidden)
        files.sync_directory(self._directory)
        # crash: marked, partitions out of sight -> finish_deletions() at the next open
        files.remove(self._path(_TOPICS, entry.name + _GONE))
        files.sync_directory(self._path(_TOPICS))
        # crash: directories out of sight -> finish_deletions() removes them
        self._remove_hidden()

    def finish_deletions(self) -> None:
        """Finish what a crash interrupted."""
        for name in os.listdir(self._path(_TOPICS)):
            if name.endswith(_GONE):
                entry = self._read_entry(name.removesuffix(_GONE), _GONE)
                if entry is not None:
                    self._finish_deletion(entry)
        self._remove_hidden()

    def _remove_hidden(self) -> None:
        for name in os.listdir(self._directory):
            if name.endswith(DELETED_SUFFIX):
                shutil.rmtree(self._path(name), ignore_errors=True)

    # --- the clean marker

    def has_clean_marker(self) -> bool:
        """Say whether the log was closed cleanly and nobody has opened it for writing since."""
        return os.path.exists(self._path(_CLEAN))

    def take_clean_marker(self) -> bool:
        """Remove the marker durably; returns whether it was there."""
        found = self.has_clean_marker()
        if found:
            files.remove(self._path(_CLEAN))
            files.sync_directory(self._directory)
        return found

    def leave_clean_marker(self) -> None:
        """Say that everything is durable and nobody writes; nothing is left if that fails."""
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

    It would lead out of the log: what is written, cut or removed there is somebody else's. The directory of
    the log itself may be reached through links.
    """
    with contextlib.suppress(FileNotFoundError):  # its users will notice
        link = files.first_link(directory)
        if link is not None:
            raise CorruptionError(link, 0, "a symbolic link; nothing inside a log may be one")


def typed(error: OSError, path: str) -> OSError:
    """Return the error to raise for one that the operating system gave."""
    if files.is_full(error) and not isinstance(error, DiskFullError):
        return DiskFullError(path, error.strerror)
    if files.is_too_many(error) and not isinstance(error, TooManyOpenFilesError):
        return TooManyOpenFilesError(path, error.strerror)
    return error


def _has_records(path: str) -> bool:
    """Say whether a segment holds anything but reserved blocks."""
    with open(path, "rb") as file:
        return any(file.read(64))


def _checked_id(value: object, path: str) -> str | None:
    if value is not None and not is_id(value):
        raise not_ours(path)
    return value  # type: ignore[return-value]


def not_ours(path: str) -> CorruptionError:
    """Return the error for a file that holds something else than we write there."""
    return CorruptionError(path, 0, "not what commitlog wrote there")


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object that a small file holds; CorruptionError if it holds something else."""
    try:
        found = json.loads(read_small(path))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise not_ours(path)
    return found


def read_small(path: str) -> bytes:
    """Return what a small file holds."""
    with open(path, "rb") as file:
        return file.read()


def write_small(path: str, contents: bytes, new: str = _NEW) -> None:
    """Put a small file in place durably; where that fails, nothing has changed."""
    # a writer holds a lock, so one temporary name is enough; one of the file's own could be too long
    temporary = os.path.join(os.path.dirname(path), new)
    try:
        files.write_whole(path, contents, temporary)
    except OSError as error:
        files.remove(temporary)
        raise typed(error, path) from error
