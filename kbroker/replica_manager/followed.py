"""A partition that is copied from its leader, and the requests for the leader's offsets.

Owns the position of the next fetch, the pauses, and the two APIs that look up offsets of many partitions at once. Never
fetches, and never changes a log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kbroker.peers.interface import Peer
from kbroker.protocol.errors import ErrorCode, known_error
from kbroker.protocol.messages.fetch import FetchPartition
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kbroker.replica_manager.follower_session import Key
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.replication.following import Following

LATEST, EARLIEST, EARLIEST_LOCAL, EARLIEST_PENDING_UPLOAD = -1, -2, -4, -6
_LIST_OFFSETS_VERSION, _PENDING_UPLOAD_VERSION = 9, 11
_EPOCH_VERSION: Final = 4
FIRST_PAUSE_MS: Final = 50
"""The first pause after a failure, in ms. Each later pause is twice as long, up to replica.fetch.backoff.ms.

The first pause is short because a new leader soon learns of its leadership.
"""

PartitionKey = tuple[str, int]


class Followed:
    """A partition that is copied. A new object is created each time the partition begins to follow."""

    __slots__ = ("logged_error", "partition", "pause_ms", "state")

    def __init__(self, partition: ReplicatedPartition, state: Following) -> None:
        self.partition = partition
        self.state = state
        self.logged_error = ErrorCode.NONE
        """The last logged error."""
        self.pause_ms = FIRST_PAUSE_MS
        """The length of the partition's next pause, in ms."""

    @property
    def id(self) -> Key:
        return self.partition.topic_id, self.partition.index

    def request(self, max_bytes: int) -> FetchPartition:
        """Return the partition's part of a fetch request."""
        state = self.state
        return FetchPartition(
            partition=self.partition.index,
            current_leader_epoch=state.leader_epoch,
            fetch_offset=state.fetch_offset,
            last_fetched_epoch=state.last_fetched_epoch,
            log_start_offset=self.partition.log.earliest_offset,
            partition_max_bytes=max_bytes,
        )

    def __str__(self) -> str:
        return f"{self.partition.topic}-{self.partition.index}"


class LeaderOffset(NamedTuple):
    """The answer of a leader: an offset and its leader epoch, or an error."""

    code: ErrorCode
    offset: int
    epoch: int


MISSING: Final = LeaderOffset(ErrorCode.UNKNOWN_SERVER_ERROR, -1, -1)
"""The value for a partition that an answer lacks."""


async def list_offsets(
    peer: Peer, node_id: int, asked: Iterable[Followed], timestamp: int, timeout_ms: float
) -> dict[PartitionKey, LeaderOffset]:
    """Return the leader's offsets for a special timestamp. Raises PeerUnavailable."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    version = _PENDING_UPLOAD_VERSION if timestamp == EARLIEST_PENDING_UPLOAD else _LIST_OFFSETS_VERSION
    for followed in asked:
        wanted = ListOffsetsPartition(followed.partition.index, followed.state.leader_epoch, timestamp)
        topics.setdefault(followed.partition.topic, []).append(wanted)
    if not topics:
        return {}
    request = ListOffsetsRequest(
        replica_id=node_id,
        topics=[ListOffsetsTopic(name, partitions) for name, partitions in topics.items()],
    )
    answer = await peer.ask(request, version, ListOffsetsResponse, timeout_ms)
    return {
        (topic.name, each.partition_index): LeaderOffset(known_error(each.error_code), each.offset, each.leader_epoch)
        for topic in answer.topics
        for each in topic.partitions
    }


async def ends_of_epochs(
    peer: Peer, node_id: int, asked: Iterable[tuple[Followed, int]], timeout_ms: float
) -> dict[PartitionKey, LeaderOffset]:
    """Return, for pairs of a partition and a leader epoch, the end offset of the largest epoch up to this epoch.

    Raises PeerUnavailable.
    """
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for followed, epoch in asked:
        wanted = OffsetForLeaderPartition(followed.partition.index, followed.state.leader_epoch, epoch)
        topics.setdefault(followed.partition.topic, []).append(wanted)
    request = OffsetForLeaderEpochRequest(
        replica_id=node_id,
        topics=[OffsetForLeaderTopic(name, partitions) for name, partitions in topics.items()],
    )
    answer = await peer.ask(request, _EPOCH_VERSION, OffsetForLeaderEpochResponse, timeout_ms)
    return {
        (topic.topic, each.partition): LeaderOffset(known_error(each.error_code), each.end_offset, each.leader_epoch)
        for topic in answer.topics
        for each in topic.partitions
    }
