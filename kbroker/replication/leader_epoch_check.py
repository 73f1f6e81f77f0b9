"""The comparison of a client's or a follower's leader epoch with a replica's own (KIP-320).

Owns the comparison and its errors. Never knows the leader.
"""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode


def compared(epoch: int, own: int) -> ErrorCode:
    """Return FENCED_LEADER_EPOCH for an outdated epoch, UNKNOWN_LEADER_EPOCH for a newer one; -1 is always valid.

    Other negative epochs are outdated; in a Fetch they mean -1 (FetchRequest.optionalEpoch), which its handler
    converts.
    """
    if epoch in (-1, own):
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < own else ErrorCode.UNKNOWN_LEADER_EPOCH
