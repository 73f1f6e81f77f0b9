"""The vocabulary of share partitions: states, kinds of acknowledgement, limits, and stored values.

Owns Kafka's names and numbers (RecordState, AcknowledgeType). Never contains the state of a record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from kbroker.protocol.errors import ApiError, ErrorCode

_MOST_GROWTH: Final = 250
"""The maximum exponent of a back-off. A larger exponent could exceed the range of numbers."""


class RecordState(IntEnum):
    """The state of a record for a group; the numbers are those of stored state (RecordState of Apache Kafka).

    available -> acquired -> acknowledged, archived, or available again. A record that is archived or acknowledged is
    done: it is never delivered again. If there is a dead letter topic, a record is archiving until it is written to
    this topic; then it is archived.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class AcknowledgeType(IntEnum):
    """A member's verdict about a record. GAP: the offset has no record. RENEW extends the lock (KIP-1222)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


STATE_AFTER: Final = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVED,
}
"""The state of a record after an acknowledgement of each type."""


class AckBatch(NamedTuple):
    """A member's acknowledgement of a range of offsets: one type for all offsets, or one type for each offset."""

    first_offset: int
    last_offset: int
    types: list[int]


class Acquired(NamedTuple):
    """Records that were acquired together; `delivery_count` includes this delivery."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Span(NamedTuple):
    """The offsets of one batch of the log."""

    first_offset: int
    last_offset: int


class Limits(NamedTuple):
    """A group's current settings."""

    delivery_count: int = 5
    """share.delivery.count.limit: the maximum number of deliveries of a record."""
    lock_ms: int = 30_000
    """share.record.lock.duration.ms."""
    record_locks: int = 2000
    """share.partition.max.record.locks: the maximum number of records in flight."""
    renews: bool = True
    """share.renew.acknowledge.enable."""
    dead_letters: bool = False
    """Whether records that are given up are written to a dead letter topic."""
    backoff_ms: int = 0
    """share.release.backoff.ms: the delay before the second delivery of a released record; 0 means no delay."""
    backoff_max_ms: int = 60_000
    """share.release.backoff.max.ms."""
    backoff_multiplier: float = 2.0
    """share.release.backoff.multiplier: the factor by which each further delivery increases the delay."""

    def backoff_after(self, deliveries: int) -> float:
        """Return the delay in ms before the next delivery of a record after `deliveries` deliveries."""
        if not self.backoff_ms:
            return 0.0
        growth = self.backoff_multiplier ** min(max(deliveries - 1, 0), _MOST_GROWTH)
        return min(self.backoff_ms * growth, float(self.backoff_max_ms))

    @property
    def throttled_from(self) -> int:
        """The delivery count from which on fewer records are delivered together (SharePartition of Apache Kafka).

        A record that makes its readers fail also consumes the deliveries of its neighbours. Therefore, the more often a
        batch has failed, the fewer of its records are delivered together, and each record's last delivery contains no
        other record.
        """
        return max(2, (self.delivery_count + 1) // 2)


def refused(message: str) -> ApiError:
    """Return the error for an acknowledgement that the state of the records does not allow."""
    return ApiError(ErrorCode.INVALID_RECORD_STATE, message)
