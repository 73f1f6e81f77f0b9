"""Bounds on what a few bytes could request in any amount.

And decisions that are repeated because others ran meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.model import InvalidConfig
from kbroker.config.operations import MAX_VALUE_CHARS, Op, apply_ops
from kbroker.config.table import TOPIC as TOPIC_KEYS
from kbroker.controller.controller import PIECE_TOPICS
from kbroker.group_coordinator.classic.join_group import MAX_PROTOCOLS
from kbroker.group_coordinator.coordinator import FEW_MEMBERS
from kbroker.group_coordinator.groups.store import Groups
from kbroker.group_coordinator.leaving import Leaving
from kbroker.group_coordinator.offsets import Offsets
from kbroker.handlers import groups as repeated_groups
from kbroker.handlers.registry import APIS
from kbroker.long_work import awaited, in_order, in_slices, whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kbroker.protocol.messages.coordinator_records import OffsetCommitValue
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kbroker.protocol.messages.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from kbroker.replicas import AT_ONCE
from kbroker.topic_names import CollidingNames
from tests.fair.long_requests import TOPIC
from tests.fair.test_long_requests import world
from tests.turns import run_on

E = ErrorCode


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Any]:
    """Send requests to a new broker, one after the other; return the responses."""

    def run(*requests: tuple[Any, int]) -> list[Any]:
        async def scenario() -> list[Any]:
            answers = []
            async with world(tmp_path) as (context, _):
                for request, version in requests:
                    api = APIS[type(request).KEY]
                    context.version = version
                    try:
                        answer = await asyncio.wait_for(in_slices(awaited(api.handler(context, request))), 20)
                    except ApiError as error:
                        answer = await in_slices(awaited(api.on_error(request, error.code, error.message)))
                    answers.append(answer)
            return answers

        return asyncio.run(scenario())

    return run


def test_names_that_collide_are_found_however_many_there_are() -> None:
    names = CollidingNames(["a.b", "plain", "c_d"])
    assert names.other("a_b") == "a.b"
    assert names.other("a.b") is None
    assert names.other("a_b", {"a.b"}) is None
    assert names.other("plain") is None
    names.discard("a.b")
    names.discard("never.there")
    assert names.other("a_b") is None
    names.add("c.d")
    assert {names.other("c.d"), names.other("c_d")} == {"c_d", "c.d"}


def test_sorted_names_are_merged_of_sorted_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbroker.long_work.SORTED_AT_ONCE", 3)
    names = [str(n * 7 % 20) for n in range(20)]
    assert list(whole(in_order(names))) == sorted(names)
    assert list(whole(in_order([]))) == []


def test_a_topic_that_another_creates_meanwhile_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as (context, _):
            controller = context.services.controller
            names = [f"new.{n}" for n in range(3 * PIECE_TOPICS)]
            topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
            context.version = 7
            work: Any = APIS[CreateTopicsRequest.KEY].handler(context, CreateTopicsRequest(topics=topics))
            while names[0] not in controller.decided.topics:
                work.send(None)
            controller.auto_create(names[-1])
            controller.auto_create("new_" + names[-2].removeprefix("new."))
            answer = await asyncio.wait_for(in_slices(work), 20)
            codes = {topic.name: topic.error_code for topic in answer.topics}
            assert codes == {
                **dict.fromkeys(names, E.NONE),
                names[-1]: E.TOPIC_ALREADY_EXISTS,
                names[-2]: E.INVALID_TOPIC_EXCEPTION,
            }
            assert controller.state.topics.keys() >= set(names) - {names[-2]}

    asyncio.run(scenario())


def test_topics_of_one_request_may_collide_with_each_other(ask: Callable[..., Any]) -> None:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("x.y", "x_y")]
    (answer,) = ask((CreateTopicsRequest(topics=topics), 7))
    assert [topic.error_code for topic in answer.topics] == [E.NONE, E.NONE], "as in Kafka"


def test_a_topic_grows_by_no_more_than_a_request_may_create(ask: Callable[..., Any]) -> None:
    grown = [CreatePartitionsTopic(name=TOPIC, count=count, assignments=None) for count in (2**31 - 1,)]
    many = [CreatePartitionsTopic(name=f"t{n}", count=2, assignments=None) for n in range(10_001)]
    one, all_of_them = ask(
        (CreatePartitionsRequest(topics=grown, validate_only=True), 3), (CreatePartitionsRequest(topics=many), 3)
    )
    assert [result.error_code for result in one.results] == [E.POLICY_VIOLATION]
    assert {result.error_code for result in all_of_them.results} == {E.POLICY_VIOLATION}


def test_a_resource_that_is_named_again_is_described_by_work_done_once(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.handlers.describe_configs.MAX_REPEATED_BYTES", 8_000)
    again = DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=None)
    (answer,) = ask((DescribeConfigsRequest(resources=[again] * 100), 4))
    good = [result for result in answer.results if not result.error_code]
    assert 1 < len(good) < 20
    assert all(result.configs is good[0].configs for result in good)
    assert {result.error_code for result in answer.results[len(good) :]} == {E.INVALID_REQUEST}
    assert repeated_groups.MAX_REPEATED_BYTES > 8_000


def test_configs_that_are_named_are_answered_in_the_order_asked(ask: Callable[..., Any]) -> None:
    keys = ["segment.bytes", "no.such.key", "cleanup.policy", "retention.ms", "segment.bytes"]
    named = DescribeConfigsResource(resource_type=2, resource_name=TOPIC, configuration_keys=keys)
    (answer,) = ask((DescribeConfigsRequest(resources=[named]), 4))
    (result,) = answer.results
    assert [entry.name for entry in result.configs] == ["segment.bytes", "cleanup.policy", "retention.ms"]


def test_more_protocols_than_a_member_may_have(ask: Callable[..., Any]) -> None:
    protocols = [JoinGroupRequestProtocol(name=f"p{n}") for n in range(MAX_PROTOCOLS + 1)]
    request = JoinGroupRequest(group_id="g", session_timeout_ms=30_000, protocol_type="consumer", protocols=protocols)
    (answer,) = ask((request, 3))
    assert answer.error_code == E.INCONSISTENT_GROUP_PROTOCOL


def test_offsets_that_no_batch_can_hold_are_refused_before_they_are_built(ask: Callable[..., Any]) -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)] * 30_000
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    (answer,) = ask((request, 9))
    assert {p.error_code for p in answer.topics[0].partitions} == {E.UNKNOWN_SERVER_ERROR}


def test_configs_that_no_resource_has(ask: Callable[..., Any]) -> None:
    configs = [AlterableConfig(name=f"k{n}", value="1") for n in range(2_000)]
    resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=configs)
    (answer,) = ask((AlterConfigsRequest(resources=[resource], validate_only=True), 2))
    assert answer.responses[0].error_code == E.POLICY_VIOLATION


def test_an_appended_list_is_no_longer_than_a_value() -> None:
    for op in (Op.APPEND, Op.SUBTRACT):
        with pytest.raises(InvalidConfig):
            apply_ops(TOPIC_KEYS, {}, [("cleanup.policy", op, "delete," * MAX_VALUE_CHARS)])


def test_of_many_that_leave_each_is_decided_about_once() -> None:
    group: Any = SimpleNamespace(members=dict.fromkeys(("a", "b")), static_members={"instance": "b"})
    named = [("a", None), ("no", None), ("", "instance"), ("a", None), ("x", "instance"), ("", "none")]
    leaving = Leaving([MemberIdentity(member_id=m, group_instance_id=i) for m, i in named])
    whole(leaving.sift(group))
    kept = [(each.member_id, each.group_instance_id) for each in leaving.members]
    assert kept == [("a", None), ("", "instance"), ("x", "instance")]
    codes = [E.NONE, E.NONE, E.FENCED_INSTANCE_ID]
    decided = [MemberResponse(member_id=m, error_code=code) for (m, _), code in zip(kept, codes, strict=True)]
    answer = whole(leaving.answer(LeaveGroupResponse(members=decided)))
    unknown = E.UNKNOWN_MEMBER_ID
    assert [each.error_code for each in answer.members] == [0, unknown, 0, unknown, E.FENCED_INSTANCE_ID, unknown]


def test_many_that_leave_a_group_that_is_not_there(ask: Callable[..., Any]) -> None:
    members = [MemberIdentity(member_id=f"m{n}") for n in range(2 * FEW_MEMBERS)]
    (answer,) = ask((LeaveGroupRequest(group_id="g", members=members), 5))
    assert answer.error_code == E.NONE
    assert [each.error_code for each in answer.members] == [E.UNKNOWN_MEMBER_ID] * len(members)


@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_produce_to_many_partitions_answers_for_each(ask: Callable[..., Any], transactional_id: str | None) -> None:
    topics = [
        TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=i) for i in range(30)]),
        TopicProduceData(name="empty"),
        TopicProduceData(name="absent", partition_data=[PartitionProduceData(index=i) for i in range(50)]),
    ]
    (answer,) = ask((ProduceRequest(transactional_id=transactional_id, acks=1, topic_data=topics), 9))
    assert [(t.name, [p.index for p in t.partition_responses]) for t in answer.responses] == [
        (TOPIC, list(range(30))),
        ("empty", []),
        ("absent", list(range(50))),
    ]
    codes = [p.error_code for p in answer.responses[0].partition_responses]
    assert codes == [E.INVALID_RECORD] + [E.UNKNOWN_TOPIC_OR_PARTITION] * 29


def test_the_end_of_a_topic_concerns_only_groups_that_have_offsets_in_it() -> None:
    offsets = Offsets(Groups())
    looked_at: list[str] = []

    class Noted(dict[str, Any]):
        def __getitem__(self, group: str) -> Any:
            looked_at.append(group)
            return super().__getitem__(group)

    for number in range(100):
        offsets.put(number, -1, f"g{number}", f"t{number % 50}", 0, OffsetCommitValue(offset=1))
    offsets._stored = Noted(offsets._stored)
    records = list(offsets.of_deleted_topics({"t7": b"i" * 16, "none": b"n" * 16}))
    assert len(records) == 2
    assert set(looked_at) <= {"g7", "g57"}
    for group in ("g7", "g57"):
        offsets.remove(group, "t7", 0)
    assert list(offsets.of_deleted_topics({"t7": b"i" * 16})) == []


def test_what_was_created_is_hosted_before_it_is_answered_a_few_partitions_in_a_step(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as (context, _):
            topics = [CreatableTopic(name=f"n{n}", num_partitions=1, replication_factor=1) for n in range(30)]
            topics.append(CreatableTopic(name="large", num_partitions=60, replication_factor=1))
            context.version = 7
            work: Any = APIS[CreateTopicsRequest.KEY].handler(context, CreateTopicsRequest(topics=topics))
            replicas = context.services.replicas
            known, most = len(list(replicas)), 0
            while not isinstance(waiting := run_on(work, most_turns=1), CreateTopicsResponse):
                known, before = len(list(replicas)), known
                most = max(most, known - before)
                if waiting is not None:  # what the loop hosts meanwhile is not a step of this request
                    await waiting.until_done()
                    known = len(list(replicas))
            assert most <= 2 * AT_ONCE
            assert replicas.get(("n29", 0)) is not None
            assert replicas.get(("large", 59)) is not None

    asyncio.run(scenario())
