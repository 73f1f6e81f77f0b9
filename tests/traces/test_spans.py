"""Spans of requests: what they tell, which requests have one, and that nobody who collects none holds up the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.network.dispatch import Dispatcher
from kbroker.network.request_log import Told
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.api_versions import ApiVersionsRequest
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest
from kbroker.protocol.messages.heartbeat import HeartbeatRequest
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.traces import spans
from kbroker.traces.spans import Traces, exporter_to
from tests.traces.collector import attributes_of, collecting

TOLD = Told("Fetch", 1, 13, 7, "app", "10.0.0.7", "PLAINTEXT", "User:alice", 100, 200, 12.5, 0.25, 0, 0)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


def trace(broker: Broker, traces: Traces | None) -> Dispatcher:
    """Have requests traced from now on; the loop looks at it with the next one."""
    dispatcher = broker.node.server.dispatcher
    done = threading.Event()

    def change() -> None:
        dispatcher.trace(None if traces is None else traces.note)
        done.set()

    assert broker._loop is not None
    broker._loop.call_soon_threadsafe(change)
    assert done.wait(20)
    return dispatcher


def test_a_span_says_what_was_asked_by_whom_and_what_came_of_it(broker: Broker, exporter: InMemorySpanExporter) -> None:
    traces = Traces(exporter)
    trace(broker, traces)
    began = time.time_ns()
    with WireClient(broker.bootstrap_servers, "app") as client:
        client.ask(MetadataRequest(topics=[]), 12)
        client.ask(FindCoordinatorRequest(key="g"), 2)
        assert client.ask(HeartbeatRequest(group_id="g", member_id="nobody"), 4).error_code
    with WireClient(broker.bootstrap_servers, None) as silent:
        silent.ask(ApiVersionsRequest(client_software_name="t", client_software_version="1"), 4)
    traces.close()
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
    assert ErrorCode[str(refused.attributes["error.type"])] in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    )
    silent_attributes = found["ApiVersions"].attributes
    assert silent_attributes is not None
    assert "messaging.client.id" not in silent_attributes


def test_nothing_is_measured_where_nobody_traces(broker: Broker, exporter: InMemorySpanExporter) -> None:
    traces = Traces(exporter)
    dispatcher = broker.node.server.dispatcher
    assert dispatcher._express
    assert not dispatcher._timed
    trace(broker, traces)
    assert not dispatcher._express, "a produce request goes by its handler, as where requests are logged"
    trace(broker, None)
    assert dispatcher._express
    with WireClient(broker.bootstrap_servers) as client:
        client.ask(MetadataRequest(topics=[]), 12)
    traces.close()
    assert exporter.get_finished_spans() == ()


def test_a_share_of_requests_has_a_span(exporter: InMemorySpanExporter) -> None:
    traces = Traces(exporter, 0.25)
    draws = iter([0.1, 0.25, 0.9, 0.2])
    traces._draw = lambda: next(draws)
    for _ in range(4):
        traces.note(TOLD)
    traces.close()
    assert len(exporter.get_finished_spans()) == 2
    none = Traces(exporter, 0.0)
    none.note(TOLD)
    none.close()
    assert len(exporter.get_finished_spans()) == 2


class Stuck(SpanExporter):
    """Takes nothing, until it may."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.asked = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        assert self.may_go_on.wait(60)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.may_go_on.set()


def test_what_nobody_takes_is_dropped_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST_WAITING", 10)
    monkeypatch.setattr(spans, "_EVERY_S", 3600.0)
    stuck = Stuck()
    traces = Traces(stuck)
    for _ in range(25):
        traces.note(TOLD)
    assert (len(traces._waiting), traces.dropped) == (10, 15)
    monkeypatch.setattr(spans, "_STOP_S", 0.2)
    traces.close()
    assert stuck.asked.is_set()
    assert stuck.may_go_on.is_set(), "it was told to give up"
    assert not traces._waiting


def test_an_error_that_has_no_name_is_a_number(exporter: InMemorySpanExporter) -> None:
    traces = Traces(exporter)
    traces.note(TOLD._replace(error_code=9999))
    traces.close()
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == "9999"
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 12_500_000


def test_spans_come_to_a_collector_with_what_describes_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        traces = Traces(exporter_to(collector.url), about={"service.instance.id": "7"})
        traces.note(TOLD)
        traces.close()
        (span,) = collector.spans()
        assert (span.name, attributes_of(span)["kafka.principal"]) == ("Fetch", "User:alice")
        assert collector.paths == {"/v1/traces"}
        found = collector.resource()
        assert (found["service.name"], found["service.instance.id"]) == ("kbroker", "7")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-broker")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        traces = Traces(exporter_to(""))
        traces.note(TOLD)
        traces.close()
        assert collector.resource()["service.name"] == "orders-broker"
        assert collector.paths == {"/v1/traces"}
    with collecting() as collector:
        traces = Traces(exporter_to(f"{collector.url}/else/where"))
        traces.note(TOLD)
        traces.close()
        assert collector.paths == {"/else/where"}
