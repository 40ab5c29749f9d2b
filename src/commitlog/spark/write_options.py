"""WriteOptions: the options of a query that writes, checked on the driver before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from commitlog.config import MAX_INT64
from commitlog.errors import ConfigError
from commitlog.spark.options import check_names, log_path
from commitlog.spark.parsing import count

NAMES = ("path", "topic", "txnId", "txnAppId", "txnVersion")
_IGNORED = ("checkpointLocation", "queryName", "includeHeaders")  # headers are written if there is a column


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where to write, and the transaction that marks it as written."""

    path: str
    topic: str | None = None
    txn_id: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Parse and check options."""
        check_names(options, [*NAMES, *_IGNORED])
        given = {name.lower(): str(text) for name, text in options.items()}
        for name in NAMES[1:]:
            if given.get(name.lower()) == "":
                raise ConfigError(name, "", "must not be empty")
        version = given.get("txnversion")
        return cls(
            log_path(given.get("path")),
            given.get("topic"),
            given.get("txnid"),
            given.get("txnappid"),
            None if version is None else count("txnVersion", version),
        )

    def for_batch(self) -> Self:
        """Check the options of a batch query."""
        if self.txn_id is not None:
            raise ConfigError("txnId", self.txn_id, "is for streaming queries; use txnAppId and txnVersion")
        if (self.txn_app_id is None) != (self.txn_version is None):
            given = self.txn_version if self.txn_app_id is None else self.txn_app_id
            name = "txnVersion" if self.txn_app_id is None else "txnAppId"
            raise ConfigError(name, given, "txnAppId and txnVersion must be given together")
        if self.txn_version is not None and self.txn_version > MAX_INT64:
            raise ConfigError("txnVersion", self.txn_version, "must be at most 2**63 - 1")
        return self

    def for_stream(self) -> Self:
        """Check the options of a streaming query."""
        if self.txn_app_id is not None or self.txn_version is not None:
            name = "txnAppId" if self.txn_app_id is not None else "txnVersion"
            given = self.txn_app_id or self.txn_version
            reason = "is for batch queries; a stream numbers its batches itself, under txnId or its query id"
            raise ConfigError(name, given, reason)
        return self
