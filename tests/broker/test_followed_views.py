"""What a broker of a cluster forgets when the metadata of views and their sources arrives in pieces."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from kbroker.broker.cluster_node import ClusterNode
from kbroker.cluster_state import ClusterState, PartitionState, TopicState

VIEW = TopicState("view", b"v" * 16, (), {"view.source": "source", "view.filter": "*"})


def source(topic_id: bytes) -> TopicState:
    return TopicState("source", topic_id, (PartitionState((1,), (1,), 1, 0),), {})


def forgotten(*states: ClusterState) -> list[Mapping[str, bytes]]:
    """Return the topics whose offsets a broker deletes while it learns of these states, one after the other."""
    found: list[Mapping[str, bytes]] = []
    nothing = SimpleNamespace(
        follow=lambda *_: False, controller_changed=lambda: None, on_topics_deleted=lambda _ids: None
    )
    node: Any = SimpleNamespace(
        replica_manager=nothing, _dynamic_configs=nothing, shares=nothing,
        groups=SimpleNamespace(on_topics_deleted=found.append),
    )  # fmt: skip
    for old, new in pairwise(states):
        ClusterNode._follow(node, old, new)
    return found


def test_offsets_stay_when_the_source_becomes_known_after_its_view() -> None:
    first = ClusterState("c").with_topics([VIEW])
    assert forgotten(ClusterState("c"), first, first.with_topics([source(b"s" * 16)])) == []


def test_offsets_go_with_the_source() -> None:
    both = ClusterState("c").with_topics([VIEW, source(b"s" * 16)])
    known = both.topics["view"].topic_id
    without = both.without_topics(["source"])
    again = without.with_topics([source(b"t" * 16)])
    assert forgotten(both, without, again) == [{"source": b"s" * 16, "view": known}]
    assert forgotten(both, both.with_topics([source(b"t" * 16)])) == [{"view": known}]
