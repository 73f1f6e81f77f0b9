"""Framing, order, limits: how a connection handles bytes, whatever they mean."""

from __future__ import annotations

import gc
import struct
import time
import weakref

import pytest

from compat_tests.wire.client import CLOSED
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest, RequestHeader
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest


def frame(request, version, correlation=1):
    cls = type(request)
    header = RequestHeader(
        request_api_key=cls.KEY, request_api_version=version, correlation_id=correlation, client_id="t"
    )
    body = encode(header, 2 if version in cls.FLEXIBLE else 1) + encode(request, version)
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def topic(connect, request):
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    answer = connect().ask(CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1)], timeout_ms=5000), 7)
    assert answer.topics[0].error_code == 0
    return name


def correlation_ids(client, count):
    return [struct.unpack_from(">i", client.receive())[0] for _ in range(count)]


def test_byte_by_byte(connect):
    client = connect()
    for byte in frame(ApiVersionsRequest(), 0, 42):
        client.send_bytes(bytes([byte]))
    assert correlation_ids(client, 1) == [42]


def test_answers_come_in_the_order_of_requests(connect):
    client = connect()
    client.send_bytes(b"".join(frame(MetadataRequest(topics=[]), v % 14, i) for i, v in enumerate(range(1, 400))))
    assert correlation_ids(client, 399) == list(range(399))


def test_a_parked_request_holds_back_what_is_behind_it(connect, topic):
    client = connect()
    wait = FetchRequest(
        max_wait_ms=300,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=100)])],
    )
    started = time.monotonic()
    client.send_bytes(frame(wait, 11, 1) + frame(ApiVersionsRequest(), 0, 2))
    assert correlation_ids(client, 2) == [1, 2]
    assert time.monotonic() - started >= 0.29


def test_requests_pile_up_behind_a_parked_one_without_being_lost(connect, topic):
    client = connect()
    wait = FetchRequest(
        max_wait_ms=300,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=100)])],
    )
    many = 2000
    client.send_bytes(frame(wait, 11, 0) + b"".join(frame(MetadataRequest(topics=[]), 9, i + 1) for i in range(many)))
    assert correlation_ids(client, many + 1) == list(range(many + 1))


@pytest.mark.parametrize("size", [-1, -(2**31), 1_000_001, 2**31 - 1])
def test_an_impossible_frame_closes_the_connection(connect, size):
    client = connect()
    client.send_bytes(struct.pack(">i", size))
    assert client.receive() == CLOSED


def test_what_was_asked_before_a_bad_frame_is_answered(connect):
    client = connect()
    client.send_bytes(frame(ApiVersionsRequest(), 0, 5) + struct.pack(">i", -7))
    assert correlation_ids(client, 1) == [5]
    assert client.receive() == CLOSED


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0",
        struct.pack(">hhih", 999, 0, 1, -1),
        struct.pack(">hhih", -1, 0, 1, -1),
        struct.pack(">hhih", 3, 99, 1, -1),
        struct.pack(">hhih", 3, -1, 1, -1),
        struct.pack(">hhih", 4, 0, 1, -1),
        struct.pack(">hhih", 3, 1, 1, 500),
        struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff",
        struct.pack(">hhih", 0, 2, 1, -1) + b"\0" * 10,
    ],
    ids=[
        "empty",
        "one byte",
        "key",
        "negative key",
        "version",
        "negative version",
        "removed",
        "client id",
        "array",
        "old",
    ],
)
def test_what_cannot_be_parsed_or_is_not_served_closes_the_connection(connect, body):
    client = connect()
    client.send_bytes(struct.pack(">i", len(body)) + body)
    assert client.receive() == CLOSED


def test_a_large_frame_arrives_whole(connect, topic):
    client = connect()
    answer = client.ask(produce_request(topic, batch(100, size=9000)), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0
    read = client.ask(
        FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=10**7)])],
        ),
        11,
    )
    assert len(read.responses[0].partitions[0].records) > 900_000


def test_large_answers_keep_the_order_with_small_ones(connect, topic):
    """A file transfer and buffered responses share a socket: none may overtake another."""
    client = connect()
    for _ in range(4):
        client.ask(produce_request(topic, batch(100, size=9000)), 9)
    fetch = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=10**7)])],
    )
    requests, expected = [], []
    for i in range(60):
        requests.append(frame(fetch, 11, i) if i % 3 == 1 else frame(MetadataRequest(topics=[]), 9, i))
        expected.append(i)
    client.send_bytes(b"".join(requests))
    assert correlation_ids(client, 60) == expected


def test_a_client_that_leaves_while_it_waits_is_forgotten(broker, connect, topic):
    client = connect()
    wait = FetchRequest(
        max_wait_ms=60_000,
        min_bytes=1,
        topics=[FetchTopic(topic=topic, partitions=[FetchPartition(partition=0, partition_max_bytes=100)])],
    )
    client.send_bytes(frame(wait, 11, 1))
    partition = broker.node.replicas.get((topic, 0))
    until(lambda: partition.waiters)
    client.close()
    until(lambda: not partition.waiters)


def until(happened, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_connection_that_is_gone_leaves_nothing_to_collect(broker, connect, topic):
    """Connections open and close all day; cycles that they leave would wait for a collection that stops everything."""
    client = connect()
    assert client.ask(produce_request(topic, batch(1)), 9).responses[0].partition_responses[0].error_code == 0
    assert client.ask(produce_request(topic, batch(1)), 9).responses[0].partition_responses[0].error_code == 0
    server = broker.node.server
    held = [weakref.ref(each._outbox) for each in server._connections]
    gc.disable()
    try:
        client.close()
        until(lambda: sum(each() is None for each in held) >= 1)
    finally:
        gc.enable()
