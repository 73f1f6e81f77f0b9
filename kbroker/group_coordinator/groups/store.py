"""The groups of a shard (shard.py), of all protocols, in one table by id.

Owns the group of each id, and the list of members that have left. Other modules decide about a group's change of
protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.group_coordinator.assignment import Epochs
from kbroker.group_coordinator.groups.classic_group import ClassicGroup
from kbroker.group_coordinator.groups.consumer_group import ConsumerGroup
from kbroker.group_coordinator.groups.share_group import ShareGroup
from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.protocol.errors import ApiError, ErrorCode

Group = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup


_MOST_DEPARTED: Final = 1_000


class Departure(NamedTuple):
    """A member that has left a group, was removed, or was replaced by a static member of the same name.

    `owned` are its partitions: the bytes of a classic group's assignment, or the partitions by topic id.
    """

    group_id: str
    owned: bytes | Epochs


class Groups:
    """The table, and a list of the members that have left since the list was last read.

    If many have left, the list contains only the latest.
    """

    def __init__(self) -> None:
        self.departed: deque[Departure] = deque(maxlen=_MOST_DEPARTED)
        self._by_id: dict[str, Group] = {}
        self._shares: dict[str, ShareGroup] = {}
        self.get = self._by_id.get

    def classic(self, group_id: str) -> ClassicGroup | None:
        group = self._by_id.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        group = self._by_id.get(group_id)
        return group if isinstance(group, ConsumerGroup) else None

    def known_consumer(self, group_id: str) -> ConsumerGroup:
        """Return a consumer group; raises GROUP_ID_NOT_FOUND."""
        group = self._by_id.get(group_id)
        if not isinstance(group, ConsumerGroup):
            reason = "not found" if group is None else "is not a consumer group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group

    def streams(self, group_id: str) -> StreamsGroup | None:
        group = self._by_id.get(group_id)
        return group if isinstance(group, StreamsGroup) else None

    def known_streams(self, group_id: str) -> StreamsGroup:
        """Return a streams group; raises GROUP_ID_NOT_FOUND."""
        group = self._by_id.get(group_id)
        if not isinstance(group, StreamsGroup):
            reason = "not found" if group is None else "is not a streams group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group

    def share(self, group_id: str) -> ShareGroup | None:
        return self._shares.get(group_id)

    def shares(self) -> list[ShareGroup]:
        """Return all share groups."""
        return list(self._shares.values())

    def known_share(self, group_id: str) -> ShareGroup:
        """Return a share group; raises GROUP_ID_NOT_FOUND."""
        group = self._by_id.get(group_id)
        if not isinstance(group, ShareGroup):
            reason = "not found" if group is None else "is not a share group"
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {reason}.")
        return group

    def no_share(self, group_id: str) -> ClassicGroup | ConsumerGroup | StreamsGroup | None:
        """Return a group that may have offsets, or None; raises GROUP_ID_NOT_FOUND for a share group."""
        group = self._by_id.get(group_id)
        if isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        return group

    def put(self, group: Group) -> None:
        """Store a group under its id. The group replaces any other group with this id."""
        self._by_id[group.group_id] = group
        if isinstance(group, ShareGroup):
            self._shares[group.group_id] = group
        elif self._shares:
            self._shares.pop(group.group_id, None)

    def remove(self, group: Group | None) -> None:
        """Remove a group, if no other group has the same id now."""
        if group is not None and self._by_id.get(group.group_id) is group:
            del self._by_id[group.group_id]
            self._shares.pop(group.group_id, None)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Group]:
        return iter(self._by_id.values())
