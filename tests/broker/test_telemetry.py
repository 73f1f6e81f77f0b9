"""Clients' metrics over the wire (KIP-714): when APIs are advertised, what is subscribed, and the result of a push."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.wire.client import WireClient
from kbroker import Broker, Cluster
from kbroker.protocol.compression import compress
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.clients import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
    ListConfigResourcesRequest,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.telemetry.instances import Client, Push
from tests.tries import tries

ME = b"client-instance1"
GET, PUSH, METRICS = 71, 72, 16


class Takes:
    """A receiver that keeps what it receives."""

    def __init__(self) -> None:
        self.taken: list[tuple[Client, Push]] = []
        self.forgotten: list[bytes] = []
        self.error: Exception | None = None
        self.may_go_on: asyncio.Event | None = None
        self.began = threading.Event()

    async def export(self, client: Client, push: Push) -> None:
        self.began.set()
        if self.may_go_on is not None:
            await self.may_go_on.wait()
        if self.error is not None:
            raise self.error
        self.taken.append((client, push))

    def forget(self, instance_id: bytes) -> None:
        self.forgotten.append(instance_id)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def receive(broker: Broker) -> Takes:
    receiver = Takes()
    telemetry = broker.node.services.telemetry
    assert telemetry is not None
    telemetry.receiver = receiver
    return receiver


def advertised(client: WireClient) -> set[int]:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="7")
    return {each.api_key for each in client.ask(request, 4).api_keys} & {GET, PUSH}


def subscribe(client: WireClient, name: str = "s", **configs: str) -> ErrorCode:
    entries = [IncrementalConfig(key.replace("_", "."), 0, value) for key, value in configs.items()]
    request = IncrementalAlterConfigsRequest(resources=[IncrementalResource(METRICS, name, entries)])
    return ErrorCode(client.ask(request, 1).responses[0].error_code)


def wanted(client: WireClient, instance_id: bytes) -> list[str]:
    answer = client.ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)
    assert answer.error_code == 0
    found: list[str] = answer.requested_metrics
    return found


def push(
    client: WireClient, metrics: bytes, *, codec: int = 0, instance: bytes = ME, terminating: bool = False
) -> ErrorCode:
    asked = client.ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance), 0)
    request = PushTelemetryRequest(
        client_instance_id=instance,
        subscription_id=asked.subscription_id,
        terminating=terminating,
        compression_type=codec,
        metrics=metrics,
    )
    return ErrorCode(client.ask(request, 0).error_code)


def listed(client: WireClient) -> list[str]:
    return sorted(each.resource_name for each in client.ask(ListConfigResourcesRequest(), 0).config_resources)


def test_the_apis_are_told_of_where_somebody_takes_what_is_pushed(broker: Broker) -> None:
    with WireClient(broker.bootstrap_servers) as client:
        assert advertised(client) == set()
        assert wanted(client, ME) == [], "and served all the same, as in Kafka"
        receive(broker)
        assert advertised(client) == {GET, PUSH}


def test_a_cluster_has_neither() -> None:
    with Cluster(brokers=1) as cluster, WireClient(cluster.bootstrap_servers) as client:
        assert advertised(client) == set()
        answer = client.ask(GetTelemetrySubscriptionsRequest(client_instance_id=ME), 0)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert client.ask(PushTelemetryRequest(client_instance_id=ME), 0).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert subscribe(client, metrics="*") == ErrorCode.INVALID_REQUEST
        assert listed(client) == []


def test_a_receiver_is_told_who_pushes_what(broker: Broker) -> None:
    receiver = receive(broker)
    with WireClient(broker.bootstrap_servers, "app") as client:
        advertised(client)
        assert subscribe(client, metrics="*", interval_ms="5000") == 0
        packed = compress(4, b"metrics")
        assert push(client, packed, codec=4, terminating=True) == 0
    told = Client(ME, "app", "test", "7", "127.0.0.1", "User:ANONYMOUS")
    assert receiver.taken == [(told, Push(4, packed, 5000, True, 1 << 20))]
    with WireClient(broker.bootstrap_servers, None) as silent:
        assert push(silent, b"x", instance=b"client-instance2") == 0
    assert receiver.taken[1][0] == Client(b"client-instance2", "", "unknown", "unknown", "127.0.0.1", "User:ANONYMOUS")


def test_an_empty_push_is_nothing_and_an_empty_last_one_the_end(broker: Broker) -> None:
    receiver = receive(broker)
    with WireClient(broker.bootstrap_servers, "app") as client:
        assert push(client, b"") == 0
        assert receiver.forgotten == []
        assert push(client, b"", instance=b"client-instance2", terminating=True) == 0
    assert receiver.forgotten == [b"client-instance2"]
    assert receiver.taken == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("no metrics"), ErrorCode.INVALID_RECORD),
        (ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED), ErrorCode.THROTTLING_QUOTA_EXCEEDED),
    ],
)
def test_what_a_receiver_does_not_take_is_told(broker: Broker, error: Exception, code: ErrorCode) -> None:
    receiver = receive(broker)
    receiver.error = error
    with WireClient(broker.bootstrap_servers, "app") as client:
        assert push(client, b"x") == code
    telemetry = broker.node.services.telemetry
    assert telemetry is not None
    assert (telemetry.exported, telemetry.failed) == (0, 1)


def test_a_receiver_that_takes_long_holds_up_nobody_else(broker: Broker) -> None:
    receiver = receive(broker)
    receiver.may_go_on = asyncio.Event()
    with WireClient(broker.bootstrap_servers) as slow, WireClient(broker.bootstrap_servers) as other:
        asked = slow.ask(GetTelemetrySubscriptionsRequest(client_instance_id=ME), 0)
        request = PushTelemetryRequest(client_instance_id=ME, subscription_id=asked.subscription_id, metrics=b"x")
        slow.start(request, 0)
        assert receiver.began.wait(20)
        assert advertised(other) == {GET, PUSH}
        assert receiver.taken == []
        assert broker._loop is not None
        broker._loop.call_soon_threadsafe(receiver.may_go_on.set)
        assert slow.finish().error_code == 0
    assert len(receiver.taken) == 1


def test_an_instance_ends_with_its_connection(broker: Broker) -> None:
    telemetry = broker.node.services.telemetry
    assert telemetry is not None
    with WireClient(broker.bootstrap_servers) as client:
        wanted(client, ME)
        assert len(telemetry) == 1
    broker.wait_for(lambda _: len(telemetry) == 0)


def test_who_is_meant_is_found_by_his_connection(broker: Broker) -> None:
    with WireClient(broker.bootstrap_servers, "app") as client, WireClient(broker.bootstrap_servers, "app") as silent:
        advertised(client)
        port = client._sock.getsockname()[1]
        for number, (match, is_meant) in enumerate(
            [
                (f"client_source_port={port}", True),
                ("client_source_port=[0-9]{2}", False),
                ("client_source_address=127[.]0[.]0[.]1", True),
                ("client_software_name=test,client_software_version=7", True),
                ("client_software_version=8", False),
                ("client_id=app", True),
            ]
        ):
            assert subscribe(client, metrics="m.", match=match) == 0
            assert wanted(client, number.to_bytes(16, "little")[:15] + b"c") == (["m."] if is_meant else []), match
        assert subscribe(client, metrics="m.", match="client_software_name=unknown") == 0
        assert wanted(silent, b"silent-instance1") == ["m."]
        assert wanted(client, b"client-instance9") == []


def test_subscriptions_are_kept_whatever_they_are_called(tmp_path: Path) -> None:
    names = ["..", "<default>", "a/b", "plain"]
    with Broker(data_dir=tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        for name in names:
            assert subscribe(client, name, metrics=f"{name}.") == 0
    with Broker(data_dir=tmp_path) as broker, WireClient(broker.bootstrap_servers) as client:
        assert listed(client) == names
        assert sorted(wanted(client, ME)) == [f"{name}." for name in names]
        assert subscribe(client, "more", metrics="more.") == 0
        broker.reset()
        assert listed(client) == names


def test_a_push_is_as_large_as_is_allowed() -> None:
    with Broker({"telemetry.max.bytes": "100"}) as broker, WireClient(broker.bootstrap_servers) as client:
        asked = client.ask(GetTelemetrySubscriptionsRequest(client_instance_id=ME), 0)
        assert asked.telemetry_max_bytes == 100
        assert push(client, bytes(101), instance=b"client-instance2") == ErrorCode.TELEMETRY_TOO_LARGE
        assert push(client, bytes(100), instance=b"client-instance3") == 0


@given(st.lists(st.tuples(st.integers(-2, 6), st.binary(max_size=60), st.booleans()), min_size=1, max_size=8))
@settings(max_examples=tries(60))
def test_no_push_is_too_odd(pushes: list[tuple[int, bytes, bool]]) -> None:
    codes = {0, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE}
    with WireClient(shared().bootstrap_servers) as client:
        for codec, data, terminating in pushes:
            instance = next(_INSTANCES).to_bytes(16, "big")
            assert push(client, data, codec=codec, instance=instance, terminating=terminating) in codes
            for packed in range(5):
                instance, cut = next(_INSTANCES).to_bytes(16, "big"), compress(packed, data)[:-1]
                assert push(client, cut, codec=packed, instance=instance) in codes
        assert GET not in advertised(client)


_INSTANCES = itertools.count(2)
_SHARED: list[Broker] = []


def shared() -> Broker:
    if not _SHARED:
        _SHARED.append(Broker())
        _SHARED[0].start()
    return _SHARED[0]


@pytest.fixture(autouse=True, scope="module")
def _end() -> Iterator[None]:
    yield
    while _SHARED:
        _SHARED.pop().stop()
