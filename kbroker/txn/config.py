"""What the transaction coordinator is told by the broker's config."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Kafka's transaction.* and transactional.id.* keys; times in ms."""

    num_partitions: int = 50
    max_timeout_ms: int = 900_000
    abort_interval_ms: int = 10_000
    id_expiration_ms: int = 604_800_000
    expiration_interval_ms: int = 3_600_000
    write_timeout_ms: int = 5_000
