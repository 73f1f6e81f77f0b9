"""The topology of a Kafka Streams application, as its members send it and as the group's record contains it.

Owns the value, its limits, and its description. configured_topology.py checks it against the cluster's topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_group_records import StreamsGroupTopologyValue
from kbroker.protocol.messages.streams_groups import (
    DescribedSubtopology,
    DescribedTopology,
    Subtopology,
    TopicInfo,
)
from kbroker.protocol.messages.streams_groups import Topology as RequestedTopology

MOST_PARTS = 5_000
"""The maximum number of subtopologies, topics, configs and copartition groups together.

A topology is configured in one step.
"""


@dataclass(frozen=True)
class Topology:
    """A topology: its epoch, and its subtopologies by id."""

    epoch: int
    subtopologies: Mapping[str, Subtopology]

    @cached_property
    def required_topics(self) -> frozenset[str]:
        """The topics that the application reads, and the topics that the coordinator creates for the application."""
        return frozenset(chain.from_iterable(map(_required, self.subtopologies.values())))

    @cached_property
    def by_source(self) -> Mapping[str, str]:
        """The id of the subtopology that reads a topic, by the topic's name."""
        return {name: each.subtopology_id for each in self.subtopologies.values() for name in sources_of(each)}

    def described(self) -> DescribedTopology:
        """Return the topology for StreamsGroupDescribe, with the numbers of partitions that its members sent."""
        return DescribedTopology(
            epoch=self.epoch,
            subtopologies=[
                DescribedSubtopology(
                    subtopology_id=name,
                    source_topics=sorted(each.source_topics),
                    repartition_sink_topics=sorted(each.repartition_sink_topics),
                    repartition_source_topics=sorted(each.repartition_source_topics, key=lambda topic: topic.name),
                    state_changelog_topics=sorted(each.state_changelog_topics, key=lambda topic: topic.name),
                )
                for name, each in sorted(self.subtopologies.items())
            ],
        )


def sources_of(subtopology: Subtopology) -> Iterator[str]:
    """Yield the topics that a subtopology reads."""
    yield from subtopology.source_topics
    for each in subtopology.repartition_source_topics:
        yield each.name


def _required(subtopology: Subtopology) -> Iterator[str]:
    yield from sources_of(subtopology)
    for each in subtopology.state_changelog_topics:
        yield each.name


def from_record(value: StreamsGroupTopologyValue) -> Topology:
    """Return the topology in a record. If an id is repeated, its last subtopology counts."""
    return Topology(value.epoch, {each.subtopology_id: each for each in value.subtopologies})


def record_of(requested: RequestedTopology) -> StreamsGroupTopologyValue:
    """Return the record's value for a topology that a member sends."""
    return StreamsGroupTopologyValue(epoch=requested.epoch, subtopologies=requested.subtopologies)


async def check(requested: RequestedTopology) -> None:
    """Refuse a topology that no group can have; raises STREAMS_INVALID_TOPOLOGY.

    Kafka has no limit on these parts, and returns UNKNOWN_SERVER_ERROR for duplicate ids, for wrong indexes of
    copartition groups, and for negative epochs.
    """
    parts = 0
    ids: set[str] = set()
    for each in requested.subtopologies:
        parts += _parts(each)
        if parts > MOST_PARTS:
            raise _invalid(f"The topology has more than {MOST_PARTS} subtopologies, topics, configs and groups.")
        await turn
    for each in requested.subtopologies:
        for topic in each.state_changelog_topics:
            if topic.partitions != 0:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )
        if each.subtopology_id in ids:
            raise _invalid(f"Subtopology {each.subtopology_id} occurs more than once.")
        ids.add(each.subtopology_id)
        _check_internal(each)
        await turn
    if requested.epoch < 0:
        raise _invalid("Topology epoch must be non-negative.")


def _parts(subtopology: Subtopology) -> int:
    topics = [*subtopology.state_changelog_topics, *subtopology.repartition_source_topics]
    groups = [
        1 + len(each.source_topics) + len(each.repartition_source_topics) for each in subtopology.copartition_groups
    ]
    named = len(subtopology.source_topics) + len(subtopology.repartition_sink_topics)
    return 1 + named + sum(1 + len(topic.topic_configs) for topic in topics) + sum(groups)


def _check_internal(subtopology: Subtopology) -> None:
    for topic in chain(subtopology.repartition_source_topics, subtopology.state_changelog_topics):
        if topic.partitions < 0:
            raise _invalid(f"Topic {topic.name} has {topic.partitions} partitions.")
    sources, internal = len(subtopology.source_topics), len(subtopology.repartition_source_topics)
    for group in subtopology.copartition_groups:
        if not _lie_in(group.source_topics, sources) or not _lie_in(group.repartition_source_topics, internal):
            raise _invalid(f"A copartition group of subtopology {subtopology.subtopology_id} has a wrong index.")


def _lie_in(indexes: Iterable[int], size: int) -> bool:
    return all(0 <= index < size for index in indexes)


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


async def topics_in(topology: RequestedTopology | DescribedTopology) -> list[str]:
    """Return the names of all topics of a topology, duplicates included."""
    names: list[str] = []
    for each in topology.subtopologies or ():
        names += each.source_topics
        names += each.repartition_sink_topics
        for topic in chain(each.repartition_source_topics, each.state_changelog_topics):
            names.append(topic.name)
            await turn
        await turn
    return names


def with_partitions(topic: TopicInfo, count: int) -> TopicInfo:
    """Return an internal topic with its number of partitions."""
    return TopicInfo(topic.name, count, topic.replication_factor, topic.topic_configs)
