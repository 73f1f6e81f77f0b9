"""The assignor "uniform": all members get equally many partitions, and keep as many of their partitions as possible.

Owns the choice between two algorithms. Also owns the simpler algorithm, for members that all subscribe to the same
topics. Each member has a quota: it loses its partitions above the quota, and gets free partitions up to the quota. This
takes one pass over members and partitions.
"""

from __future__ import annotations

from kbroker.group_coordinator.assignment import Assignment, GroupSpec, copied, frozen
from kbroker.group_coordinator.assignors.uniform_heterogeneous import MixedUniform
from kbroker.group_coordinator.java_order import partitions_in_java_order, topics_in_java_order


def uniform(spec: GroupSpec) -> Assignment:
    """Return the assignment of every member."""
    if not spec.members:
        return {}
    return _homogeneous(spec) if spec.homogeneous else MixedUniform(spec).build()


def _homogeneous(spec: GroupSpec) -> Assignment:
    topics = next(iter(spec.members.values())).topics
    if not topics:
        return {}
    held, taken = _held(spec, topics)
    free = [
        (topic_id, index)
        for topic_id in topics_in_java_order(topics, copied=True)
        for index in range(spec.partitions[topic_id])
        if index not in taken[topic_id]
    ]
    quota, extras = divmod(sum(spec.partitions[topic_id] for topic_id in topics), len(spec.members))
    kept: Assignment = {}
    unfilled: list[tuple[str, int]] = []
    for place, (member_id, member) in enumerate(spec.members.items()):
        room, has_extra = quota + (extras > 0), extras > 0
        keeps: dict[bytes, frozenset[int]] = {}
        for topic_id in topics_in_java_order(member.assigned, copied=False):
            indexes = stays = held[member_id].get(topic_id, frozenset())
            if len(indexes) > room:
                ordered = partitions_in_java_order(indexes)
                stays = frozenset(ordered[:room])
                free += [(topic_id, index) for index in ordered[room:]]
            room -= len(stays)
            if stays:
                keeps[topic_id] = stays
        if room > 0 and has_extra and len(spec.members) - place > extras:
            # Enough other members remain to take one partition more than the quota, so this member does not have to.
            room, has_extra = room - 1, False
        if room > 0:
            unfilled.append((member_id, room))
        extras -= has_extra
        kept[member_id] = keeps
    position = 0
    for member_id, room in unfilled:
        grown = copied(kept[member_id])
        for topic_id, index in free[position : position + room]:
            grown.setdefault(topic_id, set()).add(index)
        position += room
        kept[member_id] = frozen(grown)
    return kept


def _held(spec: GroupSpec, topics: frozenset[bytes]) -> tuple[Assignment, dict[bytes, set[int]]]:
    """Return each member's partitions of these topics, and the partitions that have an owner.

    A partition that does not exist has no owner. If two members have the same partition, the partition belongs to the
    first member. Other software may have written targets that break these rules; this function corrects them.
    """
    taken = {topic_id: set[int]() for topic_id in topics}
    held: Assignment = {}
    for member_id, member in spec.members.items():
        has: dict[bytes, frozenset[int]] = {}
        for topic_id, indexes in member.assigned.items():
            others = taken.get(topic_id)
            if others is None or not indexes:
                continue
            count = spec.partitions[topic_id]
            if not others.isdisjoint(indexes) or min(indexes) < 0 or max(indexes) >= count:
                indexes = frozenset([index for index in indexes if 0 <= index < count and index not in others])
            others |= indexes
            has[topic_id] = indexes
        held[member_id] = has
    return held, taken
