"""A real client, librdkafka, that pushes its metrics to a broker with a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from compat_tests.wire.client import WireClient
from kbroker.metrics.pushed import PushedMetrics
from tests.broker.test_telemetry import ME, push, subscribe
from tests.metrics.conftest import OPENMETRICS, Seen
from tests.metrics.pushes import data, gauge

INFO = "kbroker_telemetry_client_info"


@pytest.fixture
def pushed(seen: Seen) -> Iterator[Seen]:
    telemetry = seen.broker.node.services.telemetry
    assert telemetry is not None
    seen.server.pushed = PushedMetrics(seen.broker.node.clock)  # ended with the server
    telemetry.receiver = seen.server.pushed
    return seen


def until(happened: Callable[[], object]) -> None:
    # librdkafka sends no last push if one is in progress as it closes; such a client is removed after a minute.
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def of(seen: Seen, **labels: str) -> dict[str, float]:
    return {name: value for (name, found), value in seen.values().items() if labels.items() <= dict(found).items()}


def test_librdkafka_pushes_what_is_asked_of_it(pushed: Seen) -> None:
    with WireClient(pushed.broker.bootstrap_servers) as client:
        assert subscribe(client, metrics="org.apache.kafka.producer.", interval_ms="100", match="client_id=mine") == 0
    servers = pushed.broker.bootstrap_servers
    producers = [Producer({"bootstrap.servers": servers, "client.id": name}) for name in ("mine", "other")]
    for producer in producers:
        producer.produce("orders", b"one")
        assert producer.flush(20) == 0
    until(lambda: "org_apache_kafka_producer_record_queue_time_avg" in of(pushed, client_id="mine"))
    found = of(pushed, client_id="mine", client_software_name="confluent-kafka-python")
    assert found[INFO] == 1
    assert "org_apache_kafka_producer_connection_creation_total" in found
    assert of(pushed, client_id="other") == {}, "nobody has asked it"
    assert "org_apache_kafka_producer_connection_creation" in {each.name for each in pushed.families(OPENMETRICS)}
    assert (pushed.value("kafka_server_client_metrics_plugin_export_count") or 0) >= 1
    assert pushed.value("kafka_server_client_metrics_plugin_error_count") == 0
    assert pushed.value("kafka_server_client_metrics_instance_count") == 2
    for producer in producers:
        producer.close()
    until(lambda: of(pushed, client_id="mine") == {})


def test_what_is_shown_goes_with_time(pushed: Seen) -> None:
    with WireClient(pushed.broker.bootstrap_servers, "mine") as client:
        assert push(client, data(gauge("org.apache.kafka.g", 1.5))) == 0
        assert push(client, b"garbage", instance=ME[::-1]) == 87
        assert of(pushed, client_id="mine")["org_apache_kafka_g"] == 1.5
        assert pushed.value("kafka_server_client_metrics_plugin_error_count") == 1
        assert pushed.value("kafka_server_client_metrics_instance_count") == 2
        pushed.broker.clock.advance(minutes=14.9)
        assert "org_apache_kafka_g" in of(pushed, client_id="mine")
        pushed.broker.clock.advance(minutes=0.2)
        assert of(pushed, client_id="mine") == {}
        assert pushed.value("kafka_server_client_metrics_instance_count") == 0
