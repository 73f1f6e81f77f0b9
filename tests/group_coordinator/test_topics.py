"""What consumer groups know of the cluster's topics, and what it costs to find out."""

from __future__ import annotations

from hashlib import blake2b
from uuid import UUID

from kbroker.cluster_state import BrokerEndpoint, ClusterState, PartitionState, TopicState
from kbroker.group_coordinator.topics import Topics
from tests.fair.gaps import Counter
from tests.turns import turns

COUNT = 1_000


def cluster(count: int) -> ClusterState:
    brokers = {i: BrokerEndpoint(i, "host", 9092, f"rack{i}") for i in (1, 2)}
    partitions = tuple(PartitionState((1 + i % 2,), (1,), 1, 0) for i in range(count))
    state = ClusterState("c", brokers=brokers)
    for number in range(5):
        state = state.with_topic(TopicState(f"t{number}", UUID(int=number).bytes, partitions))
    return state


def test_the_hash_is_the_same_as_ever() -> None:
    """The hash is stored in groups' records: another one would reassign all groups after a start."""
    state, whole = cluster(3), blake2b(digest_size=8)
    for number in range(5):
        one = blake2b(UUID(int=number).bytes, digest_size=8)
        one.update(f"('t{number}', 3)['rack1']['rack2']['rack1']".encode())
        whole.update(one.digest())
    expected = int.from_bytes(whole.digest(), "big", signed=True)
    assert Topics(state).hash_of(state.topics) == expected


def test_a_look_at_topics_ahead_leaves_little_to_do() -> None:
    state = cluster(COUNT)
    names = [*state.topics, "absent"]
    topics, cold = Topics(state), Topics(state)
    assert sum(1 for _ in turns(topics.prepared(names))) == len(names)
    with Counter() as warm:
        found = topics.hash_of(names)
    with Counter() as at_once:
        assert cold.hash_of(names) == found
    assert warm.spent < at_once.spent / 50
    assert at_once.spent < 40 * 5 * COUNT, "a partition with the same replicas as others is not looked at again"
