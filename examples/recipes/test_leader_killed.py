"""A leader is killed in a cluster of three: acknowledged messages are still there, and the clients continue."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Cluster


def leader_of(cluster: Cluster, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    return int(admin.list_topics(topic, 20).topics[topic].partitions[0].leader)


@pytest.mark.long  # a marker of kbroker's own suite, for tests that take longer
def test_what_was_acknowledged_outlives_its_leader(kafka_cluster: Cluster) -> None:
    everybody = kafka_cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": everybody})
    topic = NewTopic("orders", 1, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["orders"].result(20)
    producer = Producer({"bootstrap.servers": everybody, "enable.idempotence": True, "log_level": 0})
    producer.produce("orders", "before")
    assert producer.flush(20) == 0

    killed = leader_of(kafka_cluster, "orders")
    kafka_cluster.brokers[killed].kill()
    producer.produce("orders", "after")
    assert producer.flush(60) == 0
    assert leader_of(kafka_cluster, "orders") != killed

    consumer = Consumer(
        {"bootstrap.servers": everybody, "group.id": "billing", "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe(["orders"])
    found = consumer.consume(2, 60)
    assert [each.value() for each in found] == [b"before", b"after"]
    consumer.close()
    producer.close()

    kafka_cluster.brokers[killed].start()
    assert kafka_cluster.brokers[killed].is_running
