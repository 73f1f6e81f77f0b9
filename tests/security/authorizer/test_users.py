"""Authenticated users, each with separate rights, on connections of one broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kbroker import Broker
from tests.security.authorizer.served import STANDARD

WAIT_S = 20
JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_admin="admin-secret" user_alice="alice-secret" user_bob="bob-secret";'
)


@pytest.fixture(scope="module")
def broker():
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": STANDARD,
        "super.users": "User:admin",
    }
    with Broker(settings) as running:
        yield running


def client(broker, name):
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": name,
        "sasl.password": f"{name}-secret",
    }


def send(broker, name):
    outcomes = []
    producer = Producer({**client(broker, name), "message.timeout.ms": WAIT_S * 1000})
    producer.produce("orders", b"x", on_delivery=lambda error, _message: outcomes.append(error))
    assert producer.flush(WAIT_S) == 0
    producer.close()
    (error,) = outcomes
    return None if error is None else error.code()


def test_each_user_has_his_own_rights(broker):
    admin = AdminClient(client(broker, "admin"))
    for future in admin.create_topics([NewTopic("orders", 1, 1)]).values():
        future.result(WAIT_S)
    acl = AclBinding(
        ResourceType.TOPIC, "ord", ResourcePatternType.PREFIXED, "User:alice", "*", AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    for future in admin.create_acls([acl]).values():
        future.result(WAIT_S)
    assert send(broker, "alice") is None
    assert send(broker, "bob") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert send(broker, "admin") is None
