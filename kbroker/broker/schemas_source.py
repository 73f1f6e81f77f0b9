"""The `Source` of a broker's copy of the topic `_schemas`: reads the topic from its leader, as a consumer does.

Owns the requests and the meaning of their answers. A broker that leads the topic, but has no registry, sends the
requests to itself. The leader requires Topic:Read, as for any consumer. Never retries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.controller.tree.znode import Denied, MetadataTree, Unreachable
from kbroker.controller.znodes import LeaderAndIsr, Unreadable, read, state_path
from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ErrorCode, known_error
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kbroker.record_checks.followed_schemas import Piece, Place, Unread
from kbroker.schema_registry.errors import RegistryError
from kbroker.schema_registry.records import SCHEMAS_TOPIC

_CONSUMER: Final = -1
_LATEST, _EARLIEST = -1, -2
_LIST_OFFSETS: Final = 7
_FETCH_BY_NAME, _FETCH_BY_ID = 12, 13
"""The versions of Fetch with topic names, and with topic ids.

With ids, a broker never reads a new topic of the same name.
"""
_NO_ID: Final = bytes(16)
_MOST_BYTES: Final = 4 << 20
_ANSWER_MS: Final = 5_000
"""The time limit of an answer in ms, in addition to the requested wait."""


class SchemasSource:
    """The topic, read from its leader.

    `reading` are connections for fetches, which wait; `asking` are for short requests. `create` creates the topic. It
    raises RegistryError if the topic exists but cannot store schemas.
    """

    def __init__(
        self,
        node_id: int,
        tree: MetadataTree,
        metadata: ClusterMetadata,
        reading: PeersByNode,
        asking: PeersByNode,
        create: Callable[[], Awaitable[None]],
    ) -> None:
        self._node_id = node_id
        self._tree = tree
        self._metadata = metadata
        self._reading = reading
        self._asking = asking
        self._create = create

    def place(self) -> Place | None:
        topic = self._metadata.state.topics.get(SCHEMAS_TOPIC)
        if topic is None or not topic.partitions or topic.partitions[0].leader < 0:
            return None
        known = topic.partitions[0]
        return Place(known.leader, known.leader_epoch, topic.topic_id)

    async def provide(self) -> None:
        try:
            await self._create()
        except RegistryError as error:
            raise Unread(error.message) from None

    def is_here(self, place: Place) -> bool:
        return place.leader == self._node_id

    async def confirm(self, place: Place) -> None:
        path = state_path(SCHEMAS_TOPIC, 0)
        try:
            node = await self._tree.get(path)
            known = None if node is None else read(path, node.data, LeaderAndIsr.decode)
        except (Unreachable, Denied, Unreadable) as error:
            raise Unread(f"ZooKeeper did not return the leader of {SCHEMAS_TOPIC}: {error}") from None
        if known is None or (known.leader, known.leader_epoch) != (place.leader, place.epoch):
            raise _unread(place, "it leads no more")

    async def begin(self, place: Place) -> int:
        return await self._offset(place, _EARLIEST)

    async def end(self, place: Place) -> int:
        return await self._offset(place, _LATEST)

    async def _offset(self, place: Place, which: int) -> int:
        wanted = ListOffsetsPartition(0, place.epoch, which)
        request = ListOffsetsRequest(_CONSUMER, 0, [ListOffsetsTopic(SCHEMAS_TOPIC, [wanted])])
        try:
            answer = await self._asking.ask(place.leader, request, _LIST_OFFSETS, ListOffsetsResponse, _ANSWER_MS)
        except PeerUnavailable as error:
            raise _unread(place, str(error)) from None
        found = [each for topic in answer.topics for each in topic.partitions]
        code = known_error(found[0].error_code) if len(found) == 1 else ErrorCode.UNKNOWN_SERVER_ERROR
        if code is not ErrorCode.NONE:
            raise _unread(place, code.name)
        return found[0].offset

    async def read(self, place: Place, offset: int, last_epoch: int, wait_ms: int) -> Piece:
        wanted = FetchPartition(
            partition=0,
            current_leader_epoch=place.epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            partition_max_bytes=_MOST_BYTES,
        )
        topic = FetchTopic(topic=SCHEMAS_TOPIC, topic_id=place.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=_MOST_BYTES, topics=[topic])
        version = _FETCH_BY_NAME if place.topic_id in (b"", _NO_ID) else _FETCH_BY_ID
        try:
            answer = await self._reading.ask(place.leader, request, version, FetchResponse, wait_ms + _ANSWER_MS)
        except PeerUnavailable as error:
            raise _unread(place, str(error)) from None
        code = known_error(answer.error_code)
        found = [each for one in answer.responses for each in one.partitions]
        is_throttled = answer.throttle_time_ms > 0
        if code is ErrorCode.NONE and is_throttled and not found:
            return Piece(memoryview(b""), offset, is_throttled=True)
        if code is ErrorCode.NONE:
            code = known_error(found[0].error_code) if len(found) == 1 else ErrorCode.UNKNOWN_SERVER_ERROR
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return Piece(memoryview(b""), offset, is_elsewhere=True)
        if code is not ErrorCode.NONE:
            raise _unread(place, code.name)
        data, parts = found[0], found[0].diverging_epoch
        if parts is not None and (parts.epoch >= 0 or parts.end_offset >= 0):
            return Piece(memoryview(b""), offset, is_elsewhere=True)
        return Piece(memoryview(data.records or b""), data.high_watermark, is_throttled=is_throttled)


def _unread(place: Place, why: str) -> Unread:
    return Unread(f"broker {place.leader}, which leads {SCHEMAS_TOPIC}: {why}")
