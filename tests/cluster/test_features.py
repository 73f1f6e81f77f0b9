"""Features of a cluster of kbroker nodes: what all nodes report, how requests change them, and their effects."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.config.model import ConfigError
from kbroker.controller.tree.znode import SetData
from kbroker.controller.znodes import FEATURE, Features
from kbroker.coordination.partitioning import partition_for
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from kbroker.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest, ApiVersionsResponse
from kbroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest

from .test_transactions import FAST, Context, _written

PATIENCE_S = 60
UP, SAFE, UNSAFE = 1, 2, 3
GROUP = 32
ALL = {"group.version": 1, "share.version": 2, "streams.version": 1, "transaction.version": 2}
QUICK_GROUPS = {"group.consumer.heartbeat.interval.ms": 200, "group.consumer.min.heartbeat.interval.ms": 100}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={**FAST, **QUICK_GROUPS}) as running:
        yield running


def until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def ask(cluster: Cluster, node_id: int, request: Any, version: int) -> Any:
    with WireClient(cluster.brokers[node_id].bootstrap_servers) as client:
        return client.ask(request, version)


def told(cluster: Cluster, node_id: int) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = ask(cluster, node_id, request, 4)
    assert isinstance(answer, ApiVersionsResponse)
    return answer


def finalized(cluster: Cluster, node_id: int) -> tuple[dict[str, int], int]:
    answer = told(cluster, node_id)
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return levels, answer.finalized_features_epoch


def controller(cluster: Cluster) -> int:
    [active] = [each for each, broker in cluster.brokers.items() if broker.node.controller.is_active]
    return active


def update(cluster: Cluster, node_id: int, name: str, level: int, kind: int, **more: Any) -> UpdateFeaturesResponse:
    change = FeatureUpdateKey(name, level, upgrade_type=kind)
    answer = ask(cluster, node_id, UpdateFeaturesRequest(feature_updates=[change], **more), 2)
    assert isinstance(answer, UpdateFeaturesResponse)
    return answer


def heartbeat(cluster: Cluster, node_id: int, group: str) -> ErrorCode:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=str(uuid.uuid4()),
        member_epoch=0,
        rebalance_timeout_ms=60000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    return ErrorCode(ask(cluster, node_id, request, 1).error_code)


def test_every_broker_tells_what_is_finalized_from_the_first_answer_on(cluster: Cluster) -> None:
    for node_id in cluster.brokers:
        assert finalized(cluster, node_id) == (ALL, 0)
        ranges = {each.name: (each.min_version, each.max_version) for each in told(cluster, node_id).supported_features}
        assert ranges == {
            "group.version": (0, 1),
            "share.version": (0, 2),
            "streams.version": (0, 1),
            "transaction.version": (0, 2),
        }


def test_what_is_lowered_is_known_to_all_and_stays_so(cluster: Cluster) -> None:
    active = controller(cluster)
    other = next(each for each in cluster.brokers if each != active)
    assert update(cluster, other, "group.version", 0, SAFE).error_code == ErrorCode.NOT_CONTROLLER
    refused = update(cluster, active, "group.version", 0, UP)
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "Can't downgrade" in (refused.error_message or "")
    assert update(cluster, active, "group.version", 0, SAFE, validate_only=True).error_code == 0
    assert finalized(cluster, active) == (ALL, 0)
    assert update(cluster, active, "group.version", 0, SAFE).error_code == 0
    lowered = ({"share.version": 2, "streams.version": 1, "transaction.version": 2}, 1)
    assert finalized(cluster, active) == lowered, "it is answered once its broker knows"
    for node_id in cluster.brokers:
        until("all knowing", lambda node_id=node_id: finalized(cluster, node_id) == lowered)
        assert heartbeat(cluster, node_id, "g") == ErrorCode.UNSUPPORTED_VERSION
    cluster.brokers[active].kill()
    others = [broker for number, broker in cluster.brokers.items() if number != active]
    until("another controller", lambda: any(each.node.controller.is_active for each in others))
    cluster.brokers[active].start()
    for node_id in cluster.brokers:
        assert finalized(cluster, node_id) == lowered
    assert update(cluster, controller(cluster), "group.version", 1, UP).error_code == 0
    for node_id in cluster.brokers:
        until("all knowing", lambda node_id=node_id: finalized(cluster, node_id) == (ALL, 2))
        assert heartbeat(cluster, node_id, "g") != ErrorCode.UNSUPPORTED_VERSION


def test_a_change_that_is_not_known_in_time_is_told_as_such(cluster: Cluster) -> None:
    active = controller(cluster)
    cluster.brokers[active].node._features.close()
    late = update(cluster, active, "group.version", 0, SAFE, timeout_ms=1_000)  # the write itself takes some ms
    assert late.error_code == ErrorCode.FEATURE_UPDATE_FAILED


def test_a_broker_neither_starts_nor_goes_on_with_what_it_does_not_support(cluster: Cluster) -> None:
    cluster.brokers[3].stop()
    tool = cluster.ensemble.connect()
    failed = {each: cluster.brokers[each].node.failed for each in (1, 2)}
    said = "/feature finalizes features that this broker does not support: later.version 1"

    async def finalize() -> list[str]:
        await tool.commit([SetData(FEATURE, Features({**ALL, "later.version": 1}).encode())])
        async with asyncio.timeout(PATIENCE_S):
            return [await each for each in failed.values()]

    assert cluster.run(finalize()) == [said, said]
    with pytest.raises(ConfigError, match=said):
        cluster.brokers[3].start()


def test_each_end_of_a_transaction_begins_an_epoch_wherever_its_parts_are(cluster: Cluster) -> None:
    context = Context(cluster)
    try:
        topic, name = context.topic(), context.id_at(2)
        coordinator = context.at(2, generation=2)
        producer = coordinator.init(name)
        for turn in range(3):
            for index in range(3):
                at = context.at(index + 1, generation=2)
                got = None
                while got is None:
                    answer = _written(at.produce(name, producer, topic, [b"x"], index=index, sequence=0))
                    got = answer[0] if answer else None
                assert got == 2 * turn, got
            ended = coordinator.end_once(name, producer, True)
            assert ended.epoch == producer.epoch + 1
            producer = ended
        until("the last marker", lambda: context.at(3).see(topic, index=2).values == [b"x"] * 3)
        killed = context.leader("__transaction_state", partition_for(name, 4))
        cluster.brokers[killed].kill()
        elsewhere = context.leader("__transaction_state", partition_for(name, 4))
        again = context.at(elsewhere, generation=2).init(name)
        assert (again.producer_id, again.epoch) == (producer.producer_id, producer.epoch + 1)
    finally:
        context.close()


class Member:
    """A consumer of the new protocol, with the records and the errors that it has received."""

    def __init__(self, cluster: Cluster, group: str, topic: str) -> None:
        self.seen: list[int] = []
        self.partitions: set[int] = set()
        self.errors: list[str] = []
        self.client = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.client.subscribe([topic])

    def poll(self) -> None:
        message = self.client.poll(0.05)
        self.partitions = {each.partition for each in self.client.assignment()}
        if message is not None and message.error() is None:
            self.seen.append(int(message.value() or b"-1"))
        elif message is not None and message.error().fatal():
            self.errors.append(str(message.error()))


@pytest.mark.long
def test_a_group_of_the_new_protocol_goes_on_when_its_coordinator_is_killed(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("orders", 4, 3)])["orders"].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "log_level": 0})

    def send(*numbers: int) -> None:
        for number in numbers:
            producer.produce("orders", str(number), partition=number % 4)
        assert producer.flush(PATIENCE_S) == 0

    members = [Member(cluster, "g", "orders") for _ in range(2)]

    def settled() -> bool:
        for each in members:
            each.poll()
        shares = sorted(len(each.partitions) for each in members)
        return shares == [2, 2] and len(set.union(*(each.partitions for each in members))) == 4

    def seen() -> list[int]:
        return sorted(number for each in members for number in each.seen)

    try:
        until("both having partitions", settled)
        send(*range(100))
        until("all records", lambda: settled() and seen() == list(range(100)))
        for each in members:
            each.client.commit(asynchronous=False)
        known = cluster.brokers[1].node.member.state.partition(OFFSETS_TOPIC, partition_for("g", 4))
        assert known is not None
        before = [set(each.partitions) for each in members]
        cluster.brokers[known.leader].kill()
        send(*range(100, 200))
        until("the rest", lambda: settled() and seen() == list(range(200)))
        assert [each.partitions for each in members] == before, "nobody had to give anything away"
        until("a commit", lambda: all(_committed(each.client) for each in members))
        members.append(Member(cluster, "g", "orders"))
        joined = members[-1]

        def three() -> bool:
            for each in members:
                each.poll()
            return sorted(len(each.partitions) for each in members) == [1, 1, 2]

        until("a third member", three)
        assert not any(each.errors for each in members)
        assert not joined.seen, "what is committed is not read again"
    finally:
        for each in members:
            each.client.close()


def _committed(client: Consumer) -> bool:
    try:
        client.commit(asynchronous=False)
    except Exception:  # noqa: BLE001 - the coordinator is on its way
        return False
    return True


def set_group(cluster: Cluster, node_id: int, group: str, value: str) -> int:
    change = IncrementalConfig("consumer.session.timeout.ms", 0, value)
    asked = IncrementalAlterConfigsRequest(resources=[IncrementalResource(GROUP, group, [change])])
    return int(ask(cluster, node_id, asked, 1).responses[0].error_code)


def group_config(cluster: Cluster, node_id: int, group: str) -> tuple[int, str | None]:
    resource = DescribeConfigsResource(GROUP, group, ["consumer.session.timeout.ms"])
    result = ask(cluster, node_id, DescribeConfigsRequest([resource]), 4).results[0]
    return result.error_code, result.configs[0].value if result.configs else None


def test_configs_of_groups_are_kept_where_all_brokers_are_of_kbroker(cluster: Cluster) -> None:
    def is_told(node_id: int, name: str, value: str) -> bool:
        return group_config(cluster, node_id, name) == (ErrorCode.NONE, value)

    names = ["billing", "a/b", ".", "..", "../evil", "é %2F", "<default>", "nul\0"]
    for number, name in enumerate(names):
        assert set_group(cluster, 1 + number % 3, name, str(50_000 + number)) == ErrorCode.NONE, name
    for number, name in enumerate(names):
        for node_id in cluster.brokers:
            expected = (ErrorCode.NONE, str(50_000 + number))
            until(f"{name} is known", lambda: group_config(cluster, node_id, name) == expected)  # noqa: B023
    assert set_group(cluster, 1, "billing", "1") == ErrorCode.INVALID_CONFIG
    cluster.brokers[2].stop()
    cluster.brokers[2].start()
    until("billing is known after a start", partial(is_told, 2, "billing", "50000"))

    def has_no_groups(node_id: int) -> bool:
        return "group.version" not in finalized(cluster, node_id)[0]

    lowered = update(cluster, controller(cluster), "group.version", 0, UNSAFE)
    assert lowered.error_code == ErrorCode.NONE, lowered
    for node_id in cluster.brokers:  # as if a Java broker were there, which has no such configs
        until("the level is known", partial(has_no_groups, node_id))
        assert group_config(cluster, node_id, "billing") == (ErrorCode.INVALID_REQUEST, None)
        assert set_group(cluster, node_id, "billing", "60000") == ErrorCode.INVALID_REQUEST


def test_a_topic_that_needs_kbroker_is_refused_where_java_brokers_may_be(cluster: Cluster) -> None:
    def has_no_groups(node_id: int) -> bool:
        return "group.version" not in finalized(cluster, node_id)[0]

    stamped = {"message.timestamp.type": "LogAppendTime"}
    configs = {**stamped, "delivery.delay.ms": "1000"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic("before", 1, 3, config=configs)])["before"].result(PATIENCE_S)
    lowered = update(cluster, controller(cluster), "group.version", 0, UNSAFE)
    assert lowered.error_code == ErrorCode.NONE, lowered
    for node_id in cluster.brokers:
        until("the level is known", partial(has_no_groups, node_id))
    for needing in (configs, {**stamped, "schedule.enable": "true"}):
        with pytest.raises(KafkaException, match="brokers of Apache Kafka may be members") as refused:
            admin.create_topics([NewTopic("needing", 1, 3, config=needing)])["needing"].result(PATIENCE_S)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    admin.create_topics([NewTopic("plain", 1, 3)])["plain"].result(PATIENCE_S)
