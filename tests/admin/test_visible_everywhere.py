"""A verb waits until every broker knows the change, because any broker may answer the next command."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from kbroker.admin import visible_everywhere
from kbroker.admin.visible_everywhere import (
    wait_for_deletion,
    wait_for_preferred_leaders,
    wait_for_replicas,
    wait_for_topics,
)
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Brokers:
    """Three brokers, each of which gives its answers in turn; and the client that asks them."""

    def __init__(self, answers: dict[int, list[MetadataResponse | Exception]]) -> None:
        self.answers = answers

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": number} for number in self.answers]}

    def ask(self, _: Any, broker: int, request: MetadataRequest, __: type[MetadataResponse]) -> MetadataResponse:
        assert request.topics is not None
        assert [each.name for each in request.topics] == ["fresh"]
        assert not request.allow_auto_topic_creation
        answer = self.answers[broker].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers({})
    monkeypatch.setattr(visible_everywhere, "ask_broker", made.ask)
    monkeypatch.setattr(visible_everywhere, "_PAUSE_S", 0)
    return made


def told(error: int = 0, leader: int = 1, replicas: tuple[int, ...] = (1, 2), count: int = 1) -> MetadataResponse:
    partitions = [
        MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=list(replicas))
        for index in range(count)
    ]
    return MetadataResponse(topics=[MetadataResponseTopic(error_code=error, name="fresh", partitions=partitions)])


GONE = told(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, count=0)


def test_a_created_topic_is_known_to_all_and_led(brokers: Brokers) -> None:
    brokers.answers = {1: [told()], 2: [GONE, told(ErrorCode.LEADER_NOT_AVAILABLE), told(leader=-1), told()], 3: []}
    brokers.answers[3] = [KafkaConnectionError()]  # it is gone, so the client does not wait for it
    wait_for_topics(brokers, ["fresh"])
    assert brokers.answers == {1: [], 2: [], 3: []}


def test_as_many_partitions_as_were_asked_for(brokers: Brokers) -> None:
    brokers.answers = {1: [told(count=2)], 2: [told(count=1), told(count=2)]}
    wait_for_topics(brokers, ["fresh"], 2)
    assert brokers.answers == {1: [], 2: []}


def test_one_who_may_not_see_it_does_not_wait(brokers: Brokers) -> None:
    brokers.answers = {1: [told(ErrorCode.TOPIC_AUTHORIZATION_FAILED, count=0)]}
    wait_for_topics(brokers, ["fresh"], 2)
    assert brokers.answers == {1: []}


def test_a_deleted_topic_is_gone_everywhere(brokers: Brokers) -> None:
    brokers.answers = {1: [told(), told(), GONE], 2: [GONE]}
    wait_for_deletion(brokers, ["fresh"])
    assert brokers.answers == {1: [], 2: []}


def test_moved_replicas_and_elected_leaders(brokers: Brokers) -> None:
    brokers.answers = {1: [told(replicas=(1, 2, 3)), told(replicas=(3, 2))], 2: [told(replicas=(3, 2))]}
    wait_for_replicas(brokers, {("fresh", 0): [3, 2]})
    assert brokers.answers == {1: [], 2: []}
    brokers.answers = {1: [told(leader=2), told(leader=1)], 2: [told(leader=1)]}
    wait_for_preferred_leaders(brokers, [("fresh", 0)])
    assert brokers.answers == {1: [], 2: []}


def test_only_what_was_asked_for_is_waited_for(brokers: Brokers) -> None:
    brokers.answers = {1: [told(leader=2)]}
    wait_for_preferred_leaders(brokers, [("fresh", 7)])
    assert brokers.answers == {1: []}
    wait_for_deletion(brokers, [])


def test_it_ends(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visible_everywhere, "_PATIENCE_S", 0.0)
    brokers.answers = {1: [told()], 2: [told()]}
    wait_for_deletion(brokers, ["fresh"])
    assert brokers.answers == {1: [], 2: []}
