"""Which followers are in sync: when one has fallen behind, and when it may come back (Apache Kafka: Replica).

Owns what is noted of one follower, and these two rules. Never changes the set: leadership.py proposes, and the
controller grants.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER: Final = -(1 << 62)
"""A time in ms before all others."""


@dataclass(slots=True)
class Follower:
    """What a leader knows of a follower: offsets are -1 until it has fetched, times are in ms of the leader's clock."""

    end_offset: int = -1
    log_start_offset: int = -1
    leader_end_offset: int = -1
    """The leader's log end offset at the last fetch."""
    fetched_ms: int = NEVER
    caught_up_ms: int = NEVER
    """When it last had all that the leader had at that time."""

    def is_caught_up(self, end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        """Tell whether it has all, or had all not longer than `max_lag_ms` ago."""
        return self.end_offset == end_offset or now_ms - self.caught_up_ms <= max_lag_ms

    def may_come_in(self, high_watermark: int, epoch_start: int) -> bool:
        """Tell whether it has caught up with the high watermark, and with the leader epoch.

        Whoever has not reached the epoch's start may lack what is committed above the high watermark known here.
        """
        return self.end_offset >= max(high_watermark, epoch_start)

    def fetch(self, offset: int, log_start_offset: int, end_offset: int, now_ms: int) -> None:
        """Note a fetch from `offset`, which says that it has all before; the leader's log ends at `end_offset`."""
        if offset >= end_offset:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif offset >= self.leader_end_offset:
            # All that there was when it last asked: a steady stream of small batches must not let it fall behind.
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = max(self.leader_end_offset, end_offset)
        self.fetched_ms = now_ms


def at_the_start(known: Follower, end_offset: int, now_ms: int, in_sync: bool, *, anew: bool) -> Follower:
    """Return what is known of a follower when a leader epoch begins: whoever is in sync gets its time from now."""
    caught_up = now_ms if in_sync else NEVER
    if anew:
        return Follower(caught_up_ms=caught_up)
    return Follower(known.end_offset, known.log_start_offset, end_offset, caught_up, caught_up)
