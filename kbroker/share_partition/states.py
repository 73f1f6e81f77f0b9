"""The vocabulary of share partitions: states, kinds of acknowledgement, limits, and what is stored.

Owns Kafka's names and numbers (RecordState, AcknowledgeType). Never holds the state of a record.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from kbroker.protocol.errors import ApiError, ErrorCode

_MOST_GROWTH: Final = 250
"""The largest exponent of a back-off: a larger one could be no number any more."""


class RecordState(IntEnum):
    """The state of a record for a group, by the number under which it is stored (RecordState of Apache Kafka).

    available -> acquired -> acknowledged, archived, or available again. A record that is archived or acknowledged is
    done: it is never delivered again. With a dead letter topic a record is archiving before it is archived, until it is
    written to that topic.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class AcknowledgeType(IntEnum):
    """A member's verdict about a record. GAP: there is no record at this offset. RENEW prolongs the lock (KIP-1222)."""

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
"""The state of a record after an acknowledgement."""


class AckBatch(NamedTuple):
    """A member's acknowledgement of a range of offsets: one type for all of them, or one for each."""

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
    """A group's settings, as they are at the moment."""

    delivery_count: int = 5
    """share.delivery.count.limit: how often a record is delivered."""
    lock_ms: int = 30_000
    """share.record.lock.duration.ms."""
    record_locks: int = 2000
    """share.partition.max.record.locks: the most records in flight."""
    renews: bool = True
    """share.renew.acknowledge.enable."""
    dead_letters: bool = False
    """Whether records that are given up go to a dead letter topic."""
    backoff_ms: int = 0
    """share.release.backoff.ms: how long a record that came back once is not delivered; 0 for no such time."""
    backoff_max_ms: int = 60_000
    """share.release.backoff.max.ms."""
    backoff_multiplier: float = 2.0
    """share.release.backoff.multiplier: how much longer it is after each further delivery."""

    def backoff_after(self, deliveries: int) -> float:
        """Return for how many ms a record is not delivered that came back after so many deliveries."""
        if not self.backoff_ms:
            return 0.0
        growth = self.backoff_multiplier ** min(max(deliveries - 1, 0), _MOST_GROWTH)
        return min(self.backoff_ms * growth, float(self.backoff_max_ms))

    @property
    def throttled_from(self) -> int:
        """The delivery count from which on fewer records are delivered together (SharePartition of Apache Kafka).

        A record that makes its readers fail takes its neighbours' deliveries as well. So, the more often a batch has
        failed, the fewer of its records are delivered together, and a record's last delivery is for it alone.
        """
        return max(2, (self.delivery_count + 1) // 2)


def refused(message: str) -> ApiError:
    """Return the error for an acknowledgement that does not fit the state of the records."""
    return ApiError(ErrorCode.INVALID_RECORD_STATE, message)
