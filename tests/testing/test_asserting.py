"""Assertions about the content of a broker, and their messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kbroker import Broker, Cluster
from kbroker.testing import assert_committed, assert_no_requests, assert_records, assert_requested
from kbroker.testing.asserting import Expected
from kbroker.testing.differences import Row, aligned, matched, shortened


@pytest.fixture(scope="module")
def made() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(made: Broker) -> Broker:
    made.reset()
    return made


def text(raised: pytest.ExceptionInfo[AssertionError]) -> list[str]:
    return str(raised.value).splitlines()


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    client = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "log_level": 0})
    client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    client.close()


@pytest.mark.parametrize(
    "expected",
    [
        ["one", "two"],
        [b"one", ("b", "two")],
        [{"key": None, "offset": 0}, {"headers": [("trace", "7")], "partition": 0}],
        [{"timestamp": 1_000}, {"transaction": None, "value": b"two"}],
    ],
)
def test_records_as_expected(broker: Broker, expected: list[Expected]) -> None:
    topic = broker.topics.create("orders")
    topic.produce("one", timestamp=1_000)
    topic.produce("two", key="b", headers=[("trace", b"7")])
    found = assert_records(topic, expected)
    assert [each.offset for each in found] == [0, 1]
    assert_records(topic, reversed(expected), in_any_order=True)


def test_a_difference_of_records_is_told_where_they_lie(broker: Broker) -> None:
    topic = broker.topics.create("orders")
    for number in range(9):
        topic.produce(f"v{number}", key="k")
    topic.produce(None, key="gone")
    topic.produce(b"\xff" * 100)
    expected: list[Expected] = [*(f"v{number}" for number in range(7)), ("k", "seven"), "v8", ("gone", None)]
    with pytest.raises(AssertionError) as raised:
        assert_records(topic, expected)
    assert text(raised) == [
        "topic orders: 1 of 10 expected records missing, 2 not expected",
        "    ... 5 more",
        "    0@5    'k': 'v5'",
        "    0@6    'k': 'v6'",
        "  -        'k': 'seven'",
        "  + 0@7    'k': 'v7'",
        "    0@8    'k': 'v8'",
        "    0@9    'gone': null",
        f"  + 0@10   {repr(bytes([255]) * 100)[:60]}... (100 long)",
    ]


def test_fields_that_a_test_asks_for_stand_in_the_difference(broker: Broker) -> None:
    topic = broker.topics.create("orders")
    topic.produce("one", headers=[("attempt", b"1")])
    with pytest.raises(AssertionError) as raised:
        assert_records(topic, [{"value": "one", "headers": [("attempt", "2")]}])
    assert text(raised)[1:] == ["  -        'one', headers [attempt='2']", "  + 0@0    'one', headers [attempt='1']"]


def test_what_no_consumer_gets_is_told_apart(broker: Broker) -> None:
    topic = broker.topics.create("orders")
    client = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "log_level": 0})
    client.init_transactions(10)
    for value, ends in (("aborted", client.abort_transaction), ("kept", client.commit_transaction)):
        client.begin_transaction()
        client.produce("orders", value)
        assert client.flush(10) == 0
        ends(10)
    assert_records(topic, ["kept"])
    assert_records(topic, [{"transaction": "aborted"}, {"transaction": "committed"}], isolation="read_uncommitted")
    with pytest.raises(AssertionError) as raised:
        assert_records(topic, ["aborted", "kept"])
    assert text(raised) == [
        "topic orders: 1 of 2 expected records missing, 0 not expected",
        "  -        'aborted'",
        "  . 0@0    'aborted', aborted",
        "    0@2    'kept', committed",
    ]
    client.close()


def test_records_that_come_in_time(broker: Broker) -> None:
    topic = broker.topics.create("orders", partitions=2)
    later = threading.Timer(0.05, lambda: topic.produce("late", partition=1))
    later.start()
    assert_records(topic, ["late"], partition=1, timeout=10)
    later.join()
    with pytest.raises(AssertionError, match=r"^not within 0.05 s: orders-0: 1 of 1 expected"):
        assert_records(topic, ["late"], partition=0, timeout=0.05)


def test_what_cannot_be_expected(broker: Broker) -> None:
    topic = broker.topics.create("orders")
    with pytest.raises(TypeError, match=r"a record is expected as a value, \(key, value\) or a dict of fields, not 5"):
        assert_records(topic, [5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a record has no field 'header'"):
        assert_records(topic, [{"header": 5}])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="isolation is read_committed or"):
        assert_records(topic, [], isolation="serializable")


def test_offsets(broker: Broker) -> None:
    broker.topics.create("orders").produce("one")
    broker.topics.create("bills").produce("one")
    group = broker.groups["billing"]
    assert_committed(group, {("orders", 0): None})
    commit(broker, "billing", "orders", 1)
    commit(broker, "billing", "bills", 1)
    assert assert_committed(group, {("orders", 0): 1}) == {("orders", 0): 1, ("bills", 0): 1}
    with pytest.raises(AssertionError) as raised:
        assert_committed(group, {("orders", 0): 2, ("orders", 1): 1})
    assert text(raised) == [
        "group billing (Empty, 0 members): other offsets are committed than expected",
        "  ? bills-0  1",
        "  - orders-0  2",
        "  + orders-0  1",
        "  - orders-1  1",
        "  + orders-1  nothing",
    ]


def test_requests(broker: Broker) -> None:
    broker.topics.create("orders")
    requests = broker.requests
    requests.clear()
    assert_no_requests(requests, "Produce")
    with pytest.raises(TypeError, match="does not wait"):
        assert_no_requests(requests, "Produce", timeout=2)  # type: ignore[call-arg]
    client = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "shop", "log_level": 0})
    client.produce("orders", "one")
    assert client.flush(10) == 0
    (request,) = assert_requested(requests, "Produce", 1, topic="orders", client_id="shop", timeout=10)
    assert request.request.acks == -1
    assert_requested(requests, "Metadata")
    with pytest.raises(AssertionError) as raised:
        assert_requested(requests, "Produce", 2, topic="orders", timeout=0.01)
    first, *rest = text(raised)
    assert first == "not within 0.01 s: Produce about topic orders: expected 2, there is 1"
    assert rest == [f"  + {request!r}"]
    with pytest.raises(AssertionError) as raised:
        assert_no_requests(requests, "Produce")
    assert text(raised)[0] == "Produce: expected 0, there is 1"
    with pytest.raises(AssertionError) as raised:
        assert_requested(requests, "Produce", topic="bills")
    assert text(raised) == ["Produce about topic bills: expected at least one, there are none", f"  ? {request!r}"]
    client.close()


def asked_for_topics(servers: str) -> None:
    AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=10)


def test_what_was_never_recorded_is_not_taken_for_none() -> None:
    with Broker(requests=False) as broker:
        asked_for_topics(broker.bootstrap_servers)
        for times in (0, 1):
            with pytest.raises(AssertionError, match=r"Metadata: nothing is known of it: .*clients came before that"):
                assert_requested(broker.requests, "Metadata", times)
        broker.requests.clear()
        assert_no_requests(broker.requests, "Metadata")
    with Broker(requests=False) as broker:
        broker.topics.create("orders")
        assert_no_requests(broker.requests, "Metadata")  # no client existed that could have sent a request


def test_what_came_after_the_first_look_is_told() -> None:
    with Broker() as broker:
        asked_for_topics(broker.bootstrap_servers)
        requests = broker.requests
        asked_for_topics(broker.bootstrap_servers)
        assert_no_requests(requests, "Produce")


def test_requests_that_there_cannot_be(broker: Broker) -> None:
    with pytest.raises(ValueError, match="there is no API 'Producer'; did you mean 'Produce'"):
        assert_no_requests(broker.requests, "Producer")
    with pytest.raises(ValueError, match="no request of Heartbeat names a topic"):
        assert_no_requests(broker.requests, "Heartbeat", topic="orders")


def test_requests_to_a_cluster() -> None:
    with Cluster(brokers=1) as cluster:
        requests = cluster.requests
        client = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        client.produce("orders", "one")
        assert client.flush(20) == 0
        client.close()
        assert_requested(requests, "Produce", 1, topic="orders")
        with pytest.raises(ValueError, match="there is no API 'Producer'"):
            assert_no_requests(requests, "Producer")


def test_the_shortest_difference() -> None:
    def same(left: int, right: int) -> bool:
        return left == right

    assert aligned([1, 2, 3, 4], [1, 9, 3, 4, 5], same) == [(0, 0), (1, None), (None, 1), (2, 2), (3, 3), (None, 4)]
    assert aligned([], [], same) == []
    assert aligned([1, 1], [1], same) == [(0, 0), (1, None)]
    assert aligned([1, 2, 3], [2, 3, 1], same) == [(0, None), (1, 0), (2, 1), (None, 2)]
    assert matched([3, 1, 7], [1, 2, 3], same) == [(1, 0), (None, 1), (0, 2), (2, None)]


def test_much_that_differs_is_compared_at_once_and_told_in_part() -> None:
    pairs = aligned(range(1_000), range(5_000, 6_000), lambda left, right: left == right)
    assert len(pairs) == 2_000
    lines = shortened([Row("-", str(number)) for number in range(1_000)])
    assert lines[0] == "  - 0"
    assert lines[20:] == ["    ... 980 more"]
