"""The transaction coordinator's part of the broker's config."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.config.server_config import BrokerConfig


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Kafka's transaction.* and transactional.id.* keys; times in ms."""

    num_partitions: int = 50
    max_timeout_ms: int = 900_000
    abort_interval_ms: int = 10_000
    id_expiration_ms: int = 604_800_000
    expiration_interval_ms: int = 3_600_000
    write_timeout_ms: int = 5_000


def transaction_config(config: BrokerConfig) -> TransactionConfig:
    """Return the transaction settings of the broker's config."""
    return TransactionConfig(
        num_partitions=config.get_int("transaction.state.log.num.partitions"),
        max_timeout_ms=config.get_int("transaction.max.timeout.ms"),
        abort_interval_ms=config.get_int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
        expiration_interval_ms=config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )
