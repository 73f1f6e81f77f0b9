"""Created topics are waited for on every broker, by whichever the next command may be answered."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from kbroker.cli import topic_readiness
from kbroker.cli.topic_readiness import wait_until_ready
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Admin:
    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [{"broker_id": 1}, {"broker_id": 2}, {"broker_id": 3}]}


def told(error: int = 0, leader: int = 1) -> MetadataResponse:
    partitions = [MetadataResponsePartition(leader_id=leader)]
    return MetadataResponse(topics=[MetadataResponseTopic(error_code=error, name="fresh", partitions=partitions)])


def test_every_broker_has_heard_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[int, list[MetadataResponse | Exception]] = {
        1: [told()],
        2: [told(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), told(ErrorCode.LEADER_NOT_AVAILABLE), told(leader=-1), told()],
        3: [KafkaConnectionError()],
    }

    def ask(_: Any, broker: int, request: MetadataRequest, __: type[MetadataResponse]) -> MetadataResponse:
        assert request.topics is not None
        assert [each.name for each in request.topics] == ["fresh"]
        assert not request.allow_auto_topic_creation
        answer = answers[broker].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(topic_readiness, "ask_broker", ask)
    wait_until_ready(Admin(), ["fresh"])
    assert answers == {1: [], 2: [], 3: []}


def test_one_who_may_not_see_it_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask(_: Any, broker: int, *__: Any) -> MetadataResponse:
        asked.append(broker)
        return told(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    monkeypatch.setattr(topic_readiness, "ask_broker", ask)
    wait_until_ready(Admin(), ["fresh"])
    assert asked == [1, 2, 3]


def test_nobody_is_asked_where_nothing_was_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_readiness, "ask_broker", None)
    wait_until_ready(Admin(), [])
