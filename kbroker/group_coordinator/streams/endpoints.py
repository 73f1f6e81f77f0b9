"""Maps the endpoints of an application to partitions, for interactive queries between its instances."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from kbroker.group_coordinator.groups.streams_group import StreamsGroup
from kbroker.group_coordinator.groups.streams_member import StreamsMember
from kbroker.group_coordinator.topics import Topics
from kbroker.protocol.messages.streams_groups import Endpoint, EndpointPartitions, EndpointToPartitions


def partitions_by_endpoint(group: StreamsGroup, updated: StreamsMember, topics: Topics) -> list[EndpointToPartitions]:
    """Return the endpoints of a group's members, with `updated` last, and the partitions of their tasks.

    While the topology is not ready, members have no tasks, and no endpoint is listed.
    """
    if group.configured is None or not group.configured.subtopologies:
        return []
    held = group.static_member(updated.instance_id)
    replaced = None if held is None else held.member_id
    others = [member for each, member in group.members.items() if each not in (updated.member_id, replaced)]
    found = []
    for member in [*others, updated]:
        if member.endpoint is None:
            continue
        known = group.endpoints.get(member.member_id)
        if known is None:
            known = group.endpoints[member.member_id] = _of_member(group, member, topics)
        found.append(known)
    return found


def _of_member(group: StreamsGroup, member: StreamsMember, topics: Topics) -> EndpointToPartitions:
    assert member.endpoint is not None
    standby: dict[str, set[int]] = {}
    for tasks in (member.assigned.standby, member.assigned.warmup):
        for name, indexes in tasks.items():
            standby.setdefault(name, set()).update(indexes)
    return EndpointToPartitions(
        user_endpoint=Endpoint(*member.endpoint),
        active_partitions=_partitions(group, member.assigned.active, topics),
        standby_partitions=_partitions(group, standby, topics),
    )


def _partitions(group: StreamsGroup, tasks: Mapping[str, Iterable[int]], topics: Topics) -> list[EndpointPartitions]:
    assert group.configured is not None
    found = []
    for name, indexes in tasks.items():
        subtopology = group.configured.subtopologies.get(name)
        sources = () if subtopology is None else subtopology.source_topics | subtopology.repartition_sources.keys()
        ordered = sorted(indexes)
        for topic in sources:
            partitions = ordered[: bisect_left(ordered, topics.partitions_of(topic) or 0)]
            if partitions:
                found.append(EndpointPartitions(topic, partitions))
    return found
