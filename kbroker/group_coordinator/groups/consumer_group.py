"""A consumer group: its members, its epochs, its target.

Owns the state and the counts derived from it. A group changes only when records/consumer_group.py replays a record. The
package `consumer` decides about a group, and does not modify it.

    Empty        No members. Offsets may stay until they expire.
    Assigning    The group's epoch is ahead of the target's: the next heartbeat for which a target is due computes it.
    Reconciling  Members are on their way to the target.
    Stable       Every member has the partitions of its target.

A group's state follows from its members and epochs, so there are no transitions to check.

The epochs: `epoch` grows with every change of members, subscriptions or topics. `assignment_epoch` is the group epoch
for which the target was computed. A member's epoch is the epoch of the target to which it was last moved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from kbroker.group_coordinator.assignment import Epochs, Partitions
from kbroker.group_coordinator.groups.consumer_member import UNRELEASED, ConsumerMember
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

CONSUMER = "consumer"
NOTHING: Partitions = {}


class ConsumerGroupState(Enum):
    """The states, by their names in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that matched a subscribed pattern, and the time of the match."""

    topics: frozenset[str]
    version: int
    timestamp: int


class SubscriptionCounts:
    """For each topic, the number of members that name it, and the number of resolved patterns that match it."""

    __slots__ = ("by_name", "by_regex")

    def __init__(self, by_name: dict[str, int], by_regex: dict[str, int]) -> None:
        self.by_name = by_name
        self.by_regex = by_regex

    def copy(self) -> SubscriptionCounts:
        """Return a copy on which a change can be tried."""
        return SubscriptionCounts(dict(self.by_name), dict(self.by_regex))

    def topics(self) -> set[str]:
        return self.by_name.keys() | self.by_regex.keys()

    def count_topics(self, names: Iterable[str], step: int) -> None:
        _count(self.by_name, names, step)

    def count_member(self, member: ConsumerMember | None, step: int) -> None:
        if member is not None:
            _count(self.by_name, member.topics, step)

    def count_regex(self, resolved: ResolvedRegex | None, step: int) -> None:
        if resolved is not None:
            _count(self.by_regex, resolved.topics, step)


def _count(counts: dict[str, int], keys: Iterable[str], step: int) -> None:
    for key in keys:
        value = counts.get(key, 0) + step
        if value > 0:
            counts[key] = value
        else:
            counts.pop(key, None)


class ConsumerGroup:
    """One group."""

    TYPE = "consumer"

    __slots__ = (
        "_partition_epochs", "assignment_epoch", "assignment_timestamp", "assignors", "classic_members",
        "classic_protocols", "counts", "epoch", "group_id", "has_partition_metadata_record", "joining", "members",
        "metadata_hash", "refresh_deadline", "refresh_epoch", "regex_version", "regexes", "resolved", "revoking",
        "seen_version", "static_members", "target", "too_many_for_classic",
    )  # fmt: skip

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 1
        self.assignment_epoch = 1
        self.assignment_timestamp = 0
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}  # instance id -> member id
        self.target: dict[str, Partitions] = {}
        self.resolved: dict[str, ResolvedRegex] = {}
        self.counts = SubscriptionCounts({}, {})
        self.regexes: dict[str, int] = {}  # subscribed pattern -> the number of its members
        self.assignors: dict[str, int] = {}
        self.classic_members = 0
        self.classic_protocols: dict[str, int] = {}
        self.has_partition_metadata_record = False
        self._partition_epochs: dict[bytes, dict[int, int]] = {}
        # The following state exists only in this process.
        self.refresh_deadline = 0  # The time of the next check of the topics, even without a notification.
        self.refresh_epoch = 0
        self.seen_version = 0  # The version of Topics at the last check.
        self.regex_version = 0  # The created_version of Topics when the patterns were last resolved.
        self.revoking: dict[str, int] = {}  # Members whose revocation is timed, and their epochs at its start.
        self.joining: set[str] = set()  # Classic members with a timer for their next JoinGroup.
        self.too_many_for_classic = 0  # The number of members in the classic group's record that the log refused.

    # -- queries

    protocol_type = CONSUMER

    @property
    def state(self) -> ConsumerGroupState:
        """The group's progress towards its target."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_empty(self) -> bool:
        return not self.members

    def member(self, member_id: str) -> ConsumerMember:
        """Return a member; raises UNKNOWN_MEMBER_ID."""
        found = self.members.get(member_id)
        if found is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        return found

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        held = None if instance_id is None else self.static_members.get(instance_id)
        return None if held is None else self.members.get(held)

    def target_of(self, member_id: str, instance_id: str | None = None) -> Partitions:
        """Return a member's target. If its instance id had a previous holder, return the target of this holder."""
        if instance_id is not None:
            holder = self.static_members.get(instance_id)
            return NOTHING if holder is None else self.target.get(holder, NOTHING)
        return self.target.get(member_id, NOTHING)

    def partition_epoch(self, topic_id: bytes, partition: int) -> int:
        """Return the epoch of a partition's owner; -1 if the partition has none."""
        held = self._partition_epochs.get(topic_id)
        return -1 if held is None else held.get(partition, -1)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.counts.by_name or topic in self.counts.by_regex

    def preferred_assignor(self, old: ConsumerMember | None = None, new: ConsumerMember | None = None) -> str | None:
        """Return the assignor that most members prefer after a change of a member; None if no member prefers any."""
        counts = dict(self.assignors)
        if old is not None and old.assignor is not None:
            _count(counts, (old.assignor,), -1)
        if new is not None and new.assignor is not None:
            _count(counts, (new.assignor,), 1)
        return max(counts, key=lambda name: counts[name], default=None)

    def topics_are_stale(self, now_ms: int, version: int) -> bool:
        """Return whether the group must check its subscribed topics for changes."""
        return now_ms >= self.refresh_deadline or self.epoch < self.refresh_epoch or self.seen_version != version

    def all_classic_without(self, members: Iterable[ConsumerMember]) -> bool:
        removed = list(members)
        classic = self.classic_members - sum(member.classic is not None for member in removed)
        return classic == len(self.members) - len(removed)

    def supports_classic(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Return whether a classic member with these protocols could join the group."""
        return protocol_type == CONSUMER and any(
            self.classic_protocols.get(name, 0) == self.classic_members for name in names
        )

    def waits_for_others(self, member: ConsumerMember) -> bool:
        """Return whether a member must wait for a partition of its target until another member has revoked it."""
        return member.state is UNRELEASED and any(
            index not in member.assigned.get(topic_id, {}) and self.partition_epoch(topic_id, index) != -1
            for topic_id, indexes in self.target.get(member.member_id, NOTHING).items()
            for index in indexes
        )

    # -- changes by records

    def put_member(self, member: ConsumerMember) -> None:
        """Add a member, or replace it with its newer value."""
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._count_member(old, -1)
        self._count_member(member, 1)
        if old is not None:
            self._release(old.assigned, old.member_epoch)
            self._release(old.pending_revocation, old.member_epoch)
        self._own(member.assigned, member.member_epoch)
        self._own(member.pending_revocation, member.member_epoch)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id

    def remove_member(self, member_id: str) -> None:
        old = self.members.pop(member_id, None)
        if old is None:
            return
        self._count_member(old, -1)
        self._release(old.assigned, old.member_epoch)
        self._release(old.pending_revocation, old.member_epoch)
        self.revoking.pop(member_id, None)
        self.joining.discard(member_id)
        if old.instance_id is not None and self.static_members.get(old.instance_id) == member_id:
            del self.static_members[old.instance_id]

    def put_resolved(self, regex: str, resolved: ResolvedRegex | None) -> None:
        """Store the topics of a pattern; None removes the pattern."""
        self.counts.count_regex(self.resolved.pop(regex, None), -1)
        if resolved is not None:
            self.resolved[regex] = resolved
            self.counts.count_regex(resolved, 1)

    def _count_member(self, member: ConsumerMember | None, step: int) -> None:
        if member is None:
            return
        self.counts.count_member(member, step)
        if member.assignor is not None:
            _count(self.assignors, (member.assignor,), step)
        if member.regex:
            _count(self.regexes, (member.regex,), step)
        if member.classic is not None:
            self.classic_members += step
            _count(self.classic_protocols, [name for name, _ in member.classic.protocols], step)

    def _own(self, epochs: Epochs, epoch: int) -> None:
        for topic_id, indexes in epochs.items():
            held = self._partition_epochs.setdefault(topic_id, {})
            for index in indexes:
                if held.get(index, -1) >= epoch >= 0:
                    log.warning(
                        "group %s: partition %d of topic %s has an owner of epoch %d already, and now one of %d",
                        self.group_id, index, topic_id.hex(), held[index], epoch,
                    )  # fmt: skip
                held[index] = epoch

    def _release(self, epochs: Epochs, epoch: int) -> None:
        for topic_id, indexes in epochs.items():
            held = self._partition_epochs.get(topic_id)
            if held is None:
                continue
            for index in indexes:
                # After a compaction of the log, the partition may already belong to another member, which keeps it.
                if held.get(index) == epoch:
                    del held[index]
            if not held:
                del self._partition_epochs[topic_id]


def is_homogeneous(regexes: Mapping[str, int], counts: SubscriptionCounts, members: int) -> bool:
    """Return whether all members subscribe to the same topics, either by name or by one pattern alone."""
    if not regexes:
        return not counts.by_regex and all(count == members for count in counts.by_name.values())
    if next(iter(regexes.values())) != members:
        return False
    return not counts.by_name and all(count == 1 for count in counts.by_regex.values())
