"""The follower's side of a partition: its fetch position, and how a response of the leader changes its log.

Owns the position and the leader epoch of a fetch, and the partition's condition. Pure: it turns a response into a step.
The fetcher applies the step to the log and then reports the new end. (Apache Kafka: AbstractFetcherThread; KIP-101,
279, 320, 595 for diverging logs.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kbroker.protocol.errors import ErrorCode

EpochEnd = Callable[[int], tuple[int, int]]
"""Epoch -> the largest epoch in this broker's log that is not above it, and its end; (-1, -1) if unknown."""


class Condition(Enum):
    """The state of a followed partition."""

    FETCHING = "fetching"
    ASKING = "asking for the leader's offsets, as its own is out of range"
    FAILED = "waiting for the controller, as its leader epoch is old or its log is broken"


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, then take over the leader's high watermark and log start offset."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `offset`; nothing else of the response counts."""

    offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Drop the whole log and begin at `offset`, the leader's log start offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """Request the leader's log start offset and log end offset."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Pause for replica.fetch.backoff.ms, then fetch again."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop fetching until the controller names a new leader epoch."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Do nothing: the response belongs to a request sent before the state changed."""


Step = Append | Truncate | Restart | AskOffsets | BackOff | GiveUp | Ignore


class Following:
    """One partition that this broker follows in one leader epoch."""

    __slots__ = ("condition", "fetch_offset", "last_fetched_epoch", "leader", "leader_epoch")

    def __init__(self, leader: int, leader_epoch: int, end_offset: int, last_epoch: int) -> None:
        """Begin at the end of this broker's log, whose last leader epoch is `last_epoch` (-1: it has none)."""
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.fetch_offset = end_offset
        self.last_fetched_epoch = last_epoch
        self.condition = Condition.FETCHING

    def answered(
        self,
        asked_offset: int,
        asked_epoch: int,
        error: ErrorCode,
        diverging: tuple[int, int] | None,
        end_offset: int,
        epoch_end: EpochEnd,
    ) -> Step:
        """Return the step for a response to a fetch at an offset and in a leader epoch.

        `diverging` is the leader's (epoch, end offset) if the logs diverge (KIP-595), None if they agree; `end_offset`
        is the end of this broker's log. The caller must have only one request in flight: if the log was truncated and
        has grown again, an older response for the same offset could not be recognised.
        """
        if self.condition is not Condition.FETCHING or asked_offset != self.fetch_offset:
            return Ignore()
        if error is ErrorCode.NONE:
            return Append() if diverging is None else Truncate(truncation_offset(diverging, end_offset, epoch_end))
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.condition = Condition.ASKING
            return AskOffsets()
        if error is ErrorCode.FENCED_LEADER_EPOCH and asked_epoch == self.leader_epoch:
            self.condition = Condition.FAILED
            return GiveUp()
        return BackOff()

    def offsets_received(self, error: ErrorCode, leader_start: int, leader_end: int, end_offset: int) -> Step:
        """Return the step for the leader's offsets, requested after OFFSET_OUT_OF_RANGE.

        A leader whose log ends earlier was elected from outside the in-sync replicas. A leader whose log starts later
        has deleted all records from which this log could continue.
        """
        if self.condition is not Condition.ASKING:
            return Ignore()
        if error is ErrorCode.FENCED_LEADER_EPOCH:
            self.condition = Condition.FAILED
            return GiveUp()
        self.condition = Condition.FETCHING
        if error is not ErrorCode.NONE:
            return BackOff()
        if leader_end < end_offset:
            return Truncate(leader_end)
        if leader_start > end_offset:
            return Restart(leader_start)
        self.fetch_offset = end_offset
        return Ignore()

    def appended(self, end_offset: int, last_epoch: int) -> None:
        """Set the log's new end; `last_epoch` is that of its last batch."""
        self.fetch_offset = end_offset
        self.last_fetched_epoch = last_epoch

    truncated = appended

    def broken(self) -> None:
        """Mark this broker's log as not writable."""
        self.condition = Condition.FAILED


def certain_end(last_epoch: int, end_offset: int, high_watermark: int) -> int:
    """Return the offset up to which a follower keeps its log before it fetches: all of it if the log has leader epochs.

    Without a leader epoch (-1) the point of divergence from the leader's log is unknown: only committed records are
    known to be the same.
    """
    return end_offset if last_epoch >= 0 else min(end_offset, high_watermark)


def truncation_offset(diverging: tuple[int, int], end_offset: int, epoch_end: EpochEnd) -> int:
    """Return the truncation offset of a log that ends at `end_offset` and diverges at the leader's (epoch, end offset).

    If this broker's log does not have that epoch, it is truncated after the largest lower one, and the next fetch shows
    whether that was enough (KIP-279). If it has no lower epoch, only the leader's offset counts.
    """
    leader_epoch, leader_end = diverging
    if leader_epoch < 0:
        return min(leader_end, end_offset)
    epoch, end = epoch_end(leader_epoch)
    if end < 0:
        return min(leader_end, end_offset)
    if epoch != leader_epoch:
        return min(end, end_offset)
    return min(end, leader_end, end_offset)
