"""A group's files: its lock, its state and its heartbeats.

groups/NAME.lock      held by a process that reads or changes the group
groups/NAME.json      the state; replaced as a whole
groups/NAME.beats     heartbeats, mapped

None of this need survive a power cut: after a reboot all members are dead. Committed offsets are elsewhere.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from urllib.parse import quote, unquote

from commitlog import files
from commitlog.errors import ConfigError
from commitlog.groups.heartbeats import Heartbeats
from commitlog.groups.state import GroupState
from commitlog.locks import ProcessLock, boot_id

FOLDER = "groups"
_LOCK, _STATE, _BEATS, _NEW = ".lock", ".json", ".beats", ".new"
_LONGEST_NAME = 255 - len(_BEATS)


class GroupDirectory:
    """The state of one group, shared by all processes."""

    def __init__(self, log_path: str, group_id: str) -> None:
        self.group_id = group_id
        name = file_name(group_id)
        folder = os.path.join(log_path, FOLDER)
        os.makedirs(folder, exist_ok=True)
        self._path = os.path.join(folder, name)
        self.lock = ProcessLock(self._path + _LOCK)
        self.heartbeats = Heartbeats.open(self._path + _BEATS)
        self._boot = boot_id()
        self._known: tuple[int, GroupState] | None = None  # the state, and the count of changes it had

    def look(self) -> GroupState:
        """Return the state, for reading only; with `lock` held."""
        changes = self.heartbeats.changes
        if self._known is None or self._known[0] != changes:
            self._known = changes, self._load()
        return self._known[1]

    @contextlib.contextmanager
    def changing(self) -> Iterator[GroupState]:
        """Yield the state, then store it; with `lock` held throughout. An exception discards the changes."""
        state = self.look()
        self._known = None
        before, members = state.to_json(), list(state.members.values())
        yield state
        after = state.to_json()
        if after != before:
            self.heartbeats.count_change()
            # crash: counted, not replaced -> the others read the old state once more
            self._store(after)
            # crash: replaced, slots of removed members not vacated -> their heartbeats have no effect
            for one in members:
                if one.member_id not in state.members:
                    self.heartbeats.vacate(one.slot)
        self._known = self.heartbeats.changes, state

    def _load(self) -> GroupState:
        try:
            with open(self._path + _STATE, "rb") as file:
                return GroupState.from_json(file.read(), self._boot)
        except FileNotFoundError:
            return GroupState(self._boot)
        except ValueError:
            # torn by a power cut, or rotten; the members learn that they are no longer members
            return GroupState(self._boot)

    def _store(self, raw: bytes) -> None:
        files.write_unsynced(self._path + _NEW, raw)
        # crash: the new state beside the old one -> overwritten by the next change
        files.replace(self._path + _NEW, self._path + _STATE)

    def remove(self) -> None:
        """Remove an empty group, with `lock` held. The lock file stays: a process may be waiting for it."""
        self._known = None
        self.heartbeats.count_change()
        files.remove(self._path + _STATE)


def file_name(group_id: str) -> str:
    """Return the name of a group's files; ConfigError if it is not a valid file name."""
    try:
        name = quote(group_id, safe="") if isinstance(group_id, str) else ""
    except UnicodeEncodeError:  # half of a surrogate pair
        name = ""
    if not 0 < len(name) <= _LONGEST_NAME:
        raise ConfigError(
            "group_id", group_id, f"must be text of 1 to {_LONGEST_NAME} bytes when quoted as in a URL"
        )
    return name


def is_known_group(log_path: str, group_id: str) -> bool:
    """Say whether a group has, or had, members."""
    try:
        return os.path.exists(os.path.join(log_path, FOLDER, file_name(group_id) + _STATE))
    except ConfigError:
        return False


def known_groups(log_path: str) -> set[str]:
    """Return the groups that have, or had, members."""
    try:
        names = os.listdir(os.path.join(log_path, FOLDER))
    except FileNotFoundError:
        return set()
    return {unquote(name.removesuffix(_STATE)) for name in names if name.endswith(_STATE)}
