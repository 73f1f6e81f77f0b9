"""A topology, checked against the cluster's topics: the number of tasks, the internal topics, and the missing topics.

Owns Kafka's rules (InternalTopicManager, RepartitionTopics, CopartitionedTopicsEnforcer, ChangelogTopics), in this
order. Pure: the same topology and topics give the same result. Never creates a topic.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from kbroker.group_coordinator.java_order import in_java_order
from kbroker.group_coordinator.topologies.topology import Topology, sources_of, with_partitions
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.streams_groups import DescribedSubtopology, DescribedTopology, Subtopology, TopicInfo

CountOf = Callable[[str], int | None]
"""Returns the number of partitions of a topic; None if it does not exist."""
MOST_TASKS = 10_000
"""The maximum number of tasks of a group, which are assigned in one step. Kafka has no such limit."""
_SHOWN = 3


class StatusCode(IntEnum):
    """The status of a group that a heartbeat response sends to a member."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class Fault(Exception):  # noqa: N818 - a state of the topics
    """The reason for which a topology cannot run yet."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """A subtopology: its number of tasks, and its topics, with the number of partitions of each internal topic."""

    tasks: int
    source_topics: frozenset[str]
    repartition_sources: Mapping[str, TopicInfo]
    repartition_sinks: frozenset[str]
    changelogs: Mapping[str, TopicInfo]

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelogs)

    def described(self, subtopology_id: str) -> DescribedSubtopology:
        return DescribedSubtopology(
            subtopology_id=subtopology_id,
            source_topics=sorted(self.source_topics),
            repartition_sink_topics=sorted(self.repartition_sinks),
            repartition_source_topics=[topic for _, topic in sorted(self.repartition_sources.items())],
            state_changelog_topics=[topic for _, topic in sorted(self.changelogs.items())],
        )


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """The result. The topology is ready if it has no `fault`; `missing` lists the internal topics to create."""

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology]
    missing: Sequence[TopicInfo] = ()
    fault: Fault | None = None

    @property
    def is_ready(self) -> bool:
        return self.fault is None

    def described(self) -> DescribedTopology:
        """Return the topology for StreamsGroupDescribe."""
        parts = [each.described(name) for name, each in self.subtopologies.items()]
        return DescribedTopology(epoch=self.epoch, subtopologies=parts)


def configure(topology: Topology, count_of: CountOf) -> ConfiguredTopology:
    """Check a topology against the topics; raises STREAMS_INVALID_TOPOLOGY if no topics could make it run."""
    try:
        return _configured(topology, count_of)
    except Fault as fault:
        return ConfiguredTopology(topology.epoch, {}, fault=fault)


def _configured(topology: Topology, count_of: CountOf) -> ConfiguredTopology:
    parts = [topology.subtopologies[name] for name in in_java_order(topology.subtopologies)]
    lacking = {name for each in parts for name in each.source_topics if count_of(name) is None}
    if lacking:
        raise Fault(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(sorted(lacking))} are missing.")
    decided = _Counts(count_of, _repartition_counts(parts, count_of))
    _copartition(parts, decided)
    for each in parts:
        most = _most_partitions(each, decided)
        decided.by_name.update(dict.fromkeys([topic.name for topic in each.state_changelog_topics], most))
    configured = {name: _subtopology(topology.subtopologies[name], decided) for name in sorted(topology.subtopologies)}
    if sum(each.tasks for each in configured.values()) > MOST_TASKS:
        raise _invalid(f"The topology has more than {MOST_TASKS} tasks.")
    missing = _missing(topology, configured, count_of)
    if not missing:
        return ConfiguredTopology(topology.epoch, configured)
    text = f"Internal topics are missing: {_summary([topic.name for topic in missing])}"
    return ConfiguredTopology(topology.epoch, configured, missing, Fault(StatusCode.MISSING_INTERNAL_TOPICS, text))


class _Counts:
    """The numbers of partitions of existing topics, and the decided numbers of partitions of internal topics."""

    def __init__(self, count_of: CountOf, decided: dict[str, int]) -> None:
        self._count_of = count_of
        self.by_name = decided

    def of(self, name: str) -> int:
        count = self._count_of(name)
        if count is None:
            count = self.by_name.get(name)
        if count is None:
            raise _invalid(f"Number of partitions is not set for topic: {name}")
        return count


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _most_partitions(subtopology: Subtopology, counts: _Counts) -> int:
    names = list(sources_of(subtopology))
    if not names:
        raise _invalid(f"No source topics found for subtopology {subtopology.subtopology_id}")
    return max(counts.of(name) for name in names)


# -- repartition topics


def _repartition_counts(parts: Sequence[Subtopology], count_of: CountOf) -> dict[str, int]:
    """Decide the counts of repartition topics; raises STREAMS_INVALID_TOPOLOGY.

    Kafka visits the subtopologies repeatedly until nothing changes: a subtopology decides its sinks as soon as it knows
    the count of one of its sources. Here each subtopology is visited once, in the same order, because repeated visits
    of a long chain would take quadratic time.
    """
    counts = {t.name: t.partitions for each in parts for t in each.repartition_source_topics if t.partitions}
    readers: dict[str, list[int]] = {}
    for index, each in enumerate(parts):
        for topic in each.repartition_source_topics:
            readers.setdefault(topic.name, []).append(index)
    due = [(0, index) for index, each in enumerate(parts) if _count_for_sinks(each, counts, count_of) is not None]
    planned = {index for _, index in due}
    heapq.heapify(due)
    while due:
        turn_of, index = heapq.heappop(due)
        count = _count_for_sinks(parts[index], counts, count_of)
        assert count is not None
        for sink in parts[index].repartition_sink_topics:
            if sink in counts:
                continue
            counts[sink] = count
            for reader in readers.get(sink, ()):
                if reader not in planned:
                    planned.add(reader)
                    heapq.heappush(due, (turn_of + (reader <= index), reader))
    if any(sink not in counts for each in parts for sink in each.repartition_sink_topics):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
            "that cannot be resolved."
        )
    if any(topic.name not in counts for each in parts for topic in each.repartition_source_topics):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic."
        )
    return counts


def _count_for_sinks(subtopology: Subtopology, counts: Mapping[str, int], count_of: CountOf) -> int | None:
    """Return the largest known number of partitions among the sources; None if no number is known."""
    known = [counts.get(topic.name) for topic in subtopology.repartition_source_topics]
    known += [count_of(name) for name in subtopology.source_topics]
    return max((count for count in known if count is not None), default=None)


# -- copartition groups


def _copartition(parts: Sequence[Subtopology], counts: _Counts) -> None:
    """Give the repartition topics of each copartition group the same count. Raises Fault."""
    internal = {topic.name: topic.partitions for each in parts for topic in each.repartition_source_topics}
    fixed = {name for name, partitions in internal.items() if partitions}
    fixed_counts = {counts.of(name) for name in fixed}
    for group in _copartition_groups(parts):
        own = {name: counts.of(name) for name in in_java_order(name for name in group if name in internal)}
        others = {name: counts.of(name) for name in group if name not in internal}
        if others:
            count = _same(others.values(), others)
        elif fixed:
            count = _same(fixed_counts, own)
        else:
            count = max(own.values())
        for name, partitions in own.items():
            if name in fixed and partitions != count:
                raise _incorrectly_partitioned(
                    f"Number of partitions [{partitions}] of repartition topic [{name}] doesn't match number of "
                    f"partitions [{count}] of the source topic."
                )
        counts.by_name.update(dict.fromkeys(own, count))


def _copartition_groups(parts: Iterable[Subtopology]) -> Iterator[set[str]]:
    for each in parts:
        for group in each.copartition_groups:
            names = {each.source_topics[index] for index in group.source_topics}
            names |= {each.repartition_source_topics[index].name for index in group.repartition_source_topics}
            if names:
                yield names


def _same(counts: Collection[int], told: Mapping[str, int]) -> int:
    """Return the count that all topics share. Raises Fault if they have different counts."""
    if len(set(counts)) > 1:
        text = ", ".join(f"{name}={count}" for name, count in sorted(told.items()))
        raise _incorrectly_partitioned(f"Following topics do not have the same number of partitions: [{{{text}}}]")
    return next(iter(counts))


def _incorrectly_partitioned(text: str) -> Fault:
    return Fault(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, text)


# -- internal topics


def _subtopology(subtopology: Subtopology, counts: _Counts) -> ConfiguredSubtopology:
    def internal(topics: Iterable[TopicInfo]) -> dict[str, TopicInfo]:
        return {t.name: with_partitions(t, t.partitions or counts.by_name[t.name]) for t in topics}

    return ConfiguredSubtopology(
        tasks=_most_partitions(subtopology, counts),
        source_topics=frozenset(subtopology.source_topics),
        repartition_sources=internal(subtopology.repartition_source_topics),
        repartition_sinks=frozenset(subtopology.repartition_sink_topics),
        changelogs=internal(subtopology.state_changelog_topics),
    )


def _missing(topology: Topology, configured: Mapping[str, ConfiguredSubtopology], count_of: CountOf) -> list[TopicInfo]:
    """Return the missing internal topics. Raises Fault if an existing topic has a wrong number of partitions."""
    wanted: dict[str, TopicInfo] = {}
    for each in configured.values():
        wanted |= each.repartition_sources
        wanted |= each.changelogs
    order = in_java_order(wanted)
    for name in in_java_order(topology.required_topics):
        count = count_of(name)
        expected = None if count is None else wanted.pop(name, None)
        if expected is not None and count != expected.partitions:
            raise _incorrectly_partitioned(
                f"Existing topic {name} has different number of partitions: expected {expected.partitions}, "
                f"found {count}"
            )
    return [wanted[name] for name in order if name in wanted]


def _summary(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} additional topics" if more > 0 else "")
