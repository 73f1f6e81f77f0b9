"""Reads partitions one at a time from their current leaders.

Owns the cache of topics, and the wait for a leader. Reads only the topic that the first request for a name found: a
topic that is created anew under the same name is another topic. Never decides why a record is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka.errors import KafkaError, LeaderNotAvailableError, ThrottlingQuotaExceededError

from kbroker.admin.cluster_view import TopicView, cluster_view
from kbroker.admin.connection import patiently
from kbroker.admin.errors import AdminError, code_error, error_text
from kbroker.admin.fetching import MOST_BYTES, PartitionRefused, Piece, fetch
from kbroker.admin.partition_offsets import known_offsets_at
from kbroker.admin.placement import Key
from kbroker.topic_names import topic_name_fault

_MOST_TOPICS: Final = 1_000
_LATEST, _EARLIEST = -1, -2


class TopicHidden(AdminError):  # noqa: N818 - an outcome
    """The broker does not describe a topic, in most cases because the user lacks a right."""


class PartitionReader:
    """Topics, as the first request for each name found them, and the records of their partitions."""

    def __init__(self, admin: Any) -> None:
        self._admin = admin
        self._topics: dict[str, TopicView | None | TopicHidden] = {}

    def topic(self, name: str) -> TopicView | None:
        """Return a topic; None if it does not exist, or if the name is invalid. Raises TopicHidden."""
        if topic_name_fault(name) is not None:
            return None
        if name not in self._topics:
            if len(self._topics) >= _MOST_TOPICS:
                self._topics.clear()
            self._topics[name] = self._looked_up(name)
        found = self._topics[name]
        if isinstance(found, TopicHidden):
            raise found
        return found

    def bounds(self, name: str, partitions: tuple[int, ...]) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and the offset after its last record.

        The partitions must exist. Raises AdminError, even if only some of the offsets are unknown.
        """
        found: dict[int, tuple[int, int]] = {}

        def ask() -> None:
            led = {(name, index): leader for index, leader in self.leaders(name).items() if index in partitions}
            begins, ends = (known_offsets_at(self._admin, led, spec) for spec in (_EARLIEST, _LATEST))
            found.update({key[1]: (begins[key], ends[key]) for key in led if key in begins and key in ends})
            if len(found) < len(set(partitions)):
                self._look_again(name)
                raise LeaderNotAvailableError

        try:
            patiently(ask)
        except LeaderNotAvailableError:
            missing = min(set(partitions) - found.keys())
            raise AdminError(f"{name}-{missing} has no leader that answers") from None
        return {index: found[index] for index in partitions}

    def leaders(self, name: str) -> Mapping[int, int]:
        """Return the leader of each partition, or -1 if it has none."""
        view = self.topic(name)
        if view is None:
            raise AdminError(f"topic {name} does not exist any more")
        return {each.partition_index: each.leader_id for each in view.partitions}

    def fetch(self, key: Key, offset: int, *, committed: bool = False, most_bytes: int = MOST_BYTES) -> Piece:
        """Fetch records like fetching.fetch, but wait for a leader; return no records if there is no such partition."""

        def once() -> Piece:
            leader = self.leaders(key[0]).get(key[1])
            if leader is None:
                return Piece(next_offset=offset)
            view = self.topic(key[0])
            assert view is not None
            ids = {view.name: view.topic_id}
            try:
                if leader < 0:
                    raise LeaderNotAvailableError
                pieces = fetch(
                    self._admin, {key: leader}, {key: offset}, ids, committed=committed, most_bytes=most_bytes
                )
                if key not in pieces:
                    raise ThrottlingQuotaExceededError
                return pieces[key]
            except PartitionRefused as refused:
                if not refused.error.retriable:
                    raise
                self._look_again(key[0])
                raise refused.error from None
            except KafkaError:
                self._look_again(key[0])
                raise

        try:
            return patiently(once, reads=True)
        except KafkaError as error:
            text = error_text(error) if hasattr(error, "errno") else str(error)
            raise AdminError(f"{key[0]}-{key[1]} cannot be read: {text}") from error

    def _looked_up(self, name: str) -> TopicView | None | TopicHidden:
        def once() -> TopicView | None | TopicHidden:
            view = cluster_view(self._admin, [name])
            error = code_error(view.refused.get(name, 0))
            if error is None:
                return view.topics.get(name)
            if error.retriable:
                raise error
            return TopicHidden(f"topic {name}: {error_text(error)}")

        return patiently(once, reads=True)

    def _look_again(self, name: str) -> None:
        """Request a topic's leaders. Raises AdminError if the topic was deleted, or was created anew."""
        was = self.topic(name)
        found = self._topics[name] = self._looked_up(name)
        if isinstance(found, TopicHidden):
            raise found
        if was is not None and (found is None or found.topic_id != was.topic_id):
            raise AdminError(f"topic {name} was deleted meanwhile{'' if found is None else ', and made anew'}")
