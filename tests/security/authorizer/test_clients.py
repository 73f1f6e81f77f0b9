"""Real clients with an authorizer: their admin APIs, and the errors that producers and consumers get."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, KafkaAdminClient
from kafka.admin import ResourcePattern as KafkaPythonPattern
from kafka.admin import ResourceType as KafkaPythonType

from kbroker import Broker
from tests.security.authorizer.served import STANDARD

WAIT_S = 20


@pytest.fixture(scope="module")
def broker():
    """Nobody authenticates: who is about to lose a right on a topic still may administer it."""
    with Broker({"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true"}) as running:
        yield running


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def binding(name, operation, permission=AclPermissionType.ALLOW, who="User:ANONYMOUS", kind=ResourceType.TOPIC):
    return AclBinding(kind, name, ResourcePatternType.LITERAL, who, "*", operation, permission)


def create(admin, *bindings):
    for future in admin.create_acls(list(bindings)).values():
        future.result(WAIT_S)


def test_confluent_kafkas_admin(admin):
    some = [
        binding("admin", AclOperation.READ),
        binding("admin", AclOperation.WRITE, AclPermissionType.DENY, "User:bob"),
        binding("group", AclOperation.ALL, kind=ResourceType.GROUP),
    ]
    create(admin, *some)
    wanted = AclBindingFilter(
        ResourceType.ANY, "admin", ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(admin.describe_acls(wanted).result(WAIT_S)) == set(some[:2])
    (gone,) = admin.delete_acls([wanted]).values()
    assert set(gone.result(WAIT_S)) == set(some[:2])
    assert admin.describe_acls(wanted).result(WAIT_S) == []


def test_kafka_pythons_admin(broker):
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        pattern = KafkaPythonPattern(KafkaPythonType.TOPIC, "python")
        acl = ACL("User:carol", "*", ACLOperation.READ, ACLPermissionType.ALLOW, pattern)
        made = client.create_acls([acl])
        assert made["failed"] == []
        wanted = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)
        found, _ = client.describe_acls(wanted)
        assert found == [acl]
        ((_, gone, _),) = client.delete_acls([wanted])
        assert [each[0] if isinstance(each, tuple) else each for each in gone] == [acl]
    finally:
        client.close()


def test_producers_and_consumers_are_told(broker, admin):
    for future in admin.create_topics([NewTopic("told", 1, 1)]).values():
        future.result(WAIT_S)
    outcomes = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    def send():
        producer.produce("told", b"x", on_delivery=lambda error, _message: outcomes.append(error))
        assert producer.flush(WAIT_S) == 0
        return outcomes.pop()

    assert send() is None
    create(admin, binding("told", AclOperation.READ))
    assert send().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "told", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["told"])
    message = consumer.poll(WAIT_S)
    assert message.value() == b"x"
    consumer.close()
    create(admin, binding("told", AclOperation.WRITE))
    producer.list_topics("told", WAIT_S)  # librdkafka's produce() raises until Metadata has told it of the topic again
    assert send() is None
    create(admin, binding("told", AclOperation.READ, AclPermissionType.DENY))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "told again"})
    consumer.subscribe(["told"])
    told = consumer.poll(WAIT_S)
    assert told.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    producer.close()


def test_a_group_that_is_forbidden(broker, admin):
    create(admin, binding("forbidden", AclOperation.READ, who="User:bob", kind=ResourceType.GROUP))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "forbidden"})
    consumer.subscribe(["told"])
    told = consumer.poll(WAIT_S)
    assert told.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as refused:
        admin.describe_consumer_groups(["forbidden"])["forbidden"].result(WAIT_S)
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    consumer.close()
