"""What a share partition needs from others: the store of its state, and the settings of its group.

Owns the two interfaces, and what an error of the store means to clients. Never implements them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.protocol.errors import ErrorCode
from kbroker.share_partition.states import Limits, StateBatch

UNKNOWN_START: Final = -1
"""The stored start offset of a share partition that nobody has consumed yet."""
LATEST, EARLIEST = -1, -2
"""Where a share partition begins that has no stored state, as in ListOffsets."""
FENCING: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_STATE_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors after which the state in memory is not the true one: it is dropped, and read again at the next use."""
_FOR_CLIENTS: Final = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}


def for_clients(code: int) -> ErrorCode:
    """Return the error that a client gets for an error of the store (SharePartition.fetchPersisterError)."""
    if code == ErrorCode.NONE:
        return ErrorCode.NONE
    try:
        return _FOR_CLIENTS.get(ErrorCode(code), ErrorCode.UNKNOWN_SERVER_ERROR)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class StoredState(NamedTuple):
    """A share partition as it is stored. A `start_offset` of -1 means that it has not begun."""

    error_code: int
    state_epoch: int
    start_offset: int
    batches: Sequence[StateBatch]


class Persister(Protocol):
    """Stores the state of share partitions (KIP-932); both operations return an error code, and may raise nothing else.

    Writes of one share partition are asked for one after the other, never two at a time.
    """

    async def read(
        self, group: str, topic_id: bytes, partition: int, leader_epoch: int
    ) -> tuple[int, int, int, Sequence[tuple[int, int, int, int]]]:
        """Return the stored state (StoredState, or a tuple like it), and fence earlier leaders of the partition."""

    async def write(
        self,
        group: str,
        topic_id: bytes,
        partition: int,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> int:
        """Store changed records, and where the share partition begins now; return an error code."""


class GroupSettings(Protocol):
    """The share.* configs of groups."""

    def limits(self, group: str) -> Limits:
        """Return a group's present limits."""

    def reads_committed(self, group: str) -> bool:
        """Whether share.isolation.level is read_committed."""

    def auto_offset_reset(self, group: str) -> int:
        """Return share.auto.offset.reset: LATEST, EARLIEST, or a timestamp in ms, at which the group begins."""
