"""Requests that name a group more than once: each mention is answered, the work is done once and bounded."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.cluster_state import ClusterState
from kbroker.group_coordinator import coordinator
from kbroker.group_coordinator.describe import describe_consumer_group, describe_group
from kbroker.group_coordinator.groups.store import Groups
from kbroker.handlers import groups as repeated
from kbroker.handlers import offset_fetch
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import DescribeGroupsRequest
from tests.group_coordinator.test_handlers import T_ID, Node, commit_request

E = ErrorCode


def test_groups_that_are_named_again_are_answered_again_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    node.groups.on_cluster_state(ClusterState("c"), node.controller.state)
    join = ConsumerGroupHeartbeatRequest(
        group_id="new", member_id="a", rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert node.ask(join, 1).error_code == E.NONE
    node.ask(commit_request(("t", bytes(16), (0,))), 9)
    described: list[str] = []

    def noted(groups: Groups, group_id: str, *rest: Any) -> Any:
        described.append(group_id)
        return describe_consumer_group(groups, group_id, *rest)

    monkeypatch.setattr(coordinator, "describe_consumer_group", noted)
    of_consumers = ConsumerGroupDescribeRequest(group_ids=["new", "new", "h", "new"])
    of_classic = DescribeGroupsRequest(groups=["g", "g", "h", "g"])
    for bound, last in ((1_000, E.NONE), (200, E.INVALID_REQUEST)):
        monkeypatch.setattr(repeated, "MAX_REPEATED_BYTES", bound)
        answer = node.ask(of_consumers, 1).groups
        assert [group.group_id for group in answer] == of_consumers.group_ids
        assert [group.error_code for group in answer] == [E.NONE, E.NONE, E.GROUP_ID_NOT_FOUND, last]
        assert answer[0] == answer[1]
    assert described == ["new", "h"] * 2, "each is looked at once"
    described.clear()

    def noted_classic(groups: Groups, group_id: str, version: int) -> Any:
        described.append(group_id)
        return describe_group(groups, group_id, version)

    monkeypatch.setattr(coordinator, "describe_group", noted_classic)
    for version in (0, 6):
        monkeypatch.setattr(repeated, "MAX_REPEATED_BYTES", 1_000)
        answer = node.ask(of_classic, version).groups
        assert answer[0] == answer[1] == answer[3]
        monkeypatch.setattr(repeated, "MAX_REPEATED_BYTES", 40)
        answer = node.ask(of_classic, version).groups
        assert [group.group_id for group in answer] == of_classic.groups
        assert answer[3].error_code == E.INVALID_REQUEST
    assert described == ["g", "h"] * 4


@pytest.mark.parametrize("version", [8, 9, 10])
def test_offsets_that_are_asked_for_again_are_answered_again_within_a_bound(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    request = commit_request(("t", bytes(16), (0, 1)))
    for partition in request.topics[0].partitions:
        partition.committed_metadata = "m" * 100
    node.ask(request, 9)
    whole = OffsetFetchRequestGroup(group_id="g", topics=None)
    topic = OffsetFetchRequestTopics(name="t", topic_id=T_ID, partition_indexes=[0, 0, 0])
    part = OffsetFetchRequestGroup(group_id="g", topics=[topic])
    answered = node.ask(OffsetFetchRequest(groups=[whole, part, whole, part]), version).groups
    assert answered[0] == answered[2]
    assert answered[1] == answered[3]
    assert [p.committed_offset for p in answered[1].topics[0].partitions] == [10, 10, 10]
    monkeypatch.setattr(repeated, "MAX_REPEATED_BYTES", 350)
    monkeypatch.setattr(offset_fetch, "MAX_REPEATED_BYTES", 350)
    answered = node.ask(OffsetFetchRequest(groups=[whole, whole, whole]), version).groups
    assert [group.error_code for group in answered] == [E.NONE, E.NONE, E.INVALID_REQUEST]
    answered = node.ask(OffsetFetchRequest(groups=[part, part]), version).groups
    found = [(p.committed_offset, p.error_code) for group in answered for p in group.topics[0].partitions]
    assert found == [(10, E.NONE)] * 4 + [(-1, E.INVALID_REQUEST)] * 2
    one = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0] * 6)])
    assert [p.error_code for p in node.ask(one, 7).topics[0].partitions] == [E.NONE] * 4 + [E.INVALID_REQUEST] * 2


def test_groups_that_are_not_there_share_their_list_of_members() -> None:
    for version in (5, 6):
        a, b = (whole(describe_group(Groups(), group_id, version)) for group_id in "ab")
        assert a.members is b.members
        assert a.members == []
