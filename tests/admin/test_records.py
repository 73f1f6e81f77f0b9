"""Members of groups through kafka-python, whose state its public methods do not show."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer

from kbroker import Broker
from kbroker.admin.errors import AdminError
from kbroker.admin.records import finish_join, known_partitions
from kbroker.testing.waiting import hold

PATIENCE_S = 60


@pytest.mark.long
def test_a_member_takes_the_result_of_a_join_that_no_poll_waited_for() -> None:
    with Broker() as broker:
        broker.topics.create("t", 1)
        broker.topics["t"].produce(b"one")
        member = KafkaConsumer(bootstrap_servers=broker.bootstrap_servers, group_id="g", auto_offset_reset="earliest")
        broker.faults.delay("Metadata", 1.5)  # it joins before it knows the partitions, and again afterwards
        joins = broker.faults.delay("JoinGroup", 0.3)
        member.subscribe(["t"])
        try:
            assert hold(lambda: [finish_join(member), member.poll(50)][1], PATIENCE_S)
            assert joins.hits >= 2
            assert broker.groups["g"].state == "Stable"
        finally:
            member.close()


def test_a_missing_topic_is_named_while_an_update_of_the_metadata_runs() -> None:
    with Broker({"auto.create.topics.enable": "false"}) as broker:
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, group_id="g", allow_auto_create_topics=False
        )
        try:
            consumer.subscribe(["missing"])
            broker.faults.delay("Metadata", 0.5)
            consumer.poll(100)  # the update has begun, and has no answer yet
            with pytest.raises(AdminError, match="topic missing does not exist"):
                known_partitions(consumer, "missing")
        finally:
            consumer.close()
