"""Rights on views: readers need them on the view alone, and those who create or change one on its source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from kbroker import Acl, Broker

PATIENCE_S = 20.0
USERS = {"admin": "a-secret", "creator": "c-secret", "stranger": "s-secret", "reader": "r-secret"}
VIEW = {"view.source": "orders", "view.filter": "header.region = 'EU'"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    acls = [
        Acl(allow_principal="User:creator", operation=("Read", "Describe"), topic="orders"),
        Acl(allow_principal=("User:creator", "User:stranger"), operation="Create", cluster=True),
        Acl(
            allow_principal=("User:creator", "User:stranger"), operation=("AlterConfigs", "DescribeConfigs"),
            topic="eu", resource_pattern_type="prefixed",
        ),
        Acl(allow_principal="User:reader", consumer=True, topic="eu", group="g"),
        Acl(allow_principal="User:reader", operation="Describe", topic="eu-hidden"),
    ]  # fmt: skip
    with Broker({"super.users": "User:admin"}, users=USERS, acls=acls) as running:
        running.topics.create("orders")
        running.topics["orders"].produce("mine", headers=[("region", "EU")])
        running.topics["orders"].produce("secret", headers=[("region", "US")])
        yield running


def admin_of(broker: Broker, user: str) -> AdminClient:
    return AdminClient(broker.client_settings(user).confluent_kafka)


def create(broker: Broker, user: str, name: str, source: str = "orders") -> None:
    client = admin_of(broker, user)
    client.create_topics([NewTopic(name, config={**VIEW, "view.source": source})])[name].result(PATIENCE_S)


def set_filter(broker: Broker, user: str, name: str, text: str) -> None:
    entry = ConfigEntry("view.filter", text, incremental_operation=AlterConfigOpType.SET)
    client = admin_of(broker, user)
    changed = client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])])
    next(iter(changed.values())).result(PATIENCE_S)


def test_a_reader_of_the_view_sees_nothing_of_the_source(broker: Broker) -> None:
    create(broker, "creator", "eu")
    consumer = Consumer({**broker.client_settings("reader").confluent_kafka, "group.id": "g"})
    consumer.assign([TopicPartition("eu", 0, 0)])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"mine")
    assert consumer.poll(1) is None
    error = consumer.list_topics("orders", PATIENCE_S).topics["orders"].error
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()


def test_a_view_is_read_by_those_who_may(broker: Broker) -> None:
    create(broker, "admin", "eu-hidden")
    consumer = Consumer({**broker.client_settings("reader").confluent_kafka, "group.id": "g"})
    consumer.assign([TopicPartition("eu-hidden", 0, 0)])
    message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("source", ["orders", "missing"])
def test_a_view_needs_the_right_to_read_its_source(broker: Broker, source: str) -> None:
    with pytest.raises(KafkaException, match="the right to read its source") as refused:
        create(broker, "stranger", "eu-stolen", source)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, "the same, whether it exists or not"


def test_a_filter_cannot_be_widened_without_the_right_to_read_the_source(broker: Broker) -> None:
    create(broker, "admin", "eu-narrow")
    with pytest.raises(KafkaException, match="the right to read its source"):
        set_filter(broker, "stranger", "eu-narrow", "*")
    set_filter(broker, "creator", "eu-narrow", "*")
    assert broker.topics["eu-narrow"].values() == [b"mine", b"secret"]
