"""Errors as messages, and messages as errors: what a node refuses, its client raises."""

from __future__ import annotations

from typing import Any

from commitlog import errors
from commitlog.errors import CommitLogError
from commitlog.record import TopicPartition
from commitlog.replication.messages import Refused

_KNOWN: dict[str, type[CommitLogError]] = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, CommitLogError)
}
_MOST_FIELDS = 8


def refused(error: CommitLogError) -> Refused:
    """Return the message that carries an error."""
    return Refused(type(error).__name__, tuple(_plain(field) for field in error.args))


def _plain(field: Any) -> Any:
    if field is None or type(field) in (bool, int, float, str):
        return field
    if isinstance(field, tuple | list) and not isinstance(field, TopicPartition):
        return tuple(_plain(one) for one in field)
    return str(field)


def error_of(message: Refused) -> CommitLogError:
    """Return the error that a message carries; CommitLogError for one that is not known here."""
    kind = _KNOWN.get(message.error)
    if kind is not None and len(message.fields) <= _MOST_FIELDS:
        error = kind(*message.fields)
        try:
            str(error)
        except (LookupError, ValueError, TypeError, AttributeError):  # another version has other fields
            pass
        else:
            return error
    return CommitLogError(f"{message.error:.80}: {', '.join(map(str, message.fields)):.400}")
