"""A replay that must not send a record twice refuses a target in which it cannot see the records that wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker import Broker
from kbroker.admin.connection import Connection
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.replay.replay import check_delay


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        delayed = {"delivery.delay.ms": "1000", "message.timestamp.type": "LogAppendTime"}
        running.topics.create("delayed", config=delayed)
        running.topics.create("plain")
        yield running


def test_an_exactly_once_replay_into_a_delay_topic_is_refused(broker: Broker) -> None:
    cluster = Cluster(Connection(broker.bootstrap_servers, {}))
    with pytest.raises(PipelineError, match=r"delayed has delivery\.delay\.ms"):
        check_delay(cluster, "delayed", exactly_once=True)
    check_delay(cluster, "delayed", exactly_once=False)
    check_delay(cluster, "plain", exactly_once=True)


def test_a_kafka_without_delay_topics_is_no_failure(broker: Broker) -> None:
    assert Cluster(Connection(broker.bootstrap_servers, {})).config("plain", "no.such.config") == ""
