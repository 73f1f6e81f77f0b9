"""The follower's side of a partition: where it fetches from, and what an answer of the leader's means for its log.

Owns the position and the leader epoch of a fetch, and whether it rests, waits or has failed. Pure: an answer goes in, a
step comes out, which its owner does to the log before it says so. (Apache Kafka: AbstractFetcherThread; KIP-101, 279,
320, 595 for what diverges.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kbroker.protocol.errors import ErrorCode

EpochEnd = Callable[[int], tuple[int, int]]
"""Epoch -> the largest epoch of the own log not above it, and where that ends; (-1, -1) where nothing is known."""


class Condition(Enum):
    """What a follower does with a partition."""

    FETCHING = "fetching"
    ASKING = "asking for the leader's offsets, as its own is out of range"
    FAILED = "waiting for the controller, as its leader epoch is old or its log is broken"


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, then take over the leader's high watermark and log start offset."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at `offset`; nothing else of the answer counts."""

    offset: int


@dataclass(frozen=True, slots=True)
class Restart:
    """Drop the whole log and begin at `offset`, the leader's log start offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskOffsets:
    """Ask the leader for its log start offset and its log end offset."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Rest for replica.fetch.backoff.ms, then fetch again."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Fetch no more until the controller names a new leader epoch."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Do nothing: the answer is to what was asked before something changed."""


Step = Append | Truncate | Restart | AskOffsets | BackOff | GiveUp | Ignore


class Following:
    """One partition that this broker follows in one leader epoch."""

    __slots__ = ("condition", "fetch_offset", "last_fetched_epoch", "leader", "leader_epoch")

    def __init__(self, leader: int, leader_epoch: int, end_offset: int, last_epoch: int) -> None:
        """Begin behind the own log, whose last leader epoch is `last_epoch` (-1: it has none)."""
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
        """Return what an answer means that was asked for at an offset and in a leader epoch.

        `diverging` is the leader's (epoch, end offset) where the logs part (KIP-595), None where they agree;
        `end_offset` is where the own log ends. Whoever asks has one request under way: a second answer for the same
        offset, of before the log was cut and has grown to there again, could not be told from the first.
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

    def told_offsets(self, error: ErrorCode, leader_start: int, leader_end: int, end_offset: int) -> Step:
        """Return what the leader's offsets mean after an offset that was out of range.

        A leader that ends earlier was elected from outside the in-sync replicas; one that starts later has deleted all
        that this log could go on from.
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
        """Hear that the log ends there now, `last_epoch` being that of its last batch."""
        self.fetch_offset = end_offset
        self.last_fetched_epoch = last_epoch

    truncated = appended

    def broken(self) -> None:
        """Hear that the own log cannot be written or cut."""
        self.condition = Condition.FAILED


def certain_end(last_epoch: int, end_offset: int, high_watermark: int) -> int:
    """Return up to where a log is kept before it is copied to: all of it where it has leader epochs.

    Without one (-1) nothing tells where it parts from the leader's: only what is committed is known to be the same.
    """
    return end_offset if last_epoch >= 0 else min(end_offset, high_watermark)


def truncation_offset(diverging: tuple[int, int], end_offset: int, epoch_end: EpochEnd) -> int:
    """Return where to cut a log that ends at `end_offset` and parts from the leader's (epoch, end offset).

    Where the own log has not that epoch, it is cut behind the largest below, and the next fetch tells whether that was
    enough (KIP-279). Where it has none so low, the leader's word is all there is.
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
