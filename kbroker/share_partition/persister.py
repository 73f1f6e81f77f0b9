"""The settings that a share partition reads, and the meaning of the share coordinator's errors.

Owns the interface of the settings. The state of share partitions is in the share coordinator
(share_coordinator/persister.py).
"""

from __future__ import annotations

from typing import Final, Protocol

from kbroker.protocol.errors import ErrorCode, known_error
from kbroker.share_partition.states import Limits

UNKNOWN_START: Final = -1
"""The stored start offset of a share partition from which no group member has consumed yet."""
LATEST, EARLIEST = -1, -2
"""The position at which a share partition without stored state begins. The numbers are those of ListOffsets."""
FENCING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors which prove that the state in memory is wrong.

The broker drops this state, and reads the stored state at the next use.
"""
_FOR_CLIENTS: Final = {
    ErrorCode.NONE: ErrorCode.NONE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


def for_clients(code: int) -> ErrorCode:
    """Return the error that clients get for an error of the share coordinator (SharePartition.fetchPersisterError)."""
    return _FOR_CLIENTS.get(known_error(code), ErrorCode.UNKNOWN_SERVER_ERROR)


class GroupSettings(Protocol):
    """The share.* configs of groups."""

    def limits(self, group: str) -> Limits:
        """Return a group's current limits."""

    def reads_committed(self, group: str) -> bool:
        """Whether share.isolation.level is read_committed."""

    def auto_offset_reset(self, group: str) -> int:
        """Return share.auto.offset.reset: LATEST, EARLIEST, or the timestamp in ms at which the group begins."""
