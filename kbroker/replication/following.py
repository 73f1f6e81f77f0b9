"""The follower's side of a partition: its fetch position, and the changes of its log by the leader's responses.

Owns the position and the leader epoch of the next fetch, and the partition's condition. Pure: it converts a response to
a step. The fetcher applies the step to the log and then reports the new end. (Apache Kafka: AbstractFetcherThread;
KIP-101, 279, 320, 595 for diverging logs.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kbroker.protocol.errors import ErrorCode

EpochEnd = Callable[[int], tuple[int, int]]
"""A function that returns the largest epoch in this broker's log up to the given epoch, and its end.

Without such an epoch it returns (-1, -1).
"""


class Condition(Enum):
    """The state of a followed partition."""

    FETCHING = "fetching"
    ASKING = "asking for the leader's offsets, as its own is out of range or in remote storage only"
    FAILED = "waiting for the controller, as its leader epoch is old or its log is broken"


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, then apply the leader's high watermark and log start offset."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log to `offset`; ignore the rest of the response."""

    offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Delete the complete log and begin at `offset`, the leader's log start offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """Request the leader's log start offset and log end offset."""


@dataclass(frozen=True, slots=True)
class AskTier:
    """Continue behind the leader's remote records (KIP-405); then call `rebuilt`, also after a failure."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Pause for replica.fetch.backoff.ms, then fetch again."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Stop fetching until the controller sends a new leader epoch."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Do nothing: the response belongs to a request that was sent before the state changed."""


Step = Append | Truncate | Restart | AskOffsets | AskTier | BackOff | GiveUp | Ignore


class Following:
    """One partition that this broker follows in one leader epoch."""

    __slots__ = ("condition", "fetch_offset", "last_fetched_epoch", "leader", "leader_epoch")

    def __init__(self, leader: int, leader_epoch: int, end_offset: int, last_epoch: int) -> None:
        """Follow from the end of this broker's log on. `last_epoch` is the log's last leader epoch (-1: none)."""
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
        """Return the step for a response to a fetch at `asked_offset`.

        `diverging` is the leader's (epoch, end offset) if the logs diverge (KIP-595), and None if the logs agree;
        `end_offset` is the end of this broker's log. The caller must have only one request in flight: if the log was
        truncated and has grown again, an older response for the same offset could not be recognised.
        """
        if self.condition is not Condition.FETCHING or asked_offset != self.fetch_offset:
            return Ignore()
        if error is ErrorCode.NONE:
            return Append() if diverging is None else Truncate(truncation_offset(diverging, end_offset, epoch_end))
        if error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.condition = Condition.ASKING
            return AskOffsets()
        if error is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
            self.condition = Condition.ASKING
            return AskTier()
        if error is ErrorCode.FENCED_LEADER_EPOCH and asked_epoch == self.leader_epoch:
            self.condition = Condition.FAILED
            return GiveUp()
        return BackOff()

    def offsets_received(self, error: ErrorCode, leader_start: int, leader_end: int, end_offset: int) -> Step:
        """Return the step for the leader's offsets, which were requested after OFFSET_OUT_OF_RANGE.

        If the leader's log ends earlier than this log, the leader was elected from outside the in-sync replicas. If the
        leader's log starts after this log's end, the leader has deleted all records from which this log could continue.
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
        """Set the log's new end and the leader epoch of its last batch."""
        self.fetch_offset = end_offset
        self.last_fetched_epoch = last_epoch

    truncated = appended

    def rebuilt(self, end_offset: int, last_epoch: int) -> None:
        """Fetch again, from the end of the log."""
        self.condition = Condition.FETCHING
        self.appended(end_offset, last_epoch)

    def broken(self) -> None:
        """Mark this broker's log as not writable."""
        self.condition = Condition.FAILED


def certain_end(last_epoch: int, end_offset: int, high_watermark: int) -> int:
    """Return the end of the part of a log that a follower keeps before it fetches.

    If the log has leader epochs, the follower keeps the complete log. Without a leader epoch (-1) it is unknown where
    the log diverges from the leader's log: only committed records are known to be the same.
    """
    return end_offset if last_epoch >= 0 else min(end_offset, high_watermark)


def truncation_offset(diverging: tuple[int, int], end_offset: int, epoch_end: EpochEnd) -> int:
    """Return the truncation offset of a log that ends at `end_offset` and diverges at the leader's (epoch, end offset).

    If this broker's log does not contain that epoch, the log is truncated at the end of the largest lower epoch. The
    next fetch shows whether this truncation was sufficient (KIP-279). If the log contains no lower epoch, it is
    truncated to the leader's end offset.
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
