"""The follower's side of a fetch session (KIP-227; Apache Kafka: FetchSessionHandler).

Owns the wanted partitions, and the partitions that the leader already knows. The first request contains all partitions,
and later requests contain only changes. Pure: it never sends requests.
"""

from __future__ import annotations

from typing import Final, Generic, NamedTuple, TypeVar

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic

Key = tuple[bytes, int]
"""Topic id and partition."""
Owner = TypeVar("Owner")
_INITIAL: Final = 0
_MAX_EPOCH: Final = 0x7FFFFFFF
SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
"""After these errors, the next request contains all partitions."""


class Wanted(NamedTuple, Generic[Owner]):
    """The wanted fetch of a partition, and the owner of this entry."""

    owner: Owner
    asked: FetchPartition


class FollowerSession(Generic[Owner]):
    """One fetcher's session with one leader. Only one request is in flight."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = _INITIAL
        self._must_renew = False
        self._wanted: dict[Key, Wanted[Owner]] = {}
        self._changed: set[Key] = set()
        self._sent: dict[Key, Wanted[Owner]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def want(self, key: Key, owner: Owner, asked: FetchPartition) -> None:
        """Fetch a partition with these values in the next and all later requests."""
        sent = self._sent.get(key)
        if sent is not None and sent.owner is not owner:
            self.renew()
        self._wanted[key] = Wanted(owner, asked)
        self._changed.add(key)

    def drop(self, key: Key) -> None:
        """Stop fetching a partition."""
        if self._wanted.pop(key, None) is not None:
            self._changed.add(key)

    def sent(self, key: Key) -> Wanted[Owner] | None:
        """Return the fetch of a partition in the last request, or None."""
        return self._sent.get(key)

    def put_into(self, request: FetchRequest) -> None:
        """Add the wanted partitions to a request."""
        if self._must_renew:
            self._epoch, self._must_renew = _INITIAL, False
        request.session_id, request.session_epoch = self._id, self._epoch
        if self._epoch == _INITIAL:
            self._sent = dict(self._wanted)
            request.topics = _topics(self._sent)
            request.forgotten_topics_data = []
        else:
            # Keep the order in which partitions were wanted, so that no partition is always last.
            fresh = {key: self._wanted[key] for key in self._changed if key in self._wanted}
            dropped = [key for key in self._changed if key not in self._wanted and key in self._sent]
            self._sent.update(fresh)
            for key in dropped:
                del self._sent[key]
            request.topics = _topics(fresh)
            request.forgotten_topics_data = _forgotten(dropped)
        self._changed.clear()

    def answered(self, answer: FetchResponse) -> bool:
        """Apply a response to the session; return whether it contains partitions."""
        if answer.error_code:
            if answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            self._epoch = _INITIAL
            return False
        if not answer.session_id:
            self._id, self._epoch = 0, _INITIAL  # the session is empty, or the leader has no room for the session
        elif self._epoch == _INITIAL:
            self._id, self._epoch = answer.session_id, 1
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        return True

    def lost(self) -> None:
        """Handle a missing response. It is unknown whether the leader has processed the request."""
        self._must_renew = True

    def renew(self) -> None:
        """Send all partitions with the next request, because the response for a partition was not applied.

        Otherwise the leader would not repeat a high watermark that it has already sent.
        """
        self._must_renew = True

    def restart(self) -> None:
        """Start a new session with another process of the broker."""
        self._id, self._epoch = 0, _INITIAL


def _topics(wanted: dict[Key, Wanted[Owner]]) -> list[FetchTopic]:
    topics: dict[bytes, list[FetchPartition]] = {}
    for (topic_id, _), each in wanted.items():
        topics.setdefault(topic_id, []).append(each.asked)
    return [FetchTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]


def _forgotten(keys: list[Key]) -> list[ForgottenTopic]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [ForgottenTopic(topic_id=topic_id, partitions=indexes) for topic_id, indexes in topics.items()]
