"""A group's next target (Kafka's TargetAssignmentBuilder): what each member is to have in the end.

Owns the way from a group and one changed member to the assignor's input, and from its answer to records. The work is
near-linear in members and partitions; group.consumer.assignment.interval.ms bounds how often it is done while members
come and go.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.coordination.outcome import CoordinatorRecord
from kbroker.group_coordinator.consumer import records
from kbroker.group_coordinator.consumer.assignor import Assign, GroupSpec, MemberSpec, in_javas_order
from kbroker.group_coordinator.consumer.group import NOTHING, ConsumerGroup
from kbroker.group_coordinator.consumer.member import ConsumerMember, Partitions
from kbroker.group_coordinator.consumer.range import range_assignor
from kbroker.group_coordinator.consumer.topics import Topics
from kbroker.group_coordinator.consumer.uniform import uniform

ASSIGNORS: dict[str, Assign] = {"uniform": uniform, "range": range_assignor}
_CLASS_PACKAGE = "org.apache.kafka.coordinator.group.assignor."
_CLASSES = {_CLASS_PACKAGE + "UniformAssignor": "uniform", _CLASS_PACKAGE + "RangeAssignor": "range"}


def assignor_names(configured: Iterable[str]) -> tuple[str, ...]:
    """Return the assignors of group.consumer.assignors, in which Kafka's two may stand by class; raises ValueError."""
    names = tuple(_CLASSES.get(each, each) for each in configured)
    for name in names:
        if name not in ASSIGNORS:
            raise ValueError(f"{name} is no assignor of this broker; it has {' and '.join(ASSIGNORS)}")
    return names


def subscribed_names(group: ConsumerGroup, member: ConsumerMember) -> frozenset[str]:
    """Return all topics that a member subscribes to; those behind a pattern only once it is resolved."""
    resolved = group.resolved.get(member.regex) if member.regex else None
    return member.topics if resolved is None else member.topics | resolved.topics


def next_target(
    group: ConsumerGroup,
    epoch: int,
    assignor: str,
    topics: Topics,
    updated: ConsumerMember,
    now_ms: int,
    *,
    homogeneous: bool,
) -> tuple[list[CoordinatorRecord], Partitions]:
    """Return the records that make the target of `epoch`, and the part of `updated`.

    `updated` stands for the group's member of its id, or for the static member that it replaces.
    """
    members = dict(group.members)
    replaced = None if updated.instance_id is None else group.static_members.get(updated.instance_id)
    if replaced is not None and replaced != updated.member_id:
        members.pop(replaced, None)
    members[updated.member_id] = updated
    known: dict[frozenset[str], frozenset[bytes]] = {}
    specs: dict[str, MemberSpec] = {}
    for member_id in in_javas_order(members):
        member = members[member_id]
        names = subscribed_names(group, member)
        ids = known.get(names)
        if ids is None:
            ids = known[names] = topics.ids_of(names)
        holder = replaced if member_id == updated.member_id and replaced is not None else member_id
        held = group.target.get(holder, NOTHING)
        specs[member_id] = MemberSpec(ids, held, member.instance_id, member.rack_id)
    counts = {topic_id: topics.count_of(topic_id) for ids in known.values() for topic_id in ids}
    assignment = ASSIGNORS[assignor](GroupSpec(specs, homogeneous, counts))
    out = [
        records.target_member(group.group_id, member_id, assignment.get(member_id, NOTHING))
        for member_id in specs
        if assignment.get(member_id, NOTHING) != group.target.get(member_id)
    ]
    out.append(records.target_epoch(group.group_id, epoch, now_ms))
    return out, assignment.get(updated.member_id, NOTHING)
