"""confluent-kafka with group.protocol=consumer, as applications use it, against an embedded broker."""

from __future__ import annotations

import time
from itertools import count

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest

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
    """Poll all consumers until a condition is true; return the received records."""
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


def test_two_members_share_a_topic_and_one_takes_over(broker, topic, member):
    produce(broker, topic, [b"%d" % number for number in range(40)])
    everything = {(topic, index) for index in range(4)}
    first = member("two", [topic])
    poll_until(lambda _: owned(first) == everything, first)
    second = member("two", [topic])
    poll_until(lambda _: len(owned(first)) == len(owned(second)) == 2, first, second)
    assert owned(first) | owned(second) == everything
    second.close()
    poll_until(lambda _: owned(first) == everything, first)


def test_a_static_member_that_comes_back_has_what_it_had(topic, member):
    static = member("static", [topic], **{"group.instance.id": "one"})
    other = member("static", [topic], **{"group.instance.id": "two"})
    poll_until(lambda _: len(owned(static)) == len(owned(other)) == 2, static, other)
    had, others = owned(static), owned(other)
    static.close()
    back = member("static", [topic], **{"group.instance.id": "one"})
    poll_until(lambda _: len(owned(back)) == 2, back, other)
    assert (owned(back), owned(other)) == (had, others)


@pytest.mark.long
def test_a_pattern_takes_in_topics_that_come_later(broker, topic, member, admin):
    pattern = f"^{topic}-.*"
    create(admin, f"{topic}-a", 2)
    first = member(
        "pattern", [pattern], **{"metadata.max.age.ms": "2000", "topic.metadata.refresh.interval.ms": "2000"}
    )
    poll_until(lambda _: owned(first) == {(f"{topic}-a", 0), (f"{topic}-a", 1)}, first)
    create(admin, f"{topic}-b", 1)
    poll_until(lambda _: (f"{topic}-b", 0) in owned(first), first)
    assert len(owned(first)) == 3


def test_a_topic_that_grows_is_shared_anew(topic, member, admin):
    first = member("grows", [topic])
    poll_until(lambda _: len(owned(first)) == 4, first)
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(DEADLINE_SECONDS)
    poll_until(lambda _: len(owned(first)) == 6, first)


@pytest.mark.long
def test_a_group_goes_to_the_new_protocol_and_back_while_it_works(broker, topic, member, admin):
    classic = {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"}
    classic["heartbeat.interval.ms"] = "200"
    old = member("moves", [topic], **classic)
    poll_until(lambda _: len(owned(old)) == 4, old)
    assert kind(admin, "moves") == ConsumerGroupType.CLASSIC
    new = member("moves", [topic])
    poll_until(lambda _: len(owned(old)) == len(owned(new)) == 2, old, new)
    assert kind(admin, "moves") == ConsumerGroupType.CONSUMER
    produce(broker, topic, [b"%d" % number for number in range(20)])
    messages = poll_until(lambda found: len(found) == 20, old, new)
    assert len({m.value() for m in messages}) == 20, "each record went to one member"
    old.commit(asynchronous=False)
    new.commit(asynchronous=False)
    new.close()
    poll_until(lambda _: len(owned(old)) == 4, old)
    assert kind(admin, "moves") == ConsumerGroupType.CLASSIC
    assert {each.offset for each in old.committed([TopicPartition(topic, p) for p in range(4)])} == {5}


def kind(admin, group):
    listed = admin.list_consumer_groups().result(DEADLINE_SECONDS)
    return next(each.type for each in listed.valid if each.group_id == group)


def test_a_group_lives_through_a_restart_of_its_broker(tmp_path):
    settings = {"group.consumer.heartbeat.interval.ms": "200", "group.consumer.min.heartbeat.interval.ms": "100"}
    values = [b"%d" % number for number in range(20)]
    with Broker(settings, data_dir=str(tmp_path)) as first:
        address, port = first.bootstrap_servers, int(first.bootstrap_servers.rpartition(":")[2])
        create(AdminClient({"bootstrap.servers": address}), "kept", 4)
        produce(first, "kept", values)
        config = {"bootstrap.servers": address, "group.id": "kept", "group.protocol": "consumer"}
        config |= {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(config)
        consumer.subscribe(["kept"])
        poll_until(lambda found: len(found) == 20, consumer)
        consumer.commit(asynchronous=False)
        before = described(address, "kept")
    with Broker(settings, data_dir=str(tmp_path), port=port) as second:
        produce(second, "kept", [b"more"] * 4)
        found = []
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(found) < 4:
            assert time.monotonic() < deadline
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
        assert found == [b"more"] * 4
        after = described(address, "kept")
        assert (after.group_epoch, after.assignment_epoch) == (before.group_epoch, before.assignment_epoch)
        assert [m.member_id for m in after.members] == [m.member_id for m in before.members], "it was not even missed"
        consumer.close()


def described(address, group):
    """Return the ConsumerGroupDescribe response for a group."""
    with WireClient(address) as client:
        (found,) = client.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups
    return found
