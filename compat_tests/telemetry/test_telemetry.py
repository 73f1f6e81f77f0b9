"""Clients that push their metrics: both brokers' answers, and what the Java producer and librdkafka push to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from compat_tests.harness.brokers import BrokerProcess
from compat_tests.harness.jvm import run_java
from compat_tests.telemetry.receiving import ReceivingKafka, ReceivingKBroker, java_producer
from compat_tests.wire.client import WireClient
from kbroker.protocol.compression import compress
from kbroker.protocol.messages.clients import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.wire import uuid_text
from tests.metrics.pushes import data, gauge, total

pytestmark = pytest.mark.java

GET, PUSH = 71, 72
WAIT_S = 60.0
GOOD = data(gauge("org.apache.kafka.test.gauge", 2.5, topic="t"), total("org.apache.kafka.test.total", 3))


@pytest.fixture(scope="module")
def kafka(kafka_libs: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceivingKafka]:
    with ReceivingKafka(kafka_libs, tmp_path_factory.mktemp("receiving-kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def kbroker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReceivingKBroker]:
    with ReceivingKBroker(tmp_path_factory.mktemp("receiving-kbroker")) as broker:
        yield broker


def until(happened: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, f"waited {WAIT_S:.0f} s: {what()}"
        time.sleep(0.05)


def subscribe(broker: BrokerProcess, name: str, **configs: str) -> None:
    entries = [IncrementalConfig(key.replace("_", "."), 0, value) for key, value in configs.items()]
    request = IncrementalAlterConfigsRequest(resources=[IncrementalResource(16, name, entries)])
    with WireClient(broker.bootstrap) as client:
        assert client.ask(request, 1).responses[0].error_code == 0


def answers(broker: BrokerProcess) -> dict[str, Any]:
    """Return a broker's answers to valid and invalid pushes."""
    found: dict[str, Any] = {}
    with WireClient(broker.bootstrap, "answers") as client:
        software = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        for version in range(5):
            keys = client.ask(software, version).api_keys
            found[f"advertised v{version}"] = {
                each.api_key: (each.min_version, each.max_version) for each in keys if each.api_key in (GET, PUSH)
            }
        pushes = {
            "nothing": (0, b""),
            "no MetricsData": (0, b"\xff\xff"),
            "cut off": (0, GOOD[:-3]),
            "packed otherwise": (1, compress(4, GOOD)),
            **{f"codec {codec}": (codec, compress(codec, GOOD)) for codec in range(5)},
            **{f"codec {codec}, cut off": (codec, compress(codec, GOOD)[:-9]) for codec in range(5)},
            **{f"codec {codec}, of garbage": (codec, compress(codec, b"\xff" * 50)) for codec in range(5)},
        }
        for number, (name, (codec, pushed)) in enumerate(pushes.items()):
            instance_id = f"telemetry{number:07}".encode()
            asked = client.ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)
            push = PushTelemetryRequest(
                client_instance_id=instance_id,
                subscription_id=asked.subscription_id,
                compression_type=codec,
                metrics=pushed,
            )
            found[name] = client.ask(push, 0).error_code
            again = client.ask(GetTelemetrySubscriptionsRequest(client_instance_id=instance_id), 0)
            found[f"{name}, then asked"] = again.error_code
    return found


def test_both_answer_alike_and_take_the_same(kafka: ReceivingKafka, kbroker: ReceivingKBroker) -> None:
    theirs, ours = answers(kafka), answers(kbroker)
    assert ours == theirs
    assert ours["advertised v4"] == {GET: (0, 0), PUSH: (0, 0)}
    taken = [each.instance_id for each in kafka.received() if each.data == GOOD]
    assert len(taken) == 5, "once with each codec"
    for instance_id in taken:
        values = kbroker.page(client_instance_id=instance_id, client_id="answers", client_software_name="test")
        assert values["org_apache_kafka_test_gauge"] == 2.5
        assert values["org_apache_kafka_test_total"] == 3
        assert values["kbroker_telemetry_client_info"] == 1
    assert {each.interval_ms for each in kafka.received()} == {300_000}
    assert uuid_text(b"telemetry0000001") not in kbroker.names_of(uuid_text(b"telemetry0000001"))


def test_a_java_producer_pushes_the_same_to_both(
    kafka_libs: Any, kafka: ReceivingKafka, kbroker: ReceivingKBroker
) -> None:
    names: dict[str, set[str]] = {}
    for broker in (kafka, kbroker):
        subscribe(broker, "java", metrics="org.apache.kafka.producer.", interval_ms="300", match="client_id=java-[0-9]")
        with java_producer(kafka_libs, broker.bootstrap, "pushed", "java-1") as instance_id:
            assert len(instance_id) == 22
            topical = "org_apache_kafka_producer_topic_record_send_total"
            until(lambda: topical in broker.names_of(instance_id), lambda: broker.names_of(instance_id))  # noqa: B023
            if broker is kbroker:
                page = {"client_instance_id": instance_id, "client_id": "java-1"}
                sent = "org_apache_kafka_producer_record_send_total"
                until(lambda: kbroker.page(**page).get(sent) == 10, lambda: kbroker.page(**page))  # noqa: B023
                assert kbroker.page(**page, client_software_name="apache-kafka-java")[sent] == 10
                assert kbroker.page(**page, topic="pushed")[topical] == 10
                assert kbroker.page(**page, client_software_version="4.4.0")["kbroker_telemetry_client_info"] == 1
            names[broker.name] = broker.names_of(instance_id)
    assert names["kbroker"] == names["apache"]


def test_librdkafka_pushes_the_same_to_both(kafka: ReceivingKafka, kbroker: ReceivingKBroker) -> None:
    pushed = "org_apache_kafka_producer_record_queue_time_avg"
    before = {each.instance_id for each in kafka.received()}

    def to_kafka() -> set[str]:
        new = {each.instance_id for each in kafka.received()} - before
        return set().union(*map(kafka.names_of, new))

    def to_kbroker() -> set[str]:
        return set(kbroker.page(client_id="librdkafka-1")) - {"kbroker_telemetry_client_info"}

    found = []
    for broker, names in ((kafka, to_kafka), (kbroker, to_kbroker)):
        subscribe(broker, "librdkafka", metrics="*", interval_ms="300", match="client_id=librdkafka-[0-9]")
        producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "librdkafka-1"})
        producer.produce("pushed", b"value")
        assert producer.flush(30) == 0
        until(lambda: pushed in names(), names)  # noqa: B023
        found.append(names())
        producer.close()
    until(lambda: not to_kbroker(), lambda: "it has closed")
    assert found[0] == found[1]


def test_kafkas_own_tool_sets_subscriptions(kafka_libs: Any, kafka: ReceivingKafka, kbroker: ReceivingKBroker) -> None:
    settings = ["--metrics", "a.,b.", "--interval", "7000", "--match", "client_id=x,client_source_port=1"]
    told: dict[str, list[str]] = {}
    for broker in (kafka, kbroker):

        def tool(*arguments: str) -> str:
            command = ["org.apache.kafka.tools.ClientMetricsCommand", "--bootstrap-server", broker.bootstrap]  # noqa: B023
            status, out, err = run_java(kafka_libs, *command, *arguments)
            assert status == 0, err
            return out

        said = [tool("--alter", "--name", "tool", *settings)]
        until(lambda: "tool" in tool("--list").split(), lambda: "it to be listed")
        said.append(tool("--describe", "--name", "tool"))
        said.append(tool("--alter", "--name", "tool", "--interval", ""))
        said.append(tool("--describe", "--name", "tool"))
        said.append(tool("--delete", "--name", "tool"))
        until(lambda: "tool" not in tool("--list").split(), lambda: "it to be deleted")
        said.append(tool("--describe", "--name", "tool"))
        told[broker.name] = said
    assert told["kbroker"] == told["apache"]
    assert "interval.ms=7000" in told["kbroker"][1]
