"""The requirements of `min.insync.replicas` for a produce with acks=all: before it is written, and before its response.

Owns these rules and their errors (Partition.appendRecordsToLeader, checkEnoughReplicasReachOffset). The caller knows
the number of in-sync replicas, and whether they have an offset.
"""

from __future__ import annotations

from kbroker.protocol.errors import ErrorCode


def needed(min_isr: int, replicas: int) -> int:
    """Return the required number of in-sync replicas: min.insync.replicas, or all replicas if there are fewer."""
    return min(min_isr, max(replicas, 1))


def verdict(in_sync: int, needed: int) -> ErrorCode:
    """Return the result of acks=all once all in-sync replicas have the batch; some may have dropped out meanwhile."""
    return ErrorCode.NONE if in_sync >= needed else ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
