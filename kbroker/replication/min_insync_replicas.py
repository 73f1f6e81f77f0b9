"""What `min.insync.replicas` demands of a produce with acks=all: before it is written, and before it is answered.

Owns these rules and their errors (Partition.appendRecordsToLeader, checkEnoughReplicasReachOffset). How many are in
sync, and whether an offset is on them, others know.
"""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode


def needed(min_isr: int, replicas: int) -> int:
    """Return how many have to be in sync: min.insync.replicas, or all replicas where there are fewer."""
    return min(min_isr, max(replicas, 1))


def verdict(in_sync: int, needed: int) -> ErrorCode:
    """Return what acks=all is answered once the batch is on all that are in sync, of which some may have fallen out."""
    return ErrorCode.NONE if in_sync >= needed else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
