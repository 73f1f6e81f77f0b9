"""Brokers of a cluster over TLS: replication, a change of the protocol while they serve, and a broker with bad keys."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Cluster
from tests.cluster.reading import consumed
from tests.security.tls.conftest import Files

PATIENCE_S = 30
FAST = {
    "replica.fetch.backoff.ms": 100,
    "controlled.shutdown.retry.backoff.ms": 100,
    "replica.lag.time.max.ms": 2000,
    "replica.fetch.wait.max.ms": 200,
}
BOTH = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("strangers"), "another")


def until(what, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def own(cluster):
    return next(each for each in cluster.brokers.values() if each.is_running).node


def in_sync(cluster, topic):
    return set(own(cluster).member.state.partition(topic, 0).isr)


def create(client, topic):
    admin = AdminClient(client)
    made = admin.create_topics([NewTopic(topic, 1, 3, config={"min.insync.replicas": "2"})])
    made[topic].result(PATIENCE_S)


def test_a_cluster_whose_brokers_speak_nothing_but_tls(files):
    config = {
        **FAST,
        **files.listener(client_auth="required"),
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
    }
    with Cluster(brokers=3, config=config) as cluster:
        client = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "security.protocol": "SSL",
            "ssl.ca.location": files.ca,
            "ssl.certificate.location": files.client,
            "ssl.key.location": files.client,
        }
        create(client, "orders")
        producer = Producer({**client, "enable.idempotence": True})
        for number in range(1000):
            producer.produce("orders", str(number))
        assert producer.flush(PATIENCE_S) == 0
        assert consumed(client, "orders", 1000) == list(range(1000))
        assert in_sync(cluster, "orders") == {1, 2, 3}


@pytest.mark.long
def test_from_plaintext_to_tls_between_brokers_under_load(files):
    config = {**FAST, **files.listener(), "listeners": BOTH, "inter.broker.listener.name": "PLAINTEXT"}
    with Cluster(brokers=3, config=config) as cluster:
        addresses = ",".join(each.bootstrap_servers.split(",")[0] for each in cluster.brokers.values())
        client = {"bootstrap.servers": addresses}
        create(client, "orders")
        producer = Producer({**client, "enable.idempotence": True})
        failed, sent, enough = [], 0, threading.Event()

        def produce():
            nonlocal sent
            while not enough.is_set():
                producer.produce("orders", str(sent), on_delivery=lambda error, _: error and failed.append(error))
                sent += 1
                producer.poll(0.002)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            for broker in cluster.brokers.values():
                broker.stop()
                broker._settings["inter.broker.listener.name"] = "SSL"
                broker.start()
                until("all are in sync", lambda: in_sync(cluster, "orders") == {1, 2, 3})
        finally:
            enough.set()
            thread.join()
        assert producer.flush(PATIENCE_S) == 0
        assert not failed
        assert consumed(client, "orders", sent) == list(range(sent))


@pytest.mark.long
def test_a_broker_with_bad_keys_joins_nothing_and_the_others_go_on(files, strangers):
    config = {**FAST, **files.listener(client_auth="required"), "inter.broker.listener.name": "SSL"}
    config |= {"listeners": BOTH}
    with Cluster(brokers=3, config=config) as cluster:
        # The third broker's address is left out: like a Java broker, it knows no topic, and would say so.
        addresses = ",".join(cluster.brokers[each].bootstrap_servers.split(",")[0] for each in (1, 2))
        client = {"bootstrap.servers": addresses}
        create(client, "orders")
        producer = Producer({**client, "enable.idempotence": True})

        def produce(first):
            for number in range(first, first + 100):
                producer.produce("orders", str(number))
            assert producer.flush(PATIENCE_S) == 0

        produce(0)
        third = cluster.brokers[3]
        third.stop()
        right = dict(third._settings)
        third._settings |= {"ssl.keystore.location": strangers.server, "ssl.truststore.location": strangers.ca}
        third.start()
        produce(100)
        assert in_sync(cluster, "orders") == {1, 2}
        third.stop()
        third._settings = {**right, "listeners": third._settings["listeners"]}
        third.start()
        until("it is in sync again", lambda: in_sync(cluster, "orders") == {1, 2, 3})
        assert consumed(client, "orders", 200) == list(range(200))
