"""Users and ACLs of embedded brokers, and the settings with which each client library connects."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import KafkaProducer

from kbroker import Acl, Broker, Cluster, ConfigError
from kbroker.config.jaas import parse_jaas
from kbroker.embed_clients import MECHANISMS

PATIENCE_S = 30
USERS = {"admin": "admin-secret", "alice": 'a "quoted" \\ secret', "bob": "bob-secret"}
ADMIN = {"super.users": "User:admin"}


def write(settings, topic="orders"):
    """Produce a record with confluent-kafka; return the error, if any."""
    told = []
    producer = Producer({**settings.confluent_kafka, "message.timeout.ms": 10_000, "log_level": 0})
    producer.produce(topic, b"one", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(PATIENCE_S) == 0
    producer.close()
    return told[0] and told[0].code()


@pytest.mark.parametrize("tls", [False, True])
def test_every_mechanism_and_every_client(tls):
    with Broker(tls=tls, users=USERS) as broker:
        for mechanism in MECHANISMS:
            settings = broker.client_settings("alice", mechanism=mechanism)
            assert settings.security_protocol == ("SASL_SSL" if tls else "SASL_PLAINTEXT")
            assert write(settings) is None
            producer = KafkaProducer(**settings.kafka_python)
            producer.send("orders", b"two").get(PATIENCE_S)
            producer.close()
            asyncio.run(write_with_aiokafka(settings.aiokafka))
            java = settings.java
            (login,) = parse_jaas(f"Client {{ {java['sasl.jaas.config']} }};")["Client"]
            assert login.options == {"username": "alice", "password": USERS["alice"]}
            assert java["security.protocol"] == settings.security_protocol
            assert ("ssl.truststore.location" in java) is tls


async def write_with_aiokafka(settings):
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("orders", b"three")


def test_rights_in_the_words_of_kafka_acls():
    acls = [
        Acl(allow_principal="User:alice", producer=True, topic=["orders", "bills"]),
        Acl(allow_principal="User:bob", operation="Write", topic="or", resource_pattern_type="prefixed"),
        Acl(deny_principal="User:bob", deny_host="127.0.0.1", topic="orders-of-alice"),
    ]
    with Broker(ADMIN, users=USERS, acls=acls) as broker:
        admin = AdminClient(broker.client_settings("admin").confluent_kafka)
        admin.create_topics([NewTopic("orders-of-alice", 1, 1)])["orders-of-alice"].result(PATIENCE_S)
        alice, bob = broker.client_settings("alice"), broker.client_settings("bob")
        assert write(alice, "orders") is None
        assert write(alice, "bills") is None
        assert write(bob, "orders") is None
        assert write(bob, "bills") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert write(bob, "orders-of-alice") == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_without_an_acl_nobody_may_but_super_users():
    with Broker(ADMIN, users=USERS, acls=[]) as broker:
        assert write(broker.client_settings("alice")) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert write(broker.client_settings("admin")) is None


def test_users_and_rights_are_there_when_a_directory_is_used_again(tmp_path):
    acls = [Acl(allow_principal="User:alice", producer=True, topic="orders")]
    for _ in range(2):
        with Broker(data_dir=tmp_path, users=USERS, acls=acls) as broker:
            assert write(broker.client_settings("alice")) is None


def test_a_reset_leaves_users_and_rights_as_they_were_at_the_start():
    acls = [Acl(allow_principal="User:alice", producer=True, topic="orders")]
    with Broker(ADMIN, users=USERS, acls=acls) as broker:
        admin = AdminClient(broker.client_settings("admin").confluent_kafka)
        more = AclBinding(
            ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:bob", "*",
            AclOperation.WRITE, AclPermissionType.ALLOW,
        )  # fmt: skip
        admin.create_acls([more])[more].result(PATIENCE_S)
        assert write(broker.client_settings("alice")) is None
        assert write(broker.client_settings("bob")) is None
        broker.reset()
        assert write(broker.client_settings("alice")) is None
        assert write(broker.client_settings("bob")) == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_rights_by_certificate():
    acls = [Acl(allow_principal="User:CN=alice", producer=True, topic="orders")]
    with Broker(tls=True, acls=acls) as broker:
        settings = broker.client_settings(certificate="alice")
        assert write(settings) is None
        assert write(broker.client_settings()) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        producer = KafkaProducer(**settings.kafka_python)
        producer.send("orders", b"two").get(PATIENCE_S)
        producer.close()
        asyncio.run(write_with_aiokafka(settings.aiokafka))
        assert settings.java["ssl.keystore.location"] == settings.certificate


def test_clients_of_everybody():
    with Broker() as broker:
        settings = broker.client_settings()
        assert settings.confluent_kafka == {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "PLAINTEXT",
        }
        assert write(settings) is None
        producer = KafkaProducer(**settings.kafka_python)
        producer.send("orders", b"two").get(PATIENCE_S)
        producer.close()
        asyncio.run(write_with_aiokafka(settings.aiokafka))


def test_a_listener_beside_those_of_the_config():
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    with Broker({"listeners": listeners}, users=USERS) as broker:
        settings = broker.client_settings("bob")
        assert settings.bootstrap_servers == broker.bootstrap_servers.split(",")[1]
        assert write(settings) is None
    own = {"listeners": "PLAINTEXT://127.0.0.1:0"}
    with Broker(own, users=USERS) as broker, pytest.raises(ValueError, match="none with the protocol SASL_PLAINTEXT"):
        broker.client_settings("bob")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"users": {"alice": ""}}, "needs a name and a password"),
        ({"users": {"": "secret"}}, "needs a name and a password"),
        ({"users": {"alice": "secret\n"}}, "control character"),
        ({"users": {"alice": "secret${file:/a:b}"}}, "variable"),
        ({"users": ["alice"]}, r'^users is a dict of passwords by name, as \{"alice": "secret"\}, not a list$'),
        ({"users": {"alice": 5}}, "^user 'alice' needs a str as name and as password, not a int$"),
        ({"acls": ["allow alice"]}, "^acls is a list of kbroker.Acl, .*; not a str: 'allow alice'$"),
        ({"acls": "allow alice"}, "^acls is a list of kbroker.Acl, .* not a str$"),
        ({"acls": Acl(allow_principal="User:alice", producer=True, topic="a")}, "list of kbroker.Acl, .* not a Acl$"),
    ],
)
def test_users_that_cannot_be(arguments, said):
    with pytest.raises(ValueError, match=said) as caught:
        Broker(**arguments)
    assert "secret" not in str(caught.value).replace('{"alice": "secret"}', "")


def test_who_could_not_come():
    with pytest.raises(ConfigError, match=r"super\.users"):
        Broker(ADMIN, users=USERS).start()
    with Broker(users=USERS) as broker:
        for arguments, unknown in (({}, ""), ({"user": "carol"}, "; carol is not known")):
            with pytest.raises(ValueError, match=f"say which user: one of admin, alice, bob{unknown}$"):
                broker.client_settings(**arguments)
        with pytest.raises(ValueError, match="mechanism is one of"):
            broker.client_settings("alice", mechanism="GSSAPI")
        with pytest.raises(ValueError, match="tls=True"):
            broker.client_settings("alice", certificate="alice")
        assert "secret" not in repr(broker.client_settings("bob"))
    with Broker() as broker, pytest.raises(ValueError, match="has no users"):
        broker.client_settings("alice")
    with pytest.raises(ValueError, match="acls of a cluster need users or tls"):
        Cluster(acls=[])
    with pytest.raises(ValueError, match="users is a dict"):
        Cluster(users=["alice"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "orders"}, "say whose: allow_principal or deny_principal"),
        ({"allow_principal": "alice", "topic": "orders"}, "'alice' is not a principal like User:alice"),
        ({"allow_principal": "User:alice"}, "say which resource: topic, group, cluster, transactional_id"),
        ({"allow_principal": "User:alice", "consumer": True, "topic": "a"}, "consumer topic and group"),
        ({"allow_principal": "User:alice", "topic": "a", "operation": "Reed"}, "no operation Reed"),
        ({"allow_principal": "User:alice", "topic": "a", "resource_pattern_type": "match"}, "literal or prefixed"),
    ],
)
def test_acls_that_cannot_be(options, said):
    with pytest.raises(ValueError, match=said):
        Acl(**options)


@pytest.mark.parametrize("tls", [False, True])
def test_users_and_rights_of_a_cluster(tls):
    acls = [
        Acl(allow_principal="User:alice", producer=True, topic="orders"),
        Acl(allow_principal="User:bob", consumer=True, topic="orders", group="billing"),
    ]
    with Cluster(3, {"controlled.shutdown.retry.backoff.ms": 100}, tls=tls, users=USERS, acls=acls) as cluster:
        for mechanism in MECHANISMS:
            assert write(cluster.client_settings("alice", mechanism=mechanism)) is None
        bob = cluster.client_settings("bob")
        assert write(bob) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        consumer = Consumer({**bob.confluent_kafka, "group.id": "billing", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        assert len(consumer.consume(3, PATIENCE_S)) == 3
        consumer.close()
        cluster.brokers[1].stop()
        assert write(cluster.client_settings("alice")) is None


def test_a_cluster_by_certificates():
    acls = [Acl(allow_principal="User:CN=alice", producer=True, topic="orders")]
    with Cluster(2, tls=True, acls=acls) as cluster:
        assert cluster.certificates.ca
        assert write(cluster.client_settings(certificate="alice")) is None
        assert write(cluster.client_settings(certificate="bob")) == KafkaError.TOPIC_AUTHORIZATION_FAILED
