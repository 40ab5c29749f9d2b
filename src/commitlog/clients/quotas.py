"""Quotas: how many bytes per second a client id may append and read. A faster client is slowed, not refused.

quotas/alice.json       the rates of a client id, its name quoted as in a URL; replaced as a whole
quotas/+default.json    the rates of every client id without its own
quotas/alice.account    the debt of a client id: see rate_limit.py
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from commitlog import files
from commitlog.clients.rate_limit import ACCOUNT_SUFFIX, Account, RateLimit
from commitlog.config import MAX_INT64
from commitlog.errors import ConfigError
from commitlog.locks import ProcessLock
from commitlog.topics.catalog import not_ours, read_json, typed, write_small

Direction = Literal["produce", "consume"]

_FOLDER, _LOCK, _JSON = "quotas", ".lock", ".json"
_DEFAULT = "+default"  # a plus sign is quoted in the name of a client id
_DIRECTIONS = ("produce", "consume")
_RATES = ("producer_byte_rate", "consumer_byte_rate")
_MOST_BYTES = 255 - len(ACCOUNT_SUFFIX)  # the limit of file systems


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes per second that a client id may append and read; None means no limit."""

    producer_byte_rate: int | None = None
    consumer_byte_rate: int | None = None

    def __post_init__(self) -> None:
        for setting in fields(self):
            rate = getattr(self, setting.name)
            integer = isinstance(rate, int) and not isinstance(rate, bool)
            if rate is not None and not (integer and 1 <= rate <= MAX_INT64):
                raise ConfigError(setting.name, rate, f"must be in [1, {MAX_INT64}], or None for no limit")


class Quotas:
    """The quotas of a log. Any process that has the log open may change them for all clients."""

    def __init__(self, directory: str, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._folder = os.path.join(directory, _FOLDER)
        self._clock = clock  # the same in all processes
        self._accounts: WeakValueDictionary[tuple[str, int], Account] = WeakValueDictionary()

    def set(self, client_id: str | None, quota: Quota) -> None:
        """Set the quota of a client id, or, for None, the default quota. Clients notice within a second.

        Each client id without its own quota may use the full default rate.
        """
        path = self._path(client_id, _JSON)
        stored = {name: getattr(quota, name) for name in _RATES if getattr(quota, name) is not None}
        try:
            files.make_directories(self._folder)
            # crash: an empty folder -> there are no quotas, the next set() continues
            with ProcessLock(os.path.join(self._folder, _LOCK)):
                write_small(path, json.dumps(stored).encode())
        except OSError as error:
            raise typed(error, path) from error

    def get(self, client_id: str | None) -> Quota:
        """Return the quota that applies to a client id: its own, or the default."""
        found = self._read(client_id)
        if found is None and client_id is not None:
            found = self._read(None)
        return Quota() if found is None else found

    def all(self) -> dict[str | None, Quota]:
        """Return all quotas by client id; the default is under None."""
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return {}
        quoted = [name.removesuffix(_JSON) for name in names if name.endswith(_JSON)]
        ids = [None if name == _DEFAULT else unquote(name) for name in quoted]
        found = {client_id: self._read(client_id) for client_id in ids}
        return {client_id: quota for client_id, quota in found.items() if quota is not None}

    def remove(self, client_id: str | None) -> None:
        """Remove the quota of a client id, or, for None, the default; it need not exist."""
        path = self._path(client_id, _JSON)
        if os.path.isdir(self._folder):
            files.remove(path)
            files.sync_directory(self._folder)

    def meter(self, client_id: str, direction: Direction) -> RateLimit:
        """Return the rate limit of a client id in one direction."""
        if not isinstance(client_id, str):
            raise ConfigError("client_id", client_id, "must be a str")
        if direction not in _DIRECTIONS:
            raise ConfigError("direction", direction, f"must be one of {', '.join(_DIRECTIONS)}")
        slot = _DIRECTIONS.index(direction)
        path = self._path(client_id, ACCOUNT_SUFFIX)

        def find_rate() -> int | None:
            rate: int | None = getattr(self.get(client_id), _RATES[slot])
            return rate

        return RateLimit(find_rate, lambda: self._account(path), slot, self._clock)

    def _account(self, path: str) -> Account:
        """Return the account of a client id; its meters in this process share it, but not with forks."""
        key = (path, os.getpid())
        account = self._accounts.get(key)
        return self._accounts.setdefault(key, Account(path)) if account is None else account

    def _read(self, client_id: str | None) -> Quota | None:
        path = self._path(client_id, _JSON)
        try:
            return Quota(**read_json(path))
        except FileNotFoundError:
            return None
        except (ConfigError, TypeError):
            raise not_ours(path) from None

    def _path(self, client_id: str | None, suffix: str) -> str:
        return os.path.join(self._folder, _file_name(client_id) + suffix)


def _file_name(client_id: str | None) -> str:
    if client_id is None:
        return _DEFAULT
    if not isinstance(client_id, str):
        raise ConfigError("client_id", client_id, "must be a str, or None for the default")
    try:
        name = quote(client_id, safe="")
    except UnicodeEncodeError:
        raise ConfigError("client_id", client_id, "has characters that UTF-8 cannot encode") from None
    if len(name) > _MOST_BYTES:
        reason = f"its file name would have {len(name)} bytes, more than {_MOST_BYTES}"
        raise ConfigError("client_id", client_id, reason)
    return name
