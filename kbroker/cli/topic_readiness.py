"""Waiting until topics that were just created are there for whoever is asked next.

CreateTopics is answered when the controller has the topic; the other brokers hear of it a moment later, and the next
command may ask one of them. Never fails: the topics exist.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafka.errors import KafkaError

from kbroker.cli.own_request import ask_broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_PATIENCE_S = 10.0
_PAUSE_S = 0.05
_NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)


def wait_until_ready(admin: Any, names: Iterable[str]) -> None:
    """Wait until every broker tells of the topics, with leaders; ten seconds at most, and not for one that is gone."""
    wanted = list(names)
    if not wanted:
        return
    deadline = time.monotonic() + _PATIENCE_S
    for broker in admin.describe_cluster()["brokers"]:
        while not _ready(admin, int(broker["broker_id"]), wanted) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)


def _ready(admin: Any, broker: int, names: list[str]) -> bool:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)
    try:
        answer = ask_broker(admin, broker, asked, MetadataResponse)
    except KafkaError:
        return True
    return all(
        topic.error_code not in _NOT_YET and all(each.leader_id >= 0 for each in topic.partitions)
        for topic in answer.topics
    )
