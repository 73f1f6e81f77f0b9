"""A client's or a follower's idea of the leader epoch, held against a replica's own (KIP-320).

Owns the comparison and its errors. Who leads, others know.
"""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode


def compared(epoch: int, own: int) -> ErrorCode:
    """Return FENCED_LEADER_EPOCH for an outdated epoch, UNKNOWN_LEADER_EPOCH for a newer one; -1 is always right."""
    if epoch < 0 or epoch == own:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < own else ErrorCode.UNKNOWN_LEADER_EPOCH
