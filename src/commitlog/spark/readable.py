"""Open a log for reading by the path of a query: a directory, or the addresses of nodes.

commitlog://host:port,host:port reads over the network. Secret and certificates are files on every host:
?secret=FILE, or ?certificate=FILE&key=FILE&ca=FILE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qsl

from commitlog.errors import ConfigError
from commitlog.log import CommitLog
from commitlog.partitions.reader import LogReader
from commitlog.topic import PartitionedTopic

if TYPE_CHECKING:
    from commitlog.replication.remote.remote_log import RemoteLog

SCHEME = "commitlog://"
_TLS = ("certificate", "key", "ca")
_TIMEOUT_MS = 30_000


class ReadableLog(Protocol):
    """The part of a log that reading needs, whether its files are here or on a node."""

    @property
    def log_id(self) -> str | None:
        """The unique id of the log."""

    def topics(self) -> list[str]:
        """Return the names of the topics."""

    def topic(self, name: str) -> PartitionedTopic[LogReader]:
        """Return a topic."""

    def close(self) -> None:
        """Close the log."""


def is_remote(path: str) -> bool:
    """Return whether a path names nodes rather than a directory."""
    return path.startswith(SCHEME)


def open_readable(path: str) -> ReadableLog:
    """Open a log for reading."""
    return _connected(path) if is_remote(path) else CommitLog.open(path, "r", None)


def _connected(path: str) -> RemoteLog:
    from commitlog.replication.remote.remote_log import RemoteLog  # imports sockets only if needed
    from commitlog.replication.transports.tls import TlsConfig

    addresses, _, query = path.removeprefix(SCHEME).partition("?")
    given = dict(parse_qsl(query))
    unknown = sorted(set(given) - {"secret", *_TLS})
    if unknown:
        known = ", ".join(("secret", *_TLS))
        raise ConfigError("path", path, f"unknown parameter {unknown[0]}; the parameters are {known}")
    missing = [name for name in _TLS if name not in given]
    if 0 < len(missing) < len(_TLS):
        raise ConfigError("path", path, f"lacks the parameter {missing[0]}")
    return RemoteLog.open(
        addresses,
        tls=None if missing else TlsConfig(given["certificate"], given["key"], given["ca"]),
        secret=_contents(given["secret"]) if "secret" in given else None,
        timeout_ms=_TIMEOUT_MS,
        read_from="leader",
    )


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read().strip()
    except OSError as error:
        raise ConfigError("secret", path, f"cannot be read: {error.strerror}") from None
