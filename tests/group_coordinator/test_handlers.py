"""The APIs from their handlers down to a log in memory: message forms by version, and requests that need no group."""

from __future__ import annotations

import asyncio
import importlib
from types import CoroutineType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kbroker.cluster_state import OFFSETS_TOPIC, BrokerEndpoint, ClusterState, PartitionState, TopicState
from kbroker.controller.features import BOOTSTRAP
from kbroker.group_coordinator.config import GroupConfig
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.handlers import alter_configs, describe_configs
from kbroker.handlers.registry import APIS
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.configs import DescribeConfigsResource
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.coordination.world import FakeWriter, ManualClock
from tests.turns import Parked, nothing, run_on

NAMES = ["find_coordinator", "groups", "offset_commit", "offset_fetch", "connections"]
for name in NAMES:
    importlib.import_module(f"kbroker.handlers.{name}")

T_ID, GONE_ID = b"t" * 16, b"g" * 16
E = ErrorCode
PARTITION = PartitionState((1,), (1,), 1, 0)


def answered(answer: Any) -> Any:
    """Return the response, or the result of the coroutine."""
    return run_on(answer) if isinstance(answer, CoroutineType) else answer


class Node:
    """A broker's coordinator with handlers on top; topic t has two partitions."""

    def __init__(self, config: GroupConfig | None = None, *, topic: bool = True, lead: bool = True) -> None:
        self.writer = FakeWriter()
        self.clock = ManualClock()
        self.groups = GroupCoordinator(config or GroupConfig(), self.writer, self.clock)
        state = ClusterState(
            "c", brokers={1: BrokerEndpoint(1, "host", 9092)}, features={**BOOTSTRAP, "share.version": 0}
        )
        state = state.with_topic(TopicState("t", T_ID, (PARTITION, PARTITION)))
        if topic:
            state = state.with_topic(TopicState(OFFSETS_TOPIC, b"o" * 16, (PARTITION,) * 4))
        else:
            self.writer.count = 0
        self.controller = SimpleNamespace(state=state)
        replicas = SimpleNamespace(hosted_of=nothing)
        services = SimpleNamespace(groups=self.groups, controller=self.controller, replicas=replicas, cluster=None)
        services.telemetry = None
        self.context: Any = SimpleNamespace(
            services=services, version=0, client_id=None, client_host="/127.0.0.1", listener="PLAINTEXT"
        )
        if lead:
            for partition in range(4):
                self.groups.on_leadership(partition, 0)

    def ask(self, request: Any, version: int) -> Any:
        """Send a request encoded in its version; return the response decoded in its version."""
        api = APIS[type(request).KEY]
        self.context.version = version
        answer = api.handler(self.context, decode(type(request), version, encode(request, version)))
        answer = answered(answer)
        if isinstance(answer, Parked):
            return answer
        return decode(api.response, version, encode(answer, version))


def commit_request(*topics: tuple[str, bytes, tuple[int, ...]], group: str = "g") -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                topic_id=topic_id,
                partitions=[OffsetCommitRequestPartition(partition_index=i, committed_offset=i + 10) for i in indexes],
            )
            for name, topic_id, indexes in topics
        ],
    )


def codes(response: Any) -> dict[tuple[Any, int], int]:
    return {
        (topic.name or topic.topic_id, p.partition_index): p.error_code
        for topic in response.topics
        for p in topic.partitions
    }


def test_every_version_is_served_and_encodes_its_errors() -> None:
    for name in NAMES:
        request = next(api.request for api in APIS.values() if api.handler.__module__.endswith(f".{name}"))
        api = APIS[request.KEY]
        assert api.versions == request.VERSIONS
        for version in range(api.versions.low, api.versions.high + 1):
            node = Node()
            node.ask(request(), version)
            encode(answered(api.on_error(request(), E.UNKNOWN_SERVER_ERROR, None)), version)


def test_find_coordinator() -> None:
    node = Node()
    for version in range(7):
        answer = node.ask(FindCoordinatorRequest(key="g", coordinator_keys=["g", ""]), version)
        found = answer.coordinators[0] if version >= 4 else answer
        assert (found.error_code, found.node_id, found.host, found.port) == (E.NONE, 1, "host", 9092)
        assert version == 0 or found.error_message == ("" if version >= 4 else "NONE")
    for key_type, code in (
        (2, E.INVALID_REQUEST),
        (7, E.INVALID_REQUEST),
    ):
        for version in (1, 4):
            answer = node.ask(FindCoordinatorRequest(key="x", key_type=key_type, coordinator_keys=["x"]), version)
            found = answer.coordinators[0] if version >= 4 else answer
            assert (found.error_code, found.node_id, found.host, found.port) == (code, -1, "", -1)
            assert version == 4 or found.error_message.startswith("This most likely")
    keys = ["g:dGVzdHRlc3R0ZXN0dGVzdA:0", "g:dGVzdHRlc3R0ZXN0dGVzdA:x", "g:no:0"]
    answer = node.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=keys), 6)
    assert [c.error_code for c in answer.coordinators] == [
        E.COORDINATOR_NOT_AVAILABLE,
        E.INVALID_REQUEST,
        E.INVALID_REQUEST,
    ]


def test_find_coordinator_creates_the_topic() -> None:
    node = Node(topic=False)
    request = FindCoordinatorRequest(key="g")
    assert node.ask(request, 3).error_code == E.COORDINATOR_NOT_AVAILABLE, "it exists, but nobody knows it yet"
    assert node.writer.count == 4
    nobody = PartitionState((1,), (1,), -1, 0)
    node.controller.state = node.controller.state.with_topic(TopicState(OFFSETS_TOPIC, b"o" * 16, (nobody,) * 4))
    assert node.ask(request, 3).error_code == E.COORDINATOR_NOT_AVAILABLE
    node.controller.state = node.controller.state.with_topic(TopicState(OFFSETS_TOPIC, b"o" * 16, (PARTITION,) * 4))
    assert node.ask(request, 3).node_id == 1


def test_commits_of_what_exists_and_what_does_not() -> None:
    node = Node()
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    for version in range(2, 10):
        mixed = commit_request(("t", bytes(16), (0, 5)), ("no", bytes(16), (0,)), ("t", bytes(16), (1,)))
        assert codes(node.ask(mixed, version)) == {("t", 0): 0, ("t", 1): 0, ("t", 5): unknown, ("no", 0): unknown}
        assert codes(node.ask(commit_request(("no", bytes(16), (0,))), version)) == {("no", 0): unknown}
        assert codes(node.ask(commit_request(("t", bytes(16), (0,))), version)) == {("t", 0): 0}
    by_id = commit_request(("", T_ID, (0, 7)), ("", GONE_ID, (0,)))
    assert codes(node.ask(by_id, 10)) == {(T_ID, 0): 0, (T_ID, 7): unknown, (GONE_ID, 0): E.UNKNOWN_TOPIC_ID}


def test_a_commit_that_cannot_be_written() -> None:
    node = Node()
    node.writer.fail = ApiError(E.NOT_ENOUGH_REPLICAS)
    assert codes(node.ask(commit_request(("t", bytes(16), (0, 1))), 9)) == dict.fromkeys(
        [("t", 0), ("t", 1)], E.COORDINATOR_NOT_AVAILABLE
    )
    elsewhere = Node(lead=False)
    assert codes(elsewhere.ask(commit_request(("t", bytes(16), (0,))), 9)) == {("t", 0): E.NOT_COORDINATOR}
    assert codes(answered(APIS[8].on_error(commit_request(("t", T_ID, (0,))), -1, None))) == {("t", 0): -1}


def test_answers_that_wait_are_merged_later() -> None:
    async def scenario() -> None:
        node = Node()
        node.writer.lag = True
        waiting = node.ask(commit_request(("t", bytes(16), (0, 9)), ("no", bytes(16), (0,))), 9)
        fetches = [
            node.ask(OffsetFetchRequest(group_id="g", topics=None), 5),
            node.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)] * 2), 10),
        ]
        deleting = node.ask(DeleteGroupsRequest(groups_names=["g", "other"]), 2)
        tasks = [asyncio.ensure_future(a) for a in [waiting, *fetches, deleting]]
        for _ in range(3):
            await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        node.writer.commit_to(node.writer.end)
        committed, one, two, deleted = await asyncio.gather(*tasks)
        assert codes(committed) == {("t", 0): 0, ("t", 9): 3, ("no", 0): 3}
        assert one.topics[0].partitions[0].committed_offset == 10
        assert [g.topics[0].topic_id for g in two.groups] == [T_ID, T_ID]
        assert {r.group_id: r.error_code for r in deleted.results} == {"g": 0, "other": E.GROUP_ID_NOT_FOUND}
        node.groups.close()

    asyncio.run(scenario())


def test_fetching_in_each_shape() -> None:
    node = Node()
    node.ask(commit_request(("t", bytes(16), (0,))), 9)
    for version in range(1, 8):
        request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])])
        answer = node.ask(request, version)
        partitions = answer.topics[0].partitions
        assert [(p.committed_offset, p.metadata, p.error_code) for p in partitions] == [(10, "", 0), (-1, "", 0)]
        if version >= 2:
            assert len(node.ask(OffsetFetchRequest(group_id="g", topics=None), version).topics) == 1
    for version in (8, 9, 10):
        wanted = [
            OffsetFetchRequestTopics(name="t", topic_id=T_ID, partition_indexes=[0]),
            OffsetFetchRequestTopics(name="no", topic_id=GONE_ID, partition_indexes=[3]),
        ]
        groups = [OffsetFetchRequestGroup(group_id=g, topics=wanted) for g in ("g", "none")]
        first, second = node.ask(OffsetFetchRequest(groups=groups), version).groups
        assert (first.group_id, second.group_id) == ("g", "none")
        assert first.topics[0].partitions[0].committed_offset == 10
        assert second.topics[0].partitions[0].committed_offset == -1
        gone = first.topics[1].partitions[0]
        assert (gone.committed_offset, gone.error_code) == (-1, E.UNKNOWN_TOPIC_ID if version == 10 else 0)
    everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert node.ask(everything, 10).groups[0].topics[0].topic_id == T_ID
    node.controller.state = node.controller.state.without_topics(["t"])
    assert node.ask(everything, 10).groups[0].topics == [], "a topic without an id cannot be named"
    assert node.ask(everything, 9).groups[0].topics[0].name == "t"


@pytest.mark.parametrize(("version", "where"), [(1, "partition"), (2, "answer"), (7, "answer"), (9, "group")])
def test_where_a_fetch_puts_its_error(version: int, where: str) -> None:
    node = Node(lead=False)
    request = OffsetFetchRequest(
        group_id="g",
        topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
        groups=[OffsetFetchRequestGroup(group_id="g", topics=[])],
    )
    answer = node.ask(request, version)
    found = {
        "partition": answer.topics[0].partitions[0].error_code if answer.topics else None,
        "answer": answer.error_code or None,
        "group": answer.groups[0].error_code if answer.groups else None,
    }
    assert found == {"partition": None, "answer": None, "group": None, where: E.NOT_COORDINATOR}


def test_deleting_offsets() -> None:
    node = Node()
    node.ask(commit_request(("t", bytes(16), (0,))), 9)

    def delete(*topics: tuple[str, int], group: str = "g") -> Any:
        asked = [
            OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=i)])
            for name, i in topics
        ]
        return node.ask(OffsetDeleteRequest(group_id=group, topics=asked), 0)

    answer = delete(("t", 0), ("no", 0), ("t", 7), ("t", 1))
    assert {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions} == {
        ("t", 0): 0, ("t", 1): 0, ("t", 7): 3, ("no", 0): 3,
    }  # fmt: skip
    assert [t.name for t in delete(("t", 0)).topics] == ["t"]
    for group, code in (("", E.INVALID_GROUP_ID), ("none", E.GROUP_ID_NOT_FOUND)):
        answer = delete(("no", 0), group=group)
        assert (answer.error_code, answer.topics) == (code, [])


def test_a_group_whose_last_session_has_just_ended_can_be_deleted() -> None:
    node = Node(GroupConfig(initial_rebalance_delay_ms=0))

    def delete() -> ErrorCode:
        return E(node.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code)

    async def scenario() -> None:
        protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
        request = JoinGroupRequest("g", 10_000, 10_000, protocol_type="consumer", protocols=protocols)
        waiting = node.ask(request, 3)
        node.groups.tick()
        assert (await waiting).error_code == E.NONE
        assert delete() is E.NON_EMPTY_GROUP
        node.clock.ms += 10_001  # and no timer fires meanwhile, because nothing runs the loop
        assert delete() is E.NONE

    asyncio.run(scenario())


def test_membership_by_version() -> None:
    node = Node(GroupConfig(initial_rebalance_delay_ms=0))

    async def life(version: int) -> None:
        group = f"g{version}"
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        if version >= 4:
            first = node.ask(request, version)
            assert (first.error_code, first.protocol_name) == (E.MEMBER_ID_REQUIRED, None if version >= 7 else "")
            request.member_id = first.member_id
        waiting = node.ask(request, version)
        node.groups.tick()
        joined = await waiting
        member = joined.member_id
        assert member.startswith("-"), "a client without an id"
        sync = SyncGroupRequest(
            group_id=group,
            generation_id=1,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=member, assignment=b"a")],
        )
        assert node.ask(sync, min(version, 5)).assignment == b"a"
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=member)
        assert node.ask(beat, min(version, 4)).error_code == E.NONE
        described = node.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=True), 3).groups[0]
        assert (described.group_state, described.authorized_operations) == ("Stable", 3400)
        assert node.ask(DeleteGroupsRequest(groups_names=[group]), 1).results[0].error_code == E.NON_EMPTY_GROUP
        leave = LeaveGroupRequest(group_id=group, member_id=member, members=[MemberIdentity(member_id=member)])
        assert node.ask(leave, min(version, 5)).error_code == E.NONE
        again = node.ask(leave, min(version, 5))
        error = again.members[0].error_code if version >= 3 else again.error_code
        assert error == E.UNKNOWN_MEMBER_ID

    async def lives() -> None:
        for version in range(10):
            await life(version)
        node.groups.close()

    asyncio.run(lives())


def test_requests_that_need_no_group() -> None:
    node = Node()
    invalid = E.INVALID_GROUP_ID
    assert node.ask(JoinGroupRequest(member_id="m"), 9).error_code == invalid
    assert node.ask(SyncGroupRequest(protocol_type="", protocol_name=""), 5).error_code == invalid
    assert node.ask(SyncGroupRequest(group_id="g"), 5).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert node.ask(HeartbeatRequest(), 4).error_code == invalid
    assert node.ask(LeaveGroupRequest(), 5).error_code == invalid
    for timeout in (5_999, 1_800_001):
        answer = node.ask(JoinGroupRequest(group_id="g", session_timeout_ms=timeout, member_id="m"), 9)
        assert (answer.error_code, answer.member_id) == (E.INVALID_SESSION_TIMEOUT, "m")


def test_groups_that_are_elsewhere() -> None:
    node = Node(lead=False)
    moved = E.NOT_COORDINATOR
    join = JoinGroupRequest(group_id="g", session_timeout_ms=10_000)
    assert node.ask(join, 9).error_code == moved
    assert node.ask(SyncGroupRequest(group_id="g", protocol_type="", protocol_name=""), 5).error_code == moved
    assert node.ask(HeartbeatRequest(group_id="g"), 4).error_code == moved
    assert node.ask(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")]), 5).error_code == moved
    assert node.ask(DescribeGroupsRequest(groups=["g"]), 6).groups[0].error_code == moved
    assert node.ask(DeleteGroupsRequest(groups_names=["g"]), 2).results[0].error_code == moved
    assert node.ask(ListGroupsRequest(), 5).error_code == E.NONE
    node.groups.close()
    assert node.ask(join, 9).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert node.ask(ListGroupsRequest(), 5).error_code == E.COORDINATOR_NOT_AVAILABLE
    node.groups.on_leadership(0, 1)
    assert node.ask(join, 9).error_code == E.COORDINATOR_NOT_AVAILABLE


def test_groups_that_are_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = Node(lead=False)
        monkeypatch.setattr("kbroker.coordination.loading.SLICE_SECONDS", -1.0)
        for partition in range(4):
            node.groups.on_leadership(partition, 0)
        loading = E.COORDINATOR_LOAD_IN_PROGRESS
        assert node.ask(HeartbeatRequest(group_id="g"), 4).error_code == E.NONE
        assert node.ask(ListGroupsRequest(), 5).error_code == loading
        assert node.ask(DescribeGroupsRequest(groups=["g"]), 6).groups[0].error_code == loading
        assert codes(node.ask(commit_request(("t", bytes(16), (0,))), 9)) == {("t", 0): loading}
        node.groups.on_topics_deleted({"t": T_ID})
        monkeypatch.undo()
        for _ in range(100):
            await asyncio.sleep(0)
        assert codes(node.ask(commit_request(("t", bytes(16), (0,))), 9)) == {("t", 0): 0}
        node.groups.close()

    asyncio.run(scenario())


def test_topics_that_are_deleted_take_offsets_along() -> None:
    node = Node()
    node.ask(commit_request(("t", bytes(16), (0, 1))), 9)
    node.groups.on_topics_deleted({"t": GONE_ID})
    request = OffsetFetchRequest(group_id="g", topics=None)
    assert len(node.ask(request, 7).topics) == 1, "a namesake was deleted"
    node.groups.on_topics_deleted({"t": T_ID})
    assert node.ask(request, 7).topics == []


def test_closing_answers_parked_requests() -> None:
    async def scenario() -> None:
        node = Node()
        join = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range")],
        )
        waiting = node.ask(join, 3)
        node.groups.close()
        assert (await waiting).error_code == E.NOT_COORDINATOR

    asyncio.run(scenario())


def test_without_the_protocol_consumer_groups_are_refused() -> None:
    node = Node(GroupConfig(consumer_enabled=False))
    api = APIS[ConsumerGroupHeartbeatRequest.KEY]  # type: ignore[attr-defined]
    for request in (ConsumerGroupHeartbeatRequest(group_id="g"), ConsumerGroupDescribeRequest(group_ids=["g"])):
        with pytest.raises(ApiError) as caught:
            node.ask(request, 1)
        assert caught.value.code == E.UNSUPPORTED_VERSION
    answer = api.on_error(ConsumerGroupHeartbeatRequest(), E.UNSUPPORTED_VERSION, None)
    assert (answer.error_code, answer.error_message) == (E.UNSUPPORTED_VERSION, None)


def test_a_consumer_group_through_its_handlers() -> None:
    node = Node()
    node.groups.on_cluster_state(ClusterState("c"), node.controller.state)
    join = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="a",
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    answer = node.ask(join, 1)
    assert (answer.error_code, answer.member_epoch) == (E.NONE, 2)
    assert [(t.topic_id, t.partitions) for t in answer.assignment.topic_partitions] == [(T_ID, [0, 1])]
    described = node.ask(ConsumerGroupDescribeRequest(group_ids=["g", ""], include_authorized_operations=True), 1)
    assert [group.error_code for group in described.groups] == [E.NONE, E.INVALID_GROUP_ID]
    assert described.groups[0].authorized_operations > 0
    assert node.ask(ConsumerGroupHeartbeatRequest(group_id="g", member_id=""), 1).error_code == E.INVALID_REQUEST
    node.groups.close()
    assert node.ask(join, 1).error_code == E.COORDINATOR_NOT_AVAILABLE


def test_a_cluster_with_java_brokers_knows_no_configs_of_groups() -> None:
    """In such a cluster, group.version is not finalized."""
    controller = Mock(state=SimpleNamespace(features={"group.version": 0}))
    cluster: Any = SimpleNamespace(services=SimpleNamespace(cluster=object(), config=None, controller=controller))
    asked = DescribeConfigsResource(describe_configs.GROUP, "g", None)
    for ask in (
        lambda: describe_configs._entries(cluster, asked),
        lambda: alter_configs.check_resource(cluster, describe_configs.GROUP, "g"),
        lambda: alter_configs.check_resource(cluster, describe_configs.GROUP, ""),
    ):
        with pytest.raises(ApiError, match="Unknown resource type 32") as caught:
            ask()
        assert caught.value.code is ErrorCode.INVALID_REQUEST
