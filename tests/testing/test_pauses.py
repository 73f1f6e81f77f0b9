"""Clients that a quota throttles: a moved clock and a reset end the pause."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.clients import AlterClientQuotasRequest, AlteredEntity, AlteredEntry, OpData
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import build_batch

SOON_S = 5.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def paused(broker: Broker) -> Iterator[WireClient]:
    """A client that a quota throttles for minutes, with a request under way."""
    broker.topics.create("orders")
    entry = AlteredEntry([AlteredEntity("client-id", "app")], [OpData("producer_byte_rate", 1.0)])
    batch = PartitionProduceData(0, memoryview(build_batch([(1, None, b"x" * 100, ())])))
    produce = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData("orders", partition_data=[batch])])
    with WireClient(broker.bootstrap_servers, "admin") as admin:
        assert admin.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries[0].error_code == 0
    with WireClient(broker.bootstrap_servers, "app") as client:
        assert client.ask(produce, 9).throttle_time_ms > 60_000
        client.start(MetadataRequest(), 12)
        yield client


def test_a_reset_ends_it(broker: Broker, paused: WireClient) -> None:
    before = time.monotonic()
    broker.reset()
    assert paused.finish().throttle_time_ms == 0
    assert time.monotonic() - before < SOON_S


def test_a_clock_that_is_moved_shortens_it(broker: Broker, paused: WireClient) -> None:
    before = time.monotonic()
    broker.clock.advance(seconds=1)
    broker.clock.advance(hours=1)
    assert paused.finish().throttle_time_ms == 0
    assert time.monotonic() - before < SOON_S
