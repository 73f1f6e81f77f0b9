"""What is hidden, which parts of a request succeed, what a denied request leaves behind, and revoked rights."""

from __future__ import annotations

import asyncio
import logging

import pytest

from compat_tests.wire.exchanges.produce import batch
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.clients import AlterClientQuotasRequest, AlteredEntity, AlteredEntry, OpData
from kbroker.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from kbroker.protocol.messages.groups import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    ListGroupsRequest,
)
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest, DeleteTopicState
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kbroker.protocol.wire import ZERO_UUID
from kbroker.security.authorizer.acls import CLUSTER_NAME, Operation, Permission, ResourceType
from tests.security.authorizer.served import ADMIN, ALICE, CLOSED, asynchronous, codes, serving

T, G, C, X = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
O = Operation  # noqa: E741


async def topics(served, *names):
    created = CreateTopicsRequest([CreatableTopic(name, 1, 1) for name in names])
    assert codes(await served.ask(created, 7, ADMIN)) == {0}


def named(*names, create=False):
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=create)


def produced(*names, acks=-1):
    data = [TopicProduceData(name=name, partition_data=[PartitionProduceData(0, batch(1))]) for name in names]
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=data)


def fetched(*names, session=0, epoch=-1):
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, session_id=session, session_epoch=epoch,
        topics=[FetchTopic(topic=name, partitions=[partition]) for name in names],
    )  # fmt: skip


@pytest.fixture
def alone(tmp_path):
    return serving(tmp_path, auto_create_topics_enable="true")


@asynchronous
async def test_a_forbidden_topic_looks_like_an_absent_one(alone):
    async with alone as served:
        await topics(served, "hidden", "seen")
        await served.allow(T, "seen", O.DESCRIBE)
        answer = await served.ask(named("hidden", "absent", "seen", create=True), 12)
        found = {topic.name: topic for topic in answer.topics}
        assert {name: topic.error_code for name, topic in found.items()} == {
            "hidden": REFUSED, "absent": REFUSED, "seen": 0,
        }  # fmt: skip
        hidden, absent = found["hidden"], found["absent"]
        absent.name = hidden.name
        assert hidden == absent
        everything = await served.ask(MetadataRequest(None), 12)
        assert [topic.name for topic in everything.topics] == ["seen"]
        old = await served.ask(named("hidden"), 0)
        assert [(topic.name, topic.error_code) for topic in old.topics] == [("hidden", REFUSED)]
        by_id = served.node.controller.state.topics["hidden"].topic_id
        answer = await served.ask(MetadataRequest([MetadataRequestTopic(topic_id=by_id, name=None)]), 12)
        assert [(t.name, t.topic_id, t.error_code) for t in answer.topics] == [(None, by_id, REFUSED)]
        assert "absent" not in served.node.controller.state.topics


@asynchronous
async def test_topics_are_created_by_those_who_may(alone):
    async with alone as served:
        await served.allow(T, "new", O.DESCRIBE)
        answer = await served.ask(named("new", create=True), 12)
        assert codes(answer) == {0, REFUSED}
        assert "new" not in served.node.controller.state.topics
        await served.allow(T, "new", O.CREATE)
        await served.ask(named("new", create=True), 12)
        assert "new" in served.node.controller.state.topics
        await served.allow(C, CLUSTER_NAME, O.CREATE)
        await served.allow(T, "newer", O.DESCRIBE)
        await served.ask(named("newer", create=True), 12)
        assert "newer" in served.node.controller.state.topics


@asynchronous
async def test_pages_of_topics_tell_nothing_of_others(alone):
    async with alone as served:
        await topics(served, "a", "b", "c")
        await served.allow(T, "a", O.READ)
        await served.allow(T, "c", O.DESCRIBE)
        answer = await served.ask(DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1), 0)
        assert [topic.name for topic in answer.topics] == ["a"]
        assert answer.next_cursor.topic_name == "c"
        assert answer.topics[0].topic_authorized_operations == 1 << O.READ | 1 << O.DESCRIBE
        asked = DescribeTopicPartitionsRequest(topics=[], response_partition_limit=1, cursor=answer.next_cursor)
        answer = await served.ask(asked, 0)
        assert [topic.name for topic in answer.topics] == ["c"]
        assert answer.next_cursor is None


@asynchronous
async def test_what_is_allowed_of_a_request_succeeds(alone):
    async with alone as served:
        await topics(served, "one", "two", "three")
        for name in ("one", "three"):
            await served.allow(T, name, O.ALL)
        answer = await served.ask(produced("one", "two", "three"), 9)
        assert [(t.name, t.partition_responses[0].error_code) for t in answer.responses] == [
            ("one", 0), ("two", REFUSED), ("three", 0),
        ]  # fmt: skip
        get = served.node.replicas.get
        assert [get((name, 0)).log.log_end_offset for name in ("one", "two", "three")] == [1, 0, 1]
        answer = await served.ask(fetched("one", "two", "three"), 11)
        assert [(t.topic, t.partitions[0].error_code, len(t.partitions[0].records) > 0) for t in answer.responses] == [
            ("one", 0, True), ("two", REFUSED, False), ("three", 0, True),
        ]  # fmt: skip


@asynchronous
async def test_many_topics_are_looked_at_in_pieces(alone):
    async with alone as served:
        names = [f"t{number:03}" for number in range(100)]
        await topics(served, *names)
        for name in names[::2]:
            await served.allow(T, name, O.ALL)
        answer = await served.ask(produced(*names), 9)
        expected = [0 if name in names[::2] else REFUSED for name in names]
        assert [t.partition_responses[0].error_code for t in answer.responses] == expected
        answer = await served.ask(fetched(*names), 11)
        assert [t.partitions[0].error_code for t in answer.responses] == expected


@asynchronous
async def test_a_fetch_session_reads_only_what_may_be_read(alone):
    async with alone as served:
        await topics(served, "one", "two")
        for name in ("one", "two"):
            await served.allow(T, name, O.ALL)
        assert codes(await served.ask(produced("one", "two"), 9)) == {0}
        opened = await served.ask(fetched("one", "two", epoch=0), 11)
        assert opened.session_id
        await served.allow(T, "two", O.READ, Permission.DENY)
        again = await served.ask(fetched(session=opened.session_id, epoch=1), 11)
        assert [(t.topic, t.partitions[0].error_code) for t in again.responses if t.topic == "two"] == [
            ("two", REFUSED)
        ]


@asynchronous
async def test_each_fetch_is_told_from_the_moment_that_the_log_wants_to_know(alone, caplog):
    async with alone as served:
        await topics(served, "orders")
        await served.allow(T, "orders", O.READ)

        async def told():
            caplog.clear()
            for _ in range(3):
                assert codes(await served.ask(fetched("orders"), 11)) == {0}
            return sum("is Allowed operation = READ" in message for message in caplog.messages)

        assert await told() == 0
        with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
            served.node.server.dispatcher.refresh()
            assert await told() == 3
        served.node.server.dispatcher.refresh()
        assert await told() == 0


@asynchronous
async def test_a_right_that_was_taken_away_counts_at_once(alone):
    """Also if requests use the express path, which a connection has cached."""
    async with alone as served:
        await topics(served, "orders")
        await served.allow(T, "orders", O.WRITE)
        for _ in range(3):
            assert codes(await served.ask(produced("orders"), 9)) == {0}
        assert served.context(ALICE).known_requests._by_bytes
        await served.allow(T, "orders", O.WRITE, Permission.DENY)
        assert codes(await served.ask(produced("orders"), 9)) == {REFUSED}
        assert served.node.replicas.get(("orders", 0)).log.log_end_offset == 3


@asynchronous
async def test_without_acknowledgement_a_refusal_closes_the_connection(alone):
    async with alone as served:
        await topics(served, "one", "two")
        await served.allow(T, "one", O.WRITE)
        assert await served.ask(produced("one", acks=0), 9) is None
        assert await served.ask(produced("one", "two", acks=0), 9) == CLOSED
        assert served.node.replicas.get(("one", 0)).log.log_end_offset == 2


@asynchronous
async def test_denied_requests_leave_nothing(alone):
    async with alone as served:
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"")],
        )  # fmt: skip
        assert codes(await served.ask(join, 9)) == {ErrorCode.GROUP_AUTHORIZATION_FAILED}
        partition = OffsetCommitRequestPartition(0, 1, -1, None)
        commit = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic("t", partitions=[partition])])
        await served.allow(G, "g", O.READ)
        assert codes(await served.ask(commit, 8)) == {REFUSED}
        await served.forbid_all()
        created = CreateTopicsRequest([CreatableTopic("t", 1, 1)])
        assert codes(await served.ask(created, 4)) - {0} == {REFUSED}
        assert codes(await served.ask(produced("t"), 9)) == {REFUSED}
        assert not served.node.controller.state.topics.keys() - {"__consumer_offsets"}
        listed = await served.ask(ListGroupsRequest(), 5, ADMIN)
        assert listed.groups == []


@asynchronous
async def test_a_name_beside_an_id_is_not_told_and_not_created(alone):
    async with alone as served:
        await topics(served, "hidden", "seen")
        await served.allow(T, "seen", O.DESCRIBE)
        ids = {name: served.node.controller.state.topics[name].topic_id for name in ("hidden", "seen")}
        for by_id, told in (("hidden", {REFUSED}), ("seen", {0})):
            beside = [MetadataRequestTopic(name=name) for name in ("hidden", "absent")]
            one = MetadataRequestTopic(topic_id=ids[by_id], name=None)
            answer = await served.ask(MetadataRequest([one, *beside], allow_auto_topic_creation=True), 12)
            assert [topic.topic_id for topic in answer.topics] == [ids[by_id]]
            assert {topic.error_code for topic in answer.topics} == told
        assert "absent" not in served.node.controller.state.topics


@asynchronous
async def test_deleting_tells_nothing_of_topics_that_are_not_seen(alone):
    async with alone as served:
        await topics(served, "hidden", "seen")
        await served.allow(T, "seen", O.DESCRIBE)
        ids = {name: served.node.controller.state.topics[name].topic_id for name in ("hidden", "seen")}
        asked = DeleteTopicsRequest([DeleteTopicState(None, each) for each in ids.values()])
        answer = await served.ask(asked, 6)
        assert {(each.name, each.topic_id): each.error_code for each in answer.responses} == {
            (None, ids["hidden"]): REFUSED,
            ("seen", ids["seen"]): REFUSED,
        }
        answer = await served.ask(DeleteTopicsRequest(topic_names=["hidden", "absent", "seen"]), 5)
        assert {each.name: each.error_code for each in answer.responses} == dict.fromkeys(
            ("hidden", "absent", "seen"), REFUSED
        )
        await served.allow(T, "absent", O.DESCRIBE)
        for version, asked in (
            (5, DeleteTopicsRequest(topic_names=["absent"])),
            (6, DeleteTopicsRequest([DeleteTopicState("absent", ZERO_UUID)])),
        ):
            answer = await served.ask(asked, version)
            assert codes(answer) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        answer = await served.ask(DeleteTopicsRequest([DeleteTopicState(None, b"i" * 16)]), 6)
        assert codes(answer) == {ErrorCode.UNKNOWN_TOPIC_ID}


@asynchronous
async def test_all_offsets_of_a_group_are_those_that_may_be_seen(alone):
    async with alone as served:
        await topics(served, "hidden", "seen")
        partition = OffsetCommitRequestPartition(0, 1, -1, None)
        committed = [OffsetCommitRequestTopic(name, partitions=[partition]) for name in ("hidden", "seen")]
        commit = OffsetCommitRequest(group_id="g", topics=committed)
        await served.ask(FindCoordinatorRequest(key="g"), 2, ADMIN)
        assert codes(await served.ask(commit, 8, ADMIN)) == {0}
        await served.allow(G, "g", O.DESCRIBE)
        await served.allow(T, "seen", O.DESCRIBE)
        answer = await served.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 8)
        assert [topic.name for topic in answer.groups[0].topics] == ["seen"]
        answer = await served.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert [topic.name for topic in answer.topics] == ["seen"]
        await served.allow(G, "other", O.DESCRIBE)
        assert [group.group_id for group in (await served.ask(ListGroupsRequest(), 5)).groups] == ["g"]
        asked = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
        described = (await served.ask(asked, 5)).groups
        assert [each.authorized_operations for each in described] == [1 << O.DESCRIBE]


@asynchronous
async def test_operations_are_told_where_they_are_asked_for(alone):
    async with alone as served:
        await topics(served, "orders")
        await served.allow(T, "orders", O.READ)
        asked = named("orders")
        asked.include_topic_authorized_operations = asked.include_cluster_authorized_operations = True
        answer = await served.ask(asked, 10)
        assert answer.topics[0].topic_authorized_operations == 1 << O.READ | 1 << O.DESCRIBE
        assert answer.cluster_authorized_operations == 0
        await served.allow(C, CLUSTER_NAME, O.ALTER)
        expected = 1 << O.ALTER | 1 << O.DESCRIBE
        assert (await served.ask(asked, 10)).cluster_authorized_operations == expected
        cluster = DescribeClusterRequest(include_cluster_authorized_operations=True)
        assert (await served.ask(cluster, 1)).cluster_authorized_operations == expected
        cluster.include_cluster_authorized_operations = False
        assert (await served.ask(cluster, 1)).cluster_authorized_operations == -(2**31)


@asynchronous
async def test_configs_of_a_new_topic_are_told_to_those_who_may_describe_them(alone):
    async with alone as served:
        await served.allow(C, CLUSTER_NAME, O.CREATE)
        answer = await served.ask(CreateTopicsRequest([CreatableTopic("new", 1, 1)]), 7)
        (topic,) = answer.topics
        assert (topic.error_code, topic.topic_config_error_code, topic.configs) == (0, REFUSED, [])
        assert (topic.num_partitions, topic.replication_factor) == (-1, -1)
        await served.allow(T, "newer", O.DESCRIBE_CONFIGS)
        (topic,) = (await served.ask(CreateTopicsRequest([CreatableTopic("newer", 1, 1)]), 7)).topics
        assert topic.configs
        assert topic.num_partitions == 1


@pytest.mark.parametrize("who", [ALICE, ADMIN], ids=str)
@asynchronous
async def test_producers_add_no_internal_topics(alone, who):
    async with alone as served:
        await topics(served, "orders", "__transaction_state")
        await served.allow(X, "mover", O.WRITE)
        await served.allow(T, "orders", O.WRITE)
        await served.allow(T, "__transaction_state", O.WRITE)
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="mover",
            v3_and_below_topics=[
                AddPartitionsToTxnTopic("orders", [0]), AddPartitionsToTxnTopic("__transaction_state", [0]),
            ],
        )  # fmt: skip
        answer = await served.ask(asked, 3, who)
        found = {t.name: t.results_by_partition[0].partition_error_code for t in answer.results_by_topic_v3_and_below}
        assert found == {"orders": ErrorCode.OPERATION_NOT_ATTEMPTED, "__transaction_state": REFUSED}


@asynchronous
async def test_the_audit_tells_who_changed_what(alone, caplog):
    async with alone as served:
        with caplog.at_level(logging.INFO, "kbroker.audit"):
            await topics(served, "orders")
            await served.ask(CreateTopicsRequest([CreatableTopic("more\nlines", 1, 1)]), 7)
            await served.ask(ApiVersionsRequest("a", "1"), 3)
            who = [AlteredEntity("user", "bob"), AlteredEntity("client-id", None)]
            quota = AlteredEntry(who, [OpData("producer_byte_rate", 1e9)])
            await served.ask(AlterClientQuotasRequest(entries=[quota], validate_only=True), 1, ADMIN)
        lines = [record.getMessage() for record in caplog.records if record.name == "kbroker.audit"]
        assert lines == [
            "User:admin from 192.0.2.1: CreateTopics orders: done",
            "User:alice from 192.0.2.1: CreateTopics more\\nlines: refused 1 of 1",
            "User:admin from 192.0.2.1: AlterClientQuotas user bob and client-id <default>: producer_byte_rate: done",
        ]


@asynchronous
async def test_a_pattern_stands_for_topics_that_may_be_seen(alone):
    async with alone as served:
        await topics(served, "hidden", "seen")
        await served.allow(G, "g", O.READ)
        await served.allow(T, "seen", O.READ)
        await served.ask(FindCoordinatorRequest(key="g"), 2, ADMIN)
        epoch, assigned = 0, None
        async with asyncio.timeout(20):
            while not assigned:
                asked = ConsumerGroupHeartbeatRequest(
                    group_id="g", member_id="AAAAAAAAAAAAAAAAAAAAAA", member_epoch=epoch, rebalance_timeout_ms=5_000,
                    subscribed_topic_regex=".*n", topic_partitions=[],
                )  # fmt: skip
                answer = await served.ask(asked, 1)
                assert answer.error_code in (0, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), answer
                epoch = answer.member_epoch
                assigned = answer.assignment.topic_partitions if answer.assignment is not None else None
                await asyncio.sleep(0.01)
        assert [each.topic_id for each in assigned] == [served.node.controller.state.topics["seen"].topic_id]
