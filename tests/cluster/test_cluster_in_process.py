"""`with Cluster(brokers=3)`: what it offers a test that wants to see a leader die."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.broker import controlled_shutdown
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.protocol.messages.transactions import DescribeProducersRequest, TopicRequest
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


@pytest.mark.long
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


@pytest.mark.long
def test_brokers_stop_soon_when_zookeeper_is_gone(monkeypatch):
    """The controller's own request is in its queue, after requests that wait for ZooKeeper."""
    monkeypatch.setattr(controlled_shutdown, "_AWAY_SECONDS", 0.2)
    with Cluster(brokers=2, config={**FAST, "controller.socket.timeout.ms": 30_000}) as cluster:
        cluster.topics.create("orders", partitions=2, replication_factor=2)
        for broker in cluster.brokers.values():
            broker.cut_from_zookeeper()
        began = time.monotonic()
        for broker in cluster.brokers.values():
            broker.stop()
        assert time.monotonic() - began < 10


@pytest.mark.long
def test_the_last_broker_does_not_wait_for_others(monkeypatch, caplog):
    monkeypatch.setattr(controlled_shutdown, "_ALONE_SECONDS", 0.2)
    slow = {**FAST, "controlled.shutdown.retry.backoff.ms": 20_000}
    with Cluster(brokers=2, config=slow) as cluster:
        cluster.topics.create("orders", partitions=2, replication_factor=2)
        cluster.brokers[1].stop()
        began = time.monotonic()
        cluster.brokers[2].stop()
        assert time.monotonic() - began < 20
    assert "given up, as there is no other broker" in caplog.text


def test_a_follower_tells_of_its_own_log():
    """As Apache Kafka does: about its producers, and about its offsets for debugging clients (replica id -2)."""
    with Cluster(brokers=2, config=FAST) as cluster:
        cluster.topics.create("orders", partitions=1, replication_factor=2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True})
        for number in range(10):
            producer.produce("orders", str(number))
        assert producer.flush(PATIENCE_S) == 0
        leader = leader_of(cluster, "orders")
        told = {}
        for number, broker in cluster.brokers.items():
            with WireClient(broker.bootstrap_servers) as client:
                wanted = ListOffsetsTopic("orders", [ListOffsetsPartition(partition_index=0, timestamp=-1)])
                producers = client.ask(DescribeProducersRequest([TopicRequest("orders", [0])]), 0)
                told[number == leader] = (
                    [
                        client.ask(ListOffsetsRequest(each, topics=[wanted]), 4).topics[0].partitions[0]
                        for each in (-2, -1)
                    ],
                    producers.topics[0].partitions[0],
                )
        assert [(each.error_code, each.offset) for each in told[True][0]] == [(0, 10), (0, 10)]
        debugging, consumer = told[False][0]
        assert (debugging.error_code, debugging.offset) == (0, 10), "acks=all: the follower has it"
        assert consumer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [each.error_code for _, each in told.values()] == [0, 0]
        assert len({each.active_producers[0].producer_id for _, each in told.values()}) == 1


def test_a_running_broker_takes_another_number_of_fetchers():
    with Cluster(brokers=2, config=FAST) as cluster:
        cluster.topics.create("orders", partitions=8, replication_factor=2)
        change = ConfigEntry("num.replica.fetchers", "2", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        fetchers = cluster.brokers[1].node.replica_manager._fetchers
        cluster.wait_for(lambda _: {number for _, number in list(fetchers._fetchers)} == {0, 1}, timeout=PATIENCE_S)
