"""FindCoordinator when another broker coordinates, or has coordinated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.cluster_state import OFFSETS_TOPIC, BrokerEndpoint, ClusterState, PartitionState, TopicState
from kbroker.handlers.find_coordinator import GROUP, find_coordinator
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from tests.turns import nothing

KEYS = {"here": 0, "elsewhere": 1, "dead": 2, "leaderless": 3, "unknown": 4}


def ask(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
    leaders = (1, 2, 3, -1)
    partitions = tuple(PartitionState((1, 2, 3), (1, 2), leader, 5) for leader in leaders)
    brokers = {
        each: BrokerEndpoint(each, f"inside-{each}", 1, None, {"IN": (f"inside-{each}", 1), "OUT": (f"out-{each}", 2)})
        for each in (1, 2)
    }
    topic = TopicState(OFFSETS_TOPIC, bytes(16), partitions)
    groups = SimpleNamespace(partition_for=KEYS.__getitem__, ensure_topic=lambda: True)
    ctx: Any = SimpleNamespace(
        version=version,
        listener="OUT",
        services=SimpleNamespace(
            groups=groups,
            controller=SimpleNamespace(state=ClusterState("c", brokers=brokers, topics={OFFSETS_TOPIC: topic})),
            replicas=SimpleNamespace(hosted_of=nothing),
        ),
    )
    answer: FindCoordinatorResponse = whole(find_coordinator(ctx, request))
    return answer


def test_who_lives_is_named_by_the_listener_that_was_asked() -> None:
    answer = ask(FindCoordinatorRequest(key_type=GROUP, coordinator_keys=list(KEYS)), 4)
    nobody = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)
    assert {each.key: (each.error_code, each.node_id, each.host, each.port) for each in answer.coordinators} == {
        "here": (ErrorCode.NONE, 1, "out-1", 2),
        "elsewhere": (ErrorCode.NONE, 2, "out-2", 2),
        "dead": nobody,
        "leaderless": nobody,
        "unknown": nobody,
    }


@pytest.mark.parametrize(("key", "node_id"), [("elsewhere", 2), ("dead", -1)])
def test_one_key(key: str, node_id: int) -> None:
    answer = ask(FindCoordinatorRequest(key=key, key_type=GROUP), 3)
    assert answer.node_id == node_id
    assert answer.error_code == (ErrorCode.NONE if node_id > 0 else ErrorCode.COORDINATOR_NOT_AVAILABLE)
