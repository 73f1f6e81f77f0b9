"""A share group and its members, and the share partitions that the group has used.

Owns the group's state as its records created it. A group without members is Empty, any other group is Stable: share
groups do not wait for their members. The epochs are those of consumer groups (consumer_group.py).

The share partitions of a topic are first *initializing*, while the share coordinator creates their state, and then
*initialized*. Only initialized partitions are assigned. Topics are *deleting* while the share coordinator deletes their
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from kbroker.group_coordinator.assignment import Partitions
from kbroker.group_coordinator.groups.consumer_group import SubscriptionCounts
from kbroker.group_coordinator.groups.consumer_member import STABLE, MemberState
from kbroker.protocol.errors import ApiError, ErrorCode

SHARE = "share"
NOTHING: Partitions = {}


class ShareGroupState(Enum):
    """The states, by their names in ShareGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ShareMember:
    """One member, as a value."""

    member_id: str
    member_epoch: int = 0
    previous_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    state: MemberState = STABLE
    assigned: Partitions = field(default_factory=dict)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return whether the member has the partitions of the target of `epoch`."""
        return self.state is STABLE and self.member_epoch == epoch


@dataclass(frozen=True, slots=True)
class UsedTopic:
    """Share partitions of a topic. `name` is the topic's name when the record was written, for readers of the log."""

    name: str
    partitions: frozenset[int]


Used = Mapping[bytes, UsedTopic]


@dataclass(frozen=True, slots=True)
class StatePartitions:
    """The group's share partitions by the progress of their state. `deleting` maps topic ids to names."""

    initializing: Used = field(default_factory=dict)
    initialized: Used = field(default_factory=dict)
    deleting: Mapping[bytes, str] = field(default_factory=dict)

    def topic_ids(self) -> set[bytes]:
        return {*self.initializing, *self.initialized, *self.deleting}


def united(first: Used, second: Used) -> dict[bytes, UsedTopic]:
    """Return the union of two sets of partitions. If both have a name for a topic, the second name counts."""
    found = dict(first)
    for topic_id, used in second.items():
        known = found.get(topic_id)
        found[topic_id] = used if known is None else replace(used, partitions=known.partitions | used.partitions)
    return found


def without(used: Used, removed: Mapping[bytes, Iterable[int]]) -> dict[bytes, UsedTopic]:
    """Return partitions without the removed partitions. Topics that have no partitions left are omitted."""
    found = {}
    for topic_id, topic in used.items():
        left = topic.partitions.difference(removed.get(topic_id, ()))
        if left:
            found[topic_id] = replace(topic, partitions=left)
    return found


class ShareGroup:
    """One group."""

    TYPE = "share"
    protocol_type = SHARE

    __slots__ = (
        "assignment_epoch", "assignment_timestamp", "checked_version", "counts", "epoch", "group_id",
        "initializing_since", "members", "metadata_hash", "refresh_deadline", "refresh_epoch", "seen_version",
        "state_partitions", "target",
    )  # fmt: skip

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.assignment_epoch = 1
        self.assignment_timestamp = 0
        self.metadata_hash = 0
        self.members: dict[str, ShareMember] = {}
        self.target: dict[str, Partitions] = {}
        self.counts = SubscriptionCounts({}, {})
        self.state_partitions: StatePartitions | None = None
        # The following state exists only in this process.
        self.initializing_since = 0  # The time at which the running initialization of partitions began.
        self.refresh_deadline = 0  # The time of the next check of the topics, even without a notification.
        self.refresh_epoch = 0
        self.seen_version = 0  # The version of Topics at the last check.
        self.checked_version = 0  # The version of Topics for which all partitions are initialised and in the target.

    # -- queries

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def is_empty(self) -> bool:
        return not self.members

    def member(self, member_id: str) -> ShareMember:
        """Return a member; raises UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return found

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.counts.by_name

    def topics_are_stale(self, now_ms: int, version: int) -> bool:
        """Return whether the group must check its subscribed topics for changes."""
        return now_ms >= self.refresh_deadline or self.epoch < self.refresh_epoch or self.seen_version != version

    @property
    def initialized(self) -> Used:
        return {} if self.state_partitions is None else self.state_partitions.initialized

    # -- changes by records

    def put_member(self, member: ShareMember) -> None:
        """Add a member, or replace it with its newer value."""
        self.counts.count_topics(self._topics_of(member.member_id), -1)
        self.members[member.member_id] = member
        self.counts.count_topics(member.topics, 1)
        self.checked_version = 0

    def remove_member(self, member_id: str) -> None:
        self.counts.count_topics(self._topics_of(member_id), -1)
        self.members.pop(member_id, None)
        self.checked_version = 0

    def _topics_of(self, member_id: str) -> frozenset[str]:
        known = self.members.get(member_id)
        return frozenset() if known is None else known.topics
