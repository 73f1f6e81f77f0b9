"""A cluster at a glance: its brokers, its topics and the health of partitions, from one Metadata request.

Owns the counts per topic. The counts are computed only once per answer, because an answer may have ten thousand topics.
Never prints.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.admin.errors import AdminError
from kbroker.admin.own_request import ask_any
from kbroker.admin.placement import Key
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""The names of internal topics, for brokers that do not mark internal topics in Metadata."""


_MISSING: Final = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic: its partitions, and the number of partitions that lack a leader or replicas."""

    name: str
    topic_id: Any
    internal: bool
    partitions: Sequence[MetadataResponsePartition]
    replicas: int
    offline: int
    under_replicated: int

    @property
    def healthy(self) -> bool:
        """Whether every partition has a leader and all its replicas in sync."""
        return not self.offline and not self.under_replicated


@dataclass(frozen=True, slots=True)
class ClusterView:
    """A cluster's metadata, according to one broker."""

    cluster_id: str | None
    controller: int
    brokers: Sequence[MetadataResponseBroker]
    topics: dict[str, TopicView]
    refused: dict[str, int] = field(default_factory=dict)
    """The error codes, by name, of topics that might exist but that the broker did not describe."""
    taken: float = field(default_factory=time.monotonic)
    """The time at which the view was requested, on the monotonic clock."""

    def partitions(self) -> Iterator[tuple[Key, MetadataResponsePartition]]:
        """Yield all partitions of all topics."""
        for topic in self.topics.values():
            for each in topic.partitions:
                yield (topic.name, each.partition_index), each

    def leaders(self, topics: Sequence[str] | None = None) -> dict[Key, int]:
        """Return the leaders of partitions, of all topics or some; leave out partitions without a leader."""
        chosen = self.topics.values() if topics is None else [self.topics[name] for name in topics]
        return {
            (topic.name, each.partition_index): each.leader_id
            for topic in chosen
            for each in topic.partitions
            if each.leader_id >= 0
        }

    def missing_brokers(self) -> dict[int, int]:
        """Return the brokers that host replicas but are not alive, each with its number of replicas."""
        alive = {each.node_id for each in self.brokers}
        counts = Counter(broker for _, each in self.partitions() for broker in each.replica_nodes)
        return {broker: count for broker, count in sorted(counts.items()) if broker not in alive}


def is_misled(partition: MetadataResponsePartition) -> bool:
    """Whether the leader of a partition is not its preferred replica, although the preferred replica is in sync."""
    preferred = partition.replica_nodes[0] if partition.replica_nodes else -1
    return partition.leader_id >= 0 and partition.leader_id != preferred and preferred in partition.isr_nodes


def cluster_view(admin: Any, topics: Sequence[str] | None = None) -> ClusterView:
    """Request the metadata of all or some topics; leave out topics that are missing, or that the broker hides.

    A request for all topics also returns views whose source is deleted, without partitions.
    """
    wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    answer = ask_any(admin, MetadataRequest(topics=wanted, allow_auto_topic_creation=False), MetadataResponse)
    if answer is None:
        raise AdminError("this broker does not answer Metadata requests")
    shown = (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if topics is None else (0,)
    found = (_topic(each) for each in answer.topics if each.name and each.error_code in shown)
    refused = {each.name: each.error_code for each in answer.topics if each.name and each.error_code not in _MISSING}
    return ClusterView(
        answer.cluster_id,
        answer.controller_id,
        sorted(answer.brokers, key=lambda each: each.node_id),
        {each.name: each for each in sorted(found, key=lambda each: each.name)},
        refused,
    )


def view_with(admin: Any, name: str) -> ClusterView:
    """Request a topic's metadata. If the topic is missing, request all topics: it may be a view without a source."""
    found = cluster_view(admin, [name])
    return found if name in found.topics or name in found.refused else cluster_view(admin)


def _topic(topic: MetadataResponseTopic) -> TopicView:
    offline = under = replicas = 0
    for each in topic.partitions:
        replicas = max(replicas, len(each.replica_nodes))
        offline += each.leader_id < 0
        under += len(each.isr_nodes) < len(each.replica_nodes)
    name = str(topic.name)
    partitions = sorted(topic.partitions, key=lambda each: each.partition_index)
    return TopicView(name, topic.topic_id, topic.is_internal or name in INTERNAL, partitions, replicas, offline, under)
