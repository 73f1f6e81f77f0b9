"""The rules for in-sync followers: when one has fallen behind, and when it may join again (Apache Kafka: Replica).

Owns the state of one follower, and these two rules. Never changes the set: leadership.py proposes, and the controller
grants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER: Final = -(1 << 62)
"""A time in ms before all others."""


@dataclass(slots=True)
class Follower:
    """The leader's state of a follower: offsets are -1 until it has fetched, times are ms of the leader's clock."""

    end_offset: int = -1
    log_start_offset: int = -1
    leader_end_offset: int = -1
    """The leader's log end offset at the last fetch."""
    fetched_ms: int = NEVER
    caught_up_ms: int = NEVER
    """When it last had everything that the leader had at that time."""

    def is_caught_up(self, end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it has everything, or had everything at most `max_lag_ms` ago."""
        return self.end_offset == end_offset or now_ms - self.caught_up_ms <= max_lag_ms

    def may_come_in(self, high_watermark: int, epoch_start: int) -> bool:
        """Whether it has caught up with the high watermark, and with the leader epoch.

        A follower that has not reached the epoch's start may lack committed records above the high watermark known
        here.
        """
        return self.end_offset >= max(high_watermark, epoch_start)

    def fetch(self, offset: int, log_start_offset: int, end_offset: int, now_ms: int) -> None:
        """Note a fetch from `offset`, before which it has everything; the leader's log ends at `end_offset`."""
        if offset >= end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset:
            # Everything up to the end at its last fetch: a steady stream of small batches must not make it fall behind.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = max(self.leader_end_offset, end_offset)
        self.fetched_ms = now_ms


def at_the_start(known: Follower, end_offset: int, now_ms: int, in_sync: bool, *, anew: bool) -> Follower:
    """Return the state of a follower at the start of a leader epoch: an in-sync one gets the full lag time."""
    caught_up = now_ms if in_sync else NEVER
    if anew:
        return Follower(caught_up_ms=caught_up)
    return Follower(known.end_offset, known.log_start_offset, end_offset, caught_up, caught_up)
