"""Converts errors to messages and back: the client raises the error with which a node refused."""

from __future__ import annotations

from typing import Any

from commitlog import errors
from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication.messages import FetchedPart, FetchPart, Refused

_KNOWN: dict[str, type[CommitLogError]] = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, CommitLogError)
}
_MOST_FIELDS = 8


def refused(error: CommitLogError) -> Refused:
    """Return the Refused that carries an error."""
    return Refused(type(error).__name__, tuple(_plain(field) for field in error.args))


def _plain(field: Any) -> Any:
    if field is None or type(field) in (bool, int, float, str):
        return field
    if isinstance(field, tuple | list) and not isinstance(field, TopicPartition):
        return tuple(_plain(one) for one in field)
    return str(field)


def refused_part(part: FetchPart, error: CommitLogError) -> FetchedPart:
    """Return the answer that refuses one partition of a fetch."""
    return FetchedPart(part.name, part.leader_epoch, part.offset, refusal=refused(error))


def error_of(message: Refused) -> CommitLogError:
    """Return the error that a Refused carries; a plain CommitLogError if its class is unknown here."""
    kind = _KNOWN.get(message.error)
    if kind is not None and len(message.fields) <= _MOST_FIELDS:
        error = kind(*message.fields)
        try:
            str(error)
        except (LookupError, ValueError, TypeError, AttributeError):  # another version's fields differ
            pass
        else:
            return error
    return CommitLogError(f"{message.error:.80}: {', '.join(map(str, message.fields)):.400}")
