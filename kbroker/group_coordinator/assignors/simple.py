"""The assignor "simple" of share groups: members share partitions as evenly as possible, and keep their partitions.

Owns this algorithm (Kafka's SimpleAssignor). Each partition is assigned to as many members as are needed to give every
member a partition. A member loses its partitions beyond its quota, and a partition loses its members beyond its share.
The members below their quota then get the missing assignments in turn. If there is no other rule, the order of Java's
hash tables decides, so that the result equals Kafka's. The algorithm makes one pass over members and partitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kbroker.group_coordinator.assignment import Assignment, Partitions
from kbroker.group_coordinator.java_order import (
    HashOrder,
    integer_hash,
    partitions_in_java_order,
    topics_in_java_order,
    uuid_hash,
)

TopicPartition = tuple[bytes, int]
P = TypeVar("P")
Held = dict[bytes, set[int]]


@dataclass(frozen=True, slots=True)
class SharingMember:
    """One member: its topics in the order of Java's set of their names, and its current target."""

    topics: Sequence[bytes]
    assigned: Partitions


@dataclass(frozen=True, slots=True)
class SharingSpec:
    """A share group: its members in Java's order, and whether all members subscribe to the same topics."""

    members: Mapping[str, SharingMember]
    homogeneous: bool
    partitions: Mapping[bytes, Sequence[int]]
    """For each subscribed topic, the partitions with an initialised state, sorted by number."""


def simple(spec: SharingSpec) -> Assignment:
    """Return the assignment of every member. As in Kafka, a topic can be left without any assigned partition."""
    if not spec.members:
        return {}
    return _homogeneous(spec) if spec.homogeneous else _heterogeneous(spec)


def _topic_partition_hash(partition: TopicPartition) -> int:
    return 31 * uuid_hash(partition[0]) + partition[1]


class _Assigned:
    """The members' assignments. A member's old assignment is copied when it first changes."""

    def __init__(self, members: Iterable[SharingMember]) -> None:
        self.old = [member.assigned for member in members]
        self._new: dict[int, Held] = {}

    def of(self, number: int) -> Held:
        """Return a member's assignment in a form that the caller can change."""
        held = self._new.get(number)
        if held is None:
            held = self._new[number] = {topic_id: set(indexes) for topic_id, indexes in self.old[number].items()}
        return held

    def by_id(self, ids: Iterable[str]) -> Assignment:
        """Return the assignments by member id."""
        return {
            member_id: self.old[number]
            if (held := self._new.get(number)) is None
            else {topic_id: frozenset(indexes) for topic_id, indexes in held.items()}
            for number, member_id in enumerate(ids)
        }


class _Sharing(Generic[P]):
    """The sharing of some partitions among some members. The members have numbers.

    `quota` is the number of partitions of each member. `place` returns the topic and the index of a partition.
    """

    def __init__(
        self,
        assigned: _Assigned,
        quota: Mapping[int, int],
        sharing: int,
        expected: int,
        hash_of: Callable[[P], int],
        place: Callable[[P], TopicPartition],
    ) -> None:
        self._assigned = assigned
        self._quota = quota
        self._sharing = sharing
        self._hash = hash_of
        self._place = place
        self._members: HashOrder[P, HashOrder[int, None]] = HashOrder(hash_of, expected)
        self._partitions: dict[int, HashOrder[P, None]] = {}
        self._short: set[int] = set()

    def keep(self, number: int, partition: P) -> None:
        """Record that a member has a partition."""
        self._members.get_or_add(partition, lambda: HashOrder(integer_hash)).add(number, None)
        self._of(number).add(partition, None)

    def _of(self, number: int) -> HashOrder[P, None]:
        held = self._partitions.get(number)
        if held is None:
            held = self._partitions[number] = HashOrder(self._hash)
        return held

    def count(self, number: int) -> int:
        """Return the number of a member's partitions."""
        held = self._partitions.get(number)
        return 0 if held is None else len(held)

    def revoke(self) -> None:
        """Remove each member's partitions beyond its quota, then each partition's members beyond its share."""
        for number in sorted(self._partitions):
            held = self._partitions[number]
            surplus = len(held) - self._quota.get(number, 0)
            for partition in held.ordered()[:surplus] if surplus > 0 else ():
                self._take(number, partition)
        for partition in self._members.ordered():
            members = self._members[partition]
            surplus = len(members) - self._sharing
            for number in members.ordered()[:surplus] if surplus > 0 else ():
                self._take(number, partition)
                self._short.add(number)

    def _take(self, number: int, partition: P) -> None:
        topic_id, index = self._place(partition)
        self._assigned.of(number).get(topic_id, set()).discard(index)
        self._members[partition].remove(number)
        self._partitions[number].remove(partition)

    def assign(self, wanted: Iterable[P], members: Iterable[int]) -> None:
        """Give the partitions that lack members to the members below their quota, in turn."""
        for partition in wanted:
            self._members.get_or_add(partition, lambda: HashOrder(integer_hash))
        short = sorted(self._short.union(each for each in members if self.count(each) < self._quota.get(each, 0)))
        at, progress = 0, False
        for partition in self._members.ordered():
            members_of = self._members[partition]
            missing = self._sharing - len(members_of)
            while missing > 0:
                if at >= len(short):
                    if not progress or not short:
                        break
                    at, progress = 0, False
                number = short[at]
                at += 1
                if number in members_of:
                    continue
                topic_id, index = self._place(partition)
                self._assigned.of(number).setdefault(topic_id, set()).add(index)
                self._of(number).add(partition, None)
                missing, progress = missing - 1, True
                if self.count(number) >= self._quota.get(number, 0):
                    at -= 1
                    del short[at]
            if not short:
                break


def _quotas(members: Sequence[int], partitions: int) -> tuple[dict[int, int], int]:
    """Return the number of partitions of each member, and the number of members that share a partition."""
    if not partitions:
        return dict.fromkeys(members, 0), 0
    sharing = (len(members) + partitions - 1) // partitions
    precise = sharing * partitions / len(members)
    return {
        number: math.ceil(precise * (at + 1)) - math.ceil(precise * at) for at, number in enumerate(members)
    }, sharing


def _homogeneous(spec: SharingSpec) -> Assignment:
    topics = next(iter(spec.members.values())).topics
    if not topics:
        return {}
    subscribed = frozenset(topics)
    targets = [(topic_id, index) for topic_id in topics for index in spec.partitions[topic_id]]
    numbers = range(len(spec.members))
    quota, shared_by = _quotas(numbers, len(targets))
    assigned = _Assigned(spec.members.values())
    sharing = _Sharing[TopicPartition](
        assigned, quota, shared_by, len(targets), _topic_partition_hash, lambda partition: partition
    )
    for number, old in enumerate(assigned.old):
        for topic_id in topics_in_java_order(old, copied=False):
            if topic_id not in subscribed:
                assigned.of(number).pop(topic_id)
                continue
            for index in partitions_in_java_order(old[topic_id]):
                sharing.keep(number, (topic_id, index))
    # `assign` gives partitions to the members that are below their quota now, and to the members that fall below it in
    # `revoke`.
    below = [number for number in numbers if sharing.count(number) < quota[number]]
    sharing.revoke()
    sharing.assign(targets, below)
    return assigned.by_id(spec.members)


def _heterogeneous(spec: SharingSpec) -> Assignment:
    subscribers: dict[bytes, list[int]] = {}
    for number, member in enumerate(spec.members.values()):
        for topic_id in member.topics:
            subscribers.setdefault(topic_id, []).append(number)
    if not subscribers:
        return {}
    assigned = _Assigned(spec.members.values())
    for topic_id, members in subscribers.items():
        targets = spec.partitions[topic_id]
        quota, shared_by = _quotas(members, len(targets))
        _share_topic(assigned, topic_id, targets, members, quota, shared_by)
    return assigned.by_id(spec.members)


def _share_topic(
    assigned: _Assigned,
    topic_id: bytes,
    targets: Sequence[int],
    members: Sequence[int],
    quota: Mapping[int, int],
    shared_by: int,
) -> None:
    """Share the partitions of one topic among its subscribers."""
    sharing = _Sharing[int](assigned, quota, shared_by, len(targets), integer_hash, lambda index: (topic_id, index))
    for number, old in enumerate(assigned.old):
        for index in partitions_in_java_order(old.get(topic_id, ())):
            sharing.keep(number, index)
    sharing.revoke()
    sharing.assign(targets, members)
