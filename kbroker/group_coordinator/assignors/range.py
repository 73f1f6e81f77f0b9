"""The assignor "range": each subscriber of a topic gets a range of neighbouring partitions.

Owns the order of members: members with an instance id come first, sorted by instance id; then the other members, sorted
by member id. If topics have the same subscribers and the same number of partitions, a member gets the same range of
each topic. The member can therefore join the topics. Current assignments do not matter: a member with an instance id
keeps its ranges because it keeps its place in the order.
"""

from __future__ import annotations

from kbroker.group_coordinator.assignment import Assignment, GroupSpec, Partitions


class _Topic:
    __slots__ = ("count", "extras", "next", "quota", "topic_id")

    def __init__(self, topic_id: bytes, count: int, subscribers: int) -> None:
        self.topic_id = topic_id
        self.count = count
        self.quota, self.extras = divmod(count, subscribers)
        self.next = 0

    def take(self) -> frozenset[int]:
        """Return the next subscriber's range."""
        start = self.next
        self.next = min(start + self.quota + (self.extras > 0), self.count)
        self.extras -= self.extras > 0
        return frozenset(range(start, self.next))


def range_assignor(spec: GroupSpec) -> Assignment:
    """Return the assignment of every member."""
    subscribers: dict[bytes, int] = {}
    for member in spec.members.values():
        for topic_id in member.topics:
            subscribers[topic_id] = subscribers.get(topic_id, 0) + 1
    topics = {t: _Topic(t, spec.partitions[t], count) for t, count in subscribers.items()}
    out: Assignment = {}
    for member_id in sorted(spec.members, key=lambda name: _rank(spec, name)):
        ranges: Partitions = {t: topics[t].take() for t in sorted(spec.members[member_id].topics)}
        out[member_id] = {topic_id: indexes for topic_id, indexes in ranges.items() if indexes}
    return out


def _rank(spec: GroupSpec, member_id: str) -> tuple[bool, bytes]:
    """Return a member's sort key. Strings are compared as in Java, by UTF-16 units."""
    instance_id = spec.members[member_id].instance_id
    name = member_id if instance_id is None else instance_id
    return instance_id is None, name.encode("utf-16-be", "surrogatepass")
