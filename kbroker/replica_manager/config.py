"""The broker's replication settings (replica.*, num.replica.fetchers)."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.config.server_config import BrokerConfig
from kbroker.quota.rate import Window

_RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """The replication settings: times in ms, sizes in bytes."""

    lag_max_ms: int = 30_000
    """A follower that lags for longer than this leaves the in-sync replicas."""
    fetch_wait_max_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 1 << 20
    """The maximum number of bytes of one partition in one response."""
    response_max_bytes: int = 10 << 20
    backoff_ms: int = 1000
    socket_timeout_ms: int = 30_000
    num_fetchers: int = 1
    """The number of fetchers for each leader."""
    rack_aware: bool = False
    """Whether the leader directs consumers to the replica in their rack."""
    quota_window: Window = Window(11, 1000)  # noqa: RUF009 - a tuple
    """The time window in which the rate of throttled replicas is measured."""


def replication_config(config: BrokerConfig) -> ReplicationConfig:
    """Return the replication settings of a broker's configuration."""
    return ReplicationConfig(
        lag_max_ms=config.get_int("replica.lag.time.max.ms"),
        fetch_wait_max_ms=config.get_int("replica.fetch.wait.max.ms"),
        fetch_min_bytes=config.get_int("replica.fetch.min.bytes"),
        fetch_max_bytes=config.get_int("replica.fetch.max.bytes"),
        response_max_bytes=config.get_int("replica.fetch.response.max.bytes"),
        backoff_ms=config.get_int("replica.fetch.backoff.ms"),
        socket_timeout_ms=config.get_int("replica.socket.timeout.ms"),
        num_fetchers=config.get_int("num.replica.fetchers"),
        quota_window=Window(
            config.get_int("replication.quota.window.num"),
            config.get_int("replication.quota.window.size.seconds") * 1000,
        ),
        rack_aware=config.get_optional_str("replica.selector.class") == _RACK_AWARE,
    )
