"""`with Cluster(brokers=3)`: what a test gets that wants to see a leader die."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Cluster
from kbroker.broker import controlled_shutdown
from tests.cluster.reading import consumed

PATIENCE_S = 30
FAST = {"replica.fetch.backoff.ms": 100, "controlled.shutdown.retry.backoff.ms": 100}


def create(cluster, topic, **config):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 3, config=config)])[topic].result(PATIENCE_S)


def leader_of(cluster, topic):
    state = next(each for each in cluster.brokers.values() if each.is_running).node.member.state
    return state.partition(topic, 0).leader


def test_a_broker_that_there_is_not_is_told_with_those_there_are():
    with Cluster(brokers=2) as cluster, pytest.raises(KeyError) as told:
        cluster.brokers[0]
    assert str(told.value) == "there is no broker 0; the cluster has 1, 2"


def test_a_producer_goes_on_when_its_leader_is_killed():
    with Cluster(brokers=3, config=FAST) as cluster:
        create(cluster, "orders", **{"min.insync.replicas": "2"})
        failed = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
        for number in range(1000):
            producer.produce("orders", str(number), on_delivery=lambda error, _message: error and failed.append(error))
            if number == 500:
                producer.flush(PATIENCE_S)
                cluster.brokers[leader_of(cluster, "orders")].kill()
        assert producer.flush(PATIENCE_S) == 0
        assert not failed
        assert consumed({"bootstrap.servers": cluster.bootstrap_servers}, "orders", 1000) == list(range(1000))


def test_brokers_stop_soon_when_zookeeper_is_gone(monkeypatch):
    """The controller among them has its own question in its queue, behind what waits for ZooKeeper."""
    monkeypatch.setattr(controlled_shutdown, "_AWAY_SECONDS", 0.2)
    with Cluster(brokers=2, config={**FAST, "controller.socket.timeout.ms": 30_000}) as cluster:
        cluster.topics.create("orders", partitions=2, replication_factor=2)
        for broker in cluster.brokers.values():
            broker.cut_from_zookeeper()
        began = time.monotonic()
        for broker in cluster.brokers.values():
            broker.stop()
        assert time.monotonic() - began < 10
