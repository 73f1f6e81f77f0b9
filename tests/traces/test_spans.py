"""Spans of requests: their content, which requests have a span, and where spans are sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.handlers.express_produce import KnownRequests
from kbroker.network.dispatch import Dispatcher
from kbroker.network.request_log import Measured
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.connections import ApiVersionsRequest
from kbroker.protocol.messages.groups import FindCoordinatorRequest, HeartbeatRequest
from kbroker.protocol.records import build_batch
from kbroker.traces import spans as spans_module
from kbroker.traces.spans import Spans, exporter_to
from tests.traces.collector import attributes_of, collecting

MEASURED = Measured("Fetch", 1, 13, 7, "app", "10.0.0.7", "PLAINTEXT", "User:alice", 100, 200, 12.5, 0.25, 0, 0)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def trace(broker: Broker, take: Callable[[Measured], None] | None, ratio: float = 1.0) -> Dispatcher:
    """Trace requests from now on; wait until the broker's loop has set this."""
    dispatcher = broker.node.server.dispatcher
    done = threading.Event()

    def change() -> None:
        dispatcher.trace(take, ratio)
        done.set()

    assert broker._loop is not None
    broker._loop.call_soon_threadsafe(change)
    assert done.wait(20)
    return dispatcher


def test_a_span_says_what_was_asked_by_whom_and_what_came_of_it(broker: Broker, exporter: InMemorySpanExporter) -> None:
    spans = Spans(exporter)
    trace(broker, lambda told: spans.take(told, time.time_ns()))
    began = time.time_ns()
    with WireClient(broker.bootstrap_servers, "app") as client:
        client.ask(MetadataRequest(topics=[]), 12)
        client.ask(FindCoordinatorRequest(key="g"), 2)
        # A group other than "g": while "g" loads, a heartbeat is answered without error.
        assert client.ask(HeartbeatRequest(group_id="", member_id="nobody"), 4).error_code
    with WireClient(broker.bootstrap_servers, None) as silent:
        silent.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
    spans.close()
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert set(found) >= {"Metadata", "FindCoordinator", "Heartbeat", "ApiVersions"}
    span = found["Metadata"]
    assert span.kind is SpanKind.SERVER
    assert span.start_time is not None
    assert span.end_time is not None
    assert began - 5_000_000 <= span.start_time <= span.end_time <= time.time_ns()
    assert span.attributes is not None
    attributes = dict(span.attributes)
    assert attributes.pop("kafka.request.bytes") > 0  # type: ignore[operator]
    assert attributes.pop("kafka.response.bytes") > 0  # type: ignore[operator]
    assert attributes.pop("kafka.work_ms") >= 0  # type: ignore[operator]
    assert attributes == {
        "messaging.system": "kafka",
        "messaging.client.id": "app",
        "client.address": "127.0.0.1",
        "kafka.api.key": 3,
        "kafka.api.version": 12,
        "kafka.correlation_id": 1,
        "kafka.listener": "PLAINTEXT",
        "kafka.principal": "User:ANONYMOUS",
        "kafka.throttle_ms": 0,
    }
    assert span.status.status_code is StatusCode.UNSET
    refused = found["Heartbeat"]
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes is not None
    assert refused.attributes["error.type"] == ErrorCode.INVALID_GROUP_ID.name
    silent_attributes = found["ApiVersions"].attributes
    assert silent_attributes is not None
    assert "messaging.client.id" not in silent_attributes


def test_nothing_is_measured_where_nobody_traces(broker: Broker) -> None:
    found: list[Measured] = []
    dispatcher = broker.node.server.dispatcher
    assert dispatcher._express
    assert not dispatcher._timed
    trace(broker, found.append)
    assert not dispatcher._express
    trace(broker, None)
    assert dispatcher._express
    assert not dispatcher._timed
    with WireClient(broker.bootstrap_servers) as client:
        client.ask(MetadataRequest(topics=[]), 12)
    assert not found


def test_a_share_of_requests_is_told_of(broker: Broker) -> None:
    found: list[Measured] = []
    draws = iter([0.1, 0.25, 0.9, 0.2])
    broker.node.server.dispatcher._draw = lambda: next(draws)
    trace(broker, found.append, 0.25)
    with WireClient(broker.bootstrap_servers) as client:
        for _ in range(4):
            client.ask(MetadataRequest(topics=[]), 12)
    assert [told.correlation_id for told in found] == [1, 4]


def test_of_produce_requests_too_and_the_others_take_the_express_way(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    expressed: list[bool] = []
    answer = KnownRequests.answer

    def counting(known_requests: KnownRequests, *given: Any) -> bool:
        expressed.append(answer(known_requests, *given))
        return expressed[-1]

    monkeypatch.setattr(KnownRequests, "answer", counting)
    broker.topics.create("t")
    found: list[Measured] = []
    lots = [0.9, 0.9, 0.9, 0.1, 0.9, 0.1]  # the first request, from which the express way learns, takes two numbers
    draws = iter(lots)
    dispatcher = broker.node.server.dispatcher
    dispatcher._draw = lambda: next(draws)
    trace(broker, found.append, 0.25)
    request = produce_request("t", build_batch([(0, None, b"v", ())]))
    with WireClient(broker.bootstrap_servers) as client:
        for _ in range(len(lots) - 1):
            assert client.ask(request, 9).responses[0].partition_responses[0].error_code == 0
    assert [(told.api, told.correlation_id) for told in found] == [("Produce", 3), ("Produce", 5)]
    assert expressed == [True, True]
    assert next(draws, None) is None


class Stuck(SpanExporter):
    """An exporter that waits in its first export until `may_go_on` is set."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.may_go_on.wait(60)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.may_go_on.set()


def test_a_collector_that_takes_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(spans_module, "STOP_S", 0.1)
    stuck = Stuck()
    spans = Spans(stuck)
    spans.take(MEASURED, time.time_ns())
    spans.close()
    assert "could not be exported" in caplog.text
    stuck.may_go_on.set()


def test_an_error_that_has_no_name_is_a_number(exporter: InMemorySpanExporter) -> None:
    spans = Spans(exporter)
    spans.take(MEASURED._replace(error_code=9999), time.time_ns())
    spans.close()
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "9999"
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 12_500_000


def test_spans_come_to_a_collector_with_what_describes_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        spans = Spans(exporter_to(collector.url), about={"service.instance.id": "7"})
        spans.take(MEASURED, time.time_ns())
        spans.close()
        (span,) = collector.spans()
        assert (span.name, attributes_of(span)["kafka.principal"]) == ("Fetch", "User:alice")
        assert collector.paths == {"/v1/traces"}
        found = collector.resource()
        assert (found["service.name"], found["service.instance.id"]) == ("kbroker", "7")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-broker")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        spans = Spans(exporter_to(""))
        spans.take(MEASURED, time.time_ns())
        spans.close()
        assert collector.resource()["service.name"] == "orders-broker"
        assert collector.paths == {"/v1/traces"}
    with collecting() as collector:
        spans = Spans(exporter_to(f"{collector.url}/else/where"))
        spans.take(MEASURED, time.time_ns())
        spans.close()
        assert collector.paths == {"/else/where"}
