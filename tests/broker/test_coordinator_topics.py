"""A broker coordinates the partitions that it leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kbroker.broker.coordinator_topics import CoordinatorLeadership
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterState, PartitionState, TopicState


class Coordinator:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_leadership(self, index: int, epoch: int) -> None:
        self.heard.append((index, epoch))

    def resign(self, index: int) -> None:
        self.heard.append(index)

    def on_topic_deleted(self) -> None:
        self.heard.append("deleted")


class Context:
    def __init__(self) -> None:
        self.groups, self.transactions, self.shares = Coordinator(), Coordinator(), Coordinator()
        coordinators: Any = self.groups, self.transactions, self.shares
        self.leadership = CoordinatorLeadership(1, *coordinators)
        self.state = ClusterState("c")

    def follow(self, leaders: tuple[tuple[int, int], ...] | None, topic: str = OFFSETS_TOPIC) -> None:
        partitions = tuple(PartitionState((1, 2), (1, 2), leader, epoch) for leader, epoch in leaders or ())
        topics = {} if leaders is None else {topic: TopicState(topic, bytes(16), partitions)}
        old, self.state = self.state, ClusterState("c", topics=topics)
        self.leadership.follow(old, self.state)

    def changed(self, topic: str, index: int, epoch: int, *, leading: bool) -> None:
        partition: Any = SimpleNamespace(topic=topic, index=index, leader_epoch=epoch, leading=leading)
        self.leadership.changed(partition)

    def heard(self) -> list[Any]:
        heard, self.groups.heard = self.groups.heard, []
        return heard


def test_a_node_that_is_alone_follows_the_state() -> None:
    context = Context()
    context.follow(((1, 0), (1, 3)))
    assert context.heard() == [(0, 0), (1, 3)]
    context.follow(((1, 0), (1, 4)))
    assert context.heard() == [(1, 4)]
    context.follow(((-1, 1), (1, 4)))
    assert context.heard() == [0]
    context.follow(((1, 2), (1, 4), (1, 0)))
    assert context.heard() == [(0, 2), (2, 0)]
    context.follow(None)
    assert context.heard() == ["deleted"]
    assert context.transactions.heard == []


def test_in_a_cluster_what_the_replica_was_told_counts() -> None:
    context = Context()
    context.changed(OFFSETS_TOPIC, 3, 7, leading=True)
    context.changed(OFFSETS_TOPIC, 3, 8, leading=False)
    context.changed(OFFSETS_TOPIC, 3, 9, leading=True)
    assert context.heard() == [(3, 7), 3, (3, 9)]
    context.changed(TRANSACTIONS_TOPIC, 0, 1, leading=True)
    context.changed("orders", 0, 1, leading=True)
    context.leadership.lost([(OFFSETS_TOPIC, 3), ("orders", 0), (TRANSACTIONS_TOPIC, 0)])
    assert context.heard() == [3]
    assert context.transactions.heard == [(0, 1), 0]


def test_in_a_cluster_the_state_tells_of_deletions_only() -> None:
    context = Context()
    topic = TopicState(OFFSETS_TOPIC, bytes(16), (PartitionState((1, 2), (1, 2), 1, 0),))
    there, gone = ClusterState("c", topics={OFFSETS_TOPIC: topic}), ClusterState("c")
    context.leadership.follow_deletions(gone, there)
    context.leadership.follow_deletions(there, there)
    assert context.heard() == []
    context.leadership.follow_deletions(there, gone)
    assert context.heard() == ["deleted"]
