"""Fetch sessions (KIP-227): the broker remembers a consumer's partitions, so that messages contain only changes.

Owns the cache of sessions and their rules (FetchManager, FetchSession of Apache Kafka): epochs, eviction, and the
partitions that an incremental response must contain. Never reads a log.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 0x7FFFFFFF
_STALE_MS = 120_000
_FIRST_ID_VERSION = 13
_MAX_PARTITIONS = 500_000
"""The maximum number of partitions of all sessions together, which use about 150 MB.

A request may even name partitions that do not exist.
"""
_AT_ONCE = 64
"""The number of partitions that a long request changes before other tasks get a turn."""

Key = tuple[str, bytes, int]
"""Topic name ("" if the client sends ids), topic id, partition."""


def next_epoch(epoch: int) -> int:
    """Return the epoch of the next request. The epoch after the largest epoch is 1."""
    return 1 if epoch == _MAX_EPOCH else epoch + 1


@dataclass(slots=True)
class CachedPartition:
    """A partition in a session: its parameters from the request, and its last response."""

    wanted: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def has_changed(self, data: PartitionData) -> bool:
        """Whether an incremental response must contain this partition."""
        return (
            data.error_code != 0
            or bool(data.records)
            or self.high_watermark != data.high_watermark
            or self.log_start_offset != data.log_start_offset
            or data.diverging_epoch is not None
            or data.preferred_read_replica >= 0
        )

    def must_answer(self, data: PartitionData) -> bool:
        """Remember a partition's response. Return whether an incremental response must contain the partition."""
        changed = self.has_changed(data)
        self.high_watermark = data.high_watermark if data.error_code == 0 else -1
        self.log_start_offset = data.log_start_offset
        return changed


class Session:
    """The session of one consumer or follower. `partitions` is in the order in which partitions are fetched."""

    __slots__ = ("epoch", "id", "is_of_follower", "last_used_ms", "partitions", "size", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: float, *, of_follower: bool = False) -> None:
        self.id = session_id
        self.is_of_follower = of_follower
        """Whether a follower opened this session.

        A follower's session may evict consumers' sessions, but a consumer's session must not evict a follower's
        session.
        """
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.uses_topic_ids = uses_topic_ids
        self.partitions: dict[Key, CachedPartition] = {}
        self.last_used_ms = now_ms
        self.size = 0

    def update(self, request: FetchRequest) -> None:
        """Apply an incremental request's additions, changes and removals."""
        for asked in request.topics:
            for wanted in asked.partitions:
                key = asked.topic, asked.topic_id, wanted.partition
                cached = self.partitions.get(key)
                if cached is None:
                    self.partitions[key] = CachedPartition(wanted)
                else:
                    cached.wanted = wanted
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                self.partitions.pop((topic.topic, topic.topic_id, index), None)

    def move_to_end(self, key: Key) -> None:
        """Move a partition that returned data to the end, so that no other partition starves."""
        self.partitions[key] = self.partitions.pop(key)


class FetchSessions:
    """The sessions of one broker, at most `slots` of them (max.incremental.fetch.session.cache.slots)."""

    def __init__(self, slots: int, seed: int | None = None) -> None:
        self._slots = slots
        self._sessions: dict[int, Session] = {}
        self._partitions = 0
        self.evictions = 0
        """The number of sessions that were evicted."""
        self._random = random.Random(seed)
        self.get = self._sessions.get

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """Number of partitions of all sessions."""
        return self._partitions

    def begin(self, request: FetchRequest, version: int, now_ms: float) -> Session | None:
        """Return the session of an incremental request; None for a full request.

        Raises ApiError: unknown session, wrong epoch, topic ids mixed with names.
        """
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._remove(request.session_id)
            return None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (version >= _FIRST_ID_VERSION):
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.update(request)
        if not session.partitions:
            self._remove(session.id)
            return None
        session.last_used_ms = now_ms
        if len(session.partitions) != session.size:
            self._account(session)
        session.epoch = next_epoch(session.epoch)
        return session

    async def begin_divided(self, request: FetchRequest, version: int, now_ms: float) -> Session | None:
        """Do the work of `begin` for a request with many changes, and apply these changes piece by piece."""
        bare = FetchRequest(session_id=request.session_id, session_epoch=request.session_epoch)
        session = self.begin(bare, version, now_ms)
        if session is None:
            return None
        for piece in _pieces(request):
            session.update(piece)
            await turn
        if not session.partitions:
            self._remove(session.id)
            return None
        if self._sessions.get(session.id) is not session:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._account(session)
        return session

    def _account(self, session: Session) -> None:
        """Count a changed session's partitions.

        If all sessions together have too many partitions, remove this session and raise ApiError.
        """
        grown = len(session.partitions) - session.size
        if grown > 0 and self._partitions + grown > _MAX_PARTITIONS:
            self._remove(session.id)
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.size += grown
        self._partitions += grown

    def open(
        self, partitions: dict[Key, CachedPartition], version: int, now_ms: float, *, of_follower: bool = False
    ) -> int:
        """Open a session with the partitions of a full request; return its id, or 0 if there is no room."""
        if len(self._sessions) >= self._slots and not self._evict(len(partitions), now_ms, of_follower):
            return 0
        while self._partitions + len(partitions) > _MAX_PARTITIONS:
            oldest = min(self._sessions.values(), key=lambda s: s.last_used_ms, default=None)
            if oldest is None or now_ms - oldest.last_used_ms <= _STALE_MS:
                return 0
            self._remove(oldest.id)
        session_id = self._random.randrange(1, 0x7FFFFFFF)
        while session_id in self._sessions:
            session_id = self._random.randrange(1, 0x7FFFFFFF)
        session = Session(session_id, version >= _FIRST_ID_VERSION, now_ms, of_follower=of_follower)
        session.partitions = partitions
        session.size = len(partitions)
        self._partitions += session.size
        self._sessions[session_id] = session
        return session_id

    def _evict(self, size: int, now_ms: float, for_follower: bool) -> bool:
        """Evict the longest unused session if it is stale.

        Otherwise, evict the smallest session if it is smaller than the new session. Only a follower's new session
        evicts a follower's session that is not stale. A follower's new session may evict a consumer's session of any
        size.
        """
        if not self._sessions:
            return False
        victim = min(self._sessions.values(), key=lambda s: s.last_used_ms)
        if now_ms - victim.last_used_ms <= _STALE_MS:
            victim = min(self._sessions.values(), key=lambda s: (s.is_of_follower, s.size, s.id))
            if (victim.is_of_follower, victim.size) > (for_follower, size):
                return False
        self._remove(victim.id)
        self.evictions += 1
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= session.size


def _pieces(request: FetchRequest) -> Iterator[FetchRequest]:
    """Yield short requests that together make the same changes as a long request, in the same order."""
    for topic in request.topics:
        for start in range(0, max(len(topic.partitions), 1), _AT_ONCE):
            part = FetchTopic(topic.topic, topic.topic_id, topic.partitions[start : start + _AT_ONCE])
            yield FetchRequest(topics=[part])
    for dropped in request.forgotten_topics_data:
        for start in range(0, max(len(dropped.partitions), 1), _AT_ONCE):
            forgotten = ForgottenTopic(dropped.topic, dropped.topic_id, dropped.partitions[start : start + _AT_ONCE])
            yield FetchRequest(forgotten_topics_data=[forgotten])
