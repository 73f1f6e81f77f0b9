"""Brokers that authenticate to each other: with PLAIN, with SCRAM, with a wrong password, and with shared users."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from kbroker import Cluster
from kbroker.broker.membership import prepare
from kbroker.clock import SystemClock
from kbroker.controller.member.entity_configs import EntityConfigs
from kbroker.security.sasl.add_scram import parse_user
from kbroker.security.sasl.scram_credential import USERS

PATIENCE_S = 30
MODULES = "org.apache.kafka.common.security"
BETWEEN = "listener.name.sasl_plaintext"
PLAIN_LOGIN = (
    f'{MODULES}.plain.PlainLoginModule required username="broker" password="%s" user_broker="b" user_alice="a";'
)
SCRAM_LOGIN = f'{MODULES}.scram.ScramLoginModule required username="broker" password="b";'
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    f"{BETWEEN}.plain.sasl.jaas.config": PLAIN_LOGIN % "b",
    f"{BETWEEN}.scram-sha-256.sasl.jaas.config": SCRAM_LOGIN,
    "replica.fetch.backoff.ms": "100",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "500",
    "controlled.shutdown.retry.backoff.ms": "100",
}


class Seeded(Cluster):
    """A cluster that knows a user before the first broker starts, as --add-scram provides."""

    async def _start_all(self):
        tree = self.ensemble.connect()
        await prepare(tree)
        user = parse_user("SCRAM-SHA-256=[name=broker,password=b]")
        await EntityConfigs(tree, SystemClock()).change(USERS, user.entity, user.revise)
        await tree.close()
        await super()._start_all()


def client(cluster, name="alice", password="a", mechanism="PLAIN"):
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
        "log_level": 0,
    }


def create(cluster):
    admin = AdminClient(client(cluster))
    config = {"min.insync.replicas": "2"}
    admin.create_topics([NewTopic("orders", 3, 3, config=config)])["orders"].result(PATIENCE_S)


def write(cluster, count, **settings):
    failed = []
    producer = Producer({**client(cluster), **settings, "acks": "all"})
    for number in range(count):
        producer.produce("orders", str(number), on_delivery=lambda error, _message: error and failed.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert not failed


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def in_sync(cluster):
    state = next(each for each in cluster.brokers.values() if each.is_running).node.member.state
    return [set(state.partition("orders", index).isr) for index in range(3)]


@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_brokers_replicate_and_take_over(mechanism):
    with Seeded(3, {**SETTINGS, "sasl.mechanism.inter.broker.protocol": mechanism}) as cluster:
        create(cluster)
        until(lambda: in_sync(cluster) == [{1, 2, 3}] * 3)
        write(cluster, 100)
        cluster.brokers[1].stop()
        write(cluster, 100)
        cluster.brokers[1].start()
        until(lambda: in_sync(cluster) == [{1, 2, 3}] * 3)


@pytest.mark.long
def test_brokers_log_in_again_and_nothing_is_lost():
    settings = {**SETTINGS, "sasl.mechanism.inter.broker.protocol": "PLAIN", "connections.max.reauth.ms": "1500"}
    with Cluster(3, settings) as cluster:
        create(cluster)
        ends = time.monotonic() + 4
        while time.monotonic() < ends:
            write(cluster, 10)
        assert in_sync(cluster) == [{1, 2, 3}] * 3


@pytest.mark.long
def test_a_broker_with_a_wrong_password_is_in_sync_with_nothing_and_the_others_go_on():
    cluster = Cluster(3, {**SETTINGS, "sasl.mechanism.inter.broker.protocol": "PLAIN"})
    cluster.brokers[3]._settings[f"{BETWEEN}.plain.sasl.jaas.config"] = PLAIN_LOGIN % "wrong"
    with cluster:
        create(cluster)
        state = cluster.brokers[1].node.member
        led = [index for index in range(3) if state.state.partition("orders", index).leader != 3]
        assert led
        until(lambda: all(set(state.state.partition("orders", index).isr) == {1, 2} for index in led))
        failed = []
        producer = Producer(client(cluster))
        for index in led:
            producer.produce("orders", b"x", partition=index, on_delivery=lambda e, _m: e and failed.append(e))
        assert producer.flush(PATIENCE_S) == 0
        assert not failed


def test_all_brokers_know_a_user_and_then_no_more():
    with Cluster(3, {**SETTINGS, "sasl.mechanism.inter.broker.protocol": "PLAIN"}) as cluster:
        admin = AdminClient(client(cluster))
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        added = admin.alter_user_scram_credentials([UserScramCredentialUpsertion("zoë", info, b"secret")])
        added["zoë"].result(PATIENCE_S)
        nodes = [each.node for each in cluster.brokers.values()]

        def known(node):
            return node.credential_of("zoë", "SCRAM-SHA-256") is not None

        until(lambda: all(map(known, nodes)))
        for each in cluster.brokers.values():
            settings = {
                **client(cluster, "zoë", "secret", "SCRAM-SHA-256"),
                "bootstrap.servers": each.bootstrap_servers,
            }
            assert AdminClient(settings).list_topics(timeout=PATIENCE_S).brokers
        gone = UserScramCredentialDeletion("zoë", ScramMechanism.SCRAM_SHA_256)
        admin.alter_user_scram_credentials([gone])["zoë"].result(PATIENCE_S)
        until(lambda: not any(map(known, nodes)))
