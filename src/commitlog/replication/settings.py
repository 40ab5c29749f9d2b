"""ReplicationConfig: how a node replicates. Settings have Kafka's names where Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.config import MAX_INT32, MIB, Config, between
from commitlog.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ReplicationConfig(Config):
    """The settings of one node. All nodes of a cluster should have the same settings."""

    high_watermark_checkpoint_interval_ms: int = between(5000, 1)
    """How often high watermarks are made durable."""
    replica_fetch_backoff_ms: int = between(100, 1)
    """How long a follower waits after a failure."""
    replica_fetch_max_bytes: int = between(10 * MIB, 1, MAX_INT32)
    """The most bytes in one answer to a follower; at least one batch is always sent."""
    replica_fetch_wait_max_ms: int = between(500, 0)
    """How long a leader holds a fetch when there is nothing new; must be below the two timeouts."""
    replica_lag_time_max_ms: int = between(30_000, 1)
    """A replica that has not caught up for this long is no longer in sync."""
    replication_throttle_bytes_per_second: int = between(-1, 1, unlimited=True)
    """The rate limit of traffic to replicas that are not in sync."""
    request_timeout_ms: int = between(30_000, 1)
    """How long `acks="all"` waits, and how long a follower waits for an answer."""

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        wait_ms = self.replica_fetch_wait_max_ms
        for name in ("replica_lag_time_max_ms", "request_timeout_ms"):
            if wait_ms >= getattr(self, name):
                # a fetch held for that long would look like a lagging replica, or a lost answer
                reason = f"must be below {name} = {getattr(self, name)}"
                raise ConfigError("replica_fetch_wait_max_ms", wait_ms, reason)

    @property
    def tick_ms(self) -> int:
        """How often a node checks for due work, derived from its shortest wait."""
        return max(1, min(self.replica_fetch_backoff_ms, self.replica_lag_time_max_ms // 4, 100))
