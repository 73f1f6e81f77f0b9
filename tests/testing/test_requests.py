"""The list of requests: its bounds, and iterators that follow it while it changes."""

from __future__ import annotations

import logging
import socket
import struct
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, TopicPartition

from kbroker import Broker
from kbroker.testing import requests
from kbroker.testing.filters import Seen
from kbroker.testing.requests import Request, Requests
from kbroker.testing.subjects import Subjects


def begun(there: Requests, size: int = 1) -> Request:
    request = Request(Seen("Fetch", 1, "client", "User:alice", "PLAINTEXT", None, Subjects()), size, 0)
    there.add(request)
    return request


def answered(there: Requests, request: Request, answer: bytes = b"") -> None:
    there.end_request(request, answer, bytes, 1.0)


def test_the_answer_to_what_is_forgotten_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "KEPT_BYTES", 1000)
    there = Requests()
    under_way = [begun(there) for _ in range(3)]
    there.clear()
    kept = begun(there)
    for each in under_way:
        answered(there, each, b"x" * 400)
    assert list(there) == [kept]


def test_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "KEPT_BYTES", 1000)
    there = Requests()
    first, second = begun(there), begun(there)
    answered(there, second, b"x" * 500)
    answered(there, first, b"x" * 499)
    assert list(there) == [second]
    answered(there, begun(there), b"x" * 498)
    assert len(there) == 2


def test_who_follows_gets_each_as_it_is_answered() -> None:
    there = Requests()
    answered(there, begun(there))
    live = there.live(timeout=0.01)
    first, second = begun(there), begun(there)
    answered(there, second)
    answered(there, first)
    assert [next(live), next(live)] == [second, first]
    for _ in range(100):  # a new request may get the memory address of a forgotten one
        del first
        there.clear()
        first = begun(there)
        answered(there, first)
        assert next(live) is first
    assert not list(live)


def test_what_cannot_be_read_closes_the_connection_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    body = struct.pack(">hhih", 3, 1, 7, 1) + b"c" + struct.pack(">i", 1000)
    with Broker() as broker, caplog.at_level(logging.INFO, "kbroker"):
        assert not broker.requests
        host, _, port = broker.bootstrap_servers.partition(":")
        with socket.create_connection((host, int(port)), 10.0) as client:
            client.sendall(struct.pack(">i", len(body)) + body)
            assert client.recv(1) == b""
    (line,) = [each for each in caplog.records if each.name == "kbroker.network.connection"]
    assert line.levelno == logging.INFO
    assert "Metadata v1" in line.getMessage()


def test_what_was_asked_before_the_first_look_is_told_with_topics_that_are_gone() -> None:
    with Broker() as broker:
        settings = {"bootstrap.servers": broker.bootstrap_servers}
        broker.topics.create("orders", 2)
        producer = Producer({**settings, "client.id": "early"})
        for value in (b"x" * 10, b"y" * 100_000):  # short frames run at once, long frames in steps
            producer.produce("orders", value, partition=1)
            assert producer.flush(10) == 0
        consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest", fetch_max_wait_ms=10
        )
        consumer.assign([TopicPartition("orders", 1)])
        assert [len(next(consumer).value) for _ in range(2)] == [10, 100_000]
        deadline = time.monotonic() + 60
        while not any(each.next_metadata.epoch > 6 for each in consumer._fetcher._session_handlers.values()):
            consumer.poll(50)  # until a Fetch names no partition: its fetch session knows the partitions
            assert time.monotonic() < deadline
        consumer.close()
        producer.poll(0)
        broker.topics["orders"].delete()
        first, second = broker.requests.of("Produce", topic="orders")
        assert (first.client_id, first.seen.topics) == ("early", {"orders": {1}})
        assert [len(each.request.topic_data[0].partition_data[0].records) > 99_999 for each in (first, second)] == [
            False,
            True,
        ]
        assert [each.answer.responses[0].partition_responses[0].base_offset for each in (first, second)] == [0, 1]
        assert all(each.seen.topics for each in broker.requests.of("Fetch")[1:])
        assert any(not each.request.topics for each in broker.requests.of("Fetch", topic="orders"))


def test_a_broker_that_does_not_record_begins_at_the_first_look() -> None:
    with Broker(requests=False) as broker:
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10)
        assert not broker.requests
        AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10)
        assert broker.requests.of("Metadata")


def test_what_is_no_filter_is_told() -> None:
    requests = Requests()
    for wrong in ({"topics": "t"}, {"partition": 7}, {"topic": object()}):
        with pytest.raises(TypeError):
            requests.of("Produce", **wrong)  # type: ignore[arg-type]
