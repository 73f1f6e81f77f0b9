"""confluent-kafka with group.protocol=consumer, as applications use it, against an embedded broker."""

from __future__ import annotations

import time
from itertools import count

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker import Broker

DEADLINE_SECONDS = 60
_names = count()


@pytest.fixture(scope="module")
def broker():
    settings = {
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.assignment.interval.ms": "0",
        "group.initial.rebalance.delay.ms": "100",
    }
    with Broker(settings) as running:
        yield running


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


@pytest.fixture
def topic(admin):
    name = f"topic-{next(_names)}"
    create(admin, name, 4)
    return name


@pytest.fixture
def member(broker):
    consumers = []

    def join(group, topics, **options):
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **options,
            }
        )
        consumer.subscribe(topics)
        consumers.append(consumer)
        return consumer

    yield join
    for consumer in consumers:
        consumer.close()


def create(admin, name, partitions):
    admin.create_topics([NewTopic(name, partitions)])[name].result(DEADLINE_SECONDS)


def produce(broker, topic, values):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 4)
    assert producer.flush(DEADLINE_SECONDS) == 0
    producer.close()


def poll_until(condition, *consumers):
    """Poll all consumers until a condition holds; return what they were given."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    messages = []
    while not condition(messages):
        assert time.monotonic() < deadline, ([c.assignment() for c in consumers], len(messages))
        for consumer in consumers:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                messages.append(message)
    return messages


def owned(consumer):
    return {(each.topic, each.partition) for each in consumer.assignment()}


def test_one_member_consumes_commits_and_goes_on(broker, topic, member):
    values = [b"%d" % number for number in range(20)]
    produce(broker, topic, values)
    first = member("thin", [topic])
    messages = poll_until(lambda found: len(found) == 20, first)
    assert sorted(m.value() for m in messages) == sorted(values)
    first.commit(asynchronous=False)
    assert {each.offset for each in first.committed([TopicPartition(topic, p) for p in range(4)])} == {5}
    first.close()
    produce(broker, topic, [b"more"] * 4)
    second = member("thin", [topic])
    assert [m.value() for m in poll_until(lambda found: len(found) == 4, second)] == [b"more"] * 4
