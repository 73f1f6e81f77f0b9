"""MetricsData read into points: names, attributes, what is left out, and that nothing that comes is too odd."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ScopeMetrics,
    Summary,
    SummaryDataPoint,
)

from kbroker.metrics import otlp
from kbroker.metrics.otlp import Buckets, Point, page_name, read_metrics
from kbroker.protocol.errors import Malformed
from tests.metrics.pushes import data, gauge, histogram, total
from tests.tries import tries


def points(*metrics: Metric, **resource: str) -> list[Point]:
    read = read_metrics(data(*metrics, **resource))
    assert read.left_out == 0
    return read.points


def left_out(*metrics: Metric, **resource: str) -> int:
    read = read_metrics(data(*metrics, **resource))
    assert read.points == []
    return read.left_out


def test_gauges_and_sums() -> None:
    assert points(
        gauge("org.apache.kafka.a.b-c", 1.5, topic="t"),
        total("org.apache.kafka.sent", 3, topic="t"),
        total("org.apache.kafka.sent.total", 4.5, delta=False),
        total("org.apache.kafka.open", -2, monotonic=False),
    ) == [
        Point("org_apache_kafka_a_b_c", "gauge", (("topic", "t"),), 1.5, False),
        Point("org_apache_kafka_sent_total", "counter", (("topic", "t"),), 3.0, True),
        Point("org_apache_kafka_sent_total", "counter", (), 4.5, False),
        Point("org_apache_kafka_open", "gauge", (), -2.0, True),
    ]


def test_histograms() -> None:
    (point,) = points(histogram("org.apache.kafka.h", [1.0, 5.0], [2, 0, 1], 9.5))
    assert point == Point("org_apache_kafka_h", "histogram", (), Buckets((1.0, 5.0), (2, 0, 1), 9.5), True)
    (point,) = points(histogram("org.apache.kafka.h", [], [4], 9.5))
    assert point.value == Buckets((), (4,), 9.5)


def test_names() -> None:
    assert page_name("org.apache.kafka.producer.record.send.total") == "org_apache_kafka_producer_record_send_total"
    for name in ("com.example.mine", "kafka_server_kafkaserver_brokerstate", "kbroker_left_out", "process_open_fds"):
        assert page_name(name) == "kbroker_client_" + name.replace(".", "_"), "nobody speaks for the broker"


def test_attributes_of_the_resource_are_each_points() -> None:
    (point,) = points(gauge("g", 1.0, node_id="1", group_id="of the point"), group_id="g", client_rack="r")
    assert point.labels == (("client_rack", "r"), ("group_id", "of the point"), ("node_id", "1"))


def test_attributes_of_every_type() -> None:
    values = {
        "a.b": AnyValue(int_value=-7),
        "1st": AnyValue(bool_value=True),
        "__name__": AnyValue(double_value=0.5),
        "bytes": AnyValue(bytes_value=b"\x01\xff"),
        "none": AnyValue(),
        "list": AnyValue(array_value=ArrayValue(values=[AnyValue(int_value=1)])),
        "long": AnyValue(string_value="x" * 500),
    }
    point = NumberDataPoint(as_int=1, attributes=[KeyValue(key=key, value=value) for key, value in values.items()])
    (found,) = points(Metric(name="g", gauge=Gauge(data_points=[point])))
    assert dict(found.labels) == {
        "a_b": "-7",
        "_1st": "true",
        "key__name__": "0.5",
        "bytes": "01ff",
        "none": "",
        "list": "",
        "long": "x" * 200,
    }


def test_attributes_are_taken_up_to_their_bounds() -> None:
    (point,) = points(gauge("g", 1.0, **{f"k{n}": "v" * 198 for n in range(5)}))
    assert sum(len(key) + len(text) for key, text in point.labels) == 1_000
    (point,) = points(gauge("g", 1.0, **{f"k{n}": "v" for n in range(8)}), **{f"r{n}": "v" for n in range(8)})
    assert len(point.labels) == 16


def test_what_cannot_be_shown_is_left_out() -> None:
    assert left_out(Metric(name="s", summary=Summary(data_points=[SummaryDataPoint(count=1)]))) == 1
    assert left_out(gauge("g" * 201, 1.0)) == 1
    assert left_out(gauge("g", 1.0, **{f"k{n}": "v" * 198 for n in range(6)})) == 1
    assert left_out(gauge("g", 1.0, **{f"k{n}": "v" for n in range(9)}), **{f"r{n}": "v" for n in range(8)}) == 1
    assert left_out(Metric(name="g", gauge=Gauge(data_points=[NumberDataPoint()]))) == 1
    assert left_out(Metric(name="g", gauge=Gauge(data_points=[NumberDataPoint(as_int=1, flags=1)]))) == 1
    for value in (-1, math.nan, math.inf):
        assert left_out(total("c", value)) == 1, "a counter only grows"
    assert left_out(total("g", math.nan, monotonic=False)) == 1, "what is added to stays a number"
    assert left_out(histogram("h", [1.0], [1], 0.5)) == 1
    assert left_out(histogram("h", [2.0, 1.0], [1, 1, 1], 0.5)) == 1
    assert left_out(histogram("h", [1.0, math.inf], [1, 1, 1], 0.5)) == 1
    assert left_out(histogram("h", [-1.0], [1, 1], 0.5)) == 1
    assert left_out(histogram("h", [1.0], [1, 1], -0.5)) == 1
    assert left_out(histogram("h", [float(n) for n in range(51)], [0] * 52, 0.5)) == 1
    assert left_out(Metric(name="nothing")) == 0
    assert math.isnan(float(str(points(gauge("g", math.nan))[0].value)))


def test_one_push_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_metrics(data(*(gauge(f"g{n}", 1.0) for n in range(1_100))))
    assert (len(read.points), read.left_out) == (1_000, 100)
    many = Metric(name="g", gauge=Gauge(data_points=[NumberDataPoint(as_int=n) for n in range(1_100)]))
    read = read_metrics(data(many))
    assert (len(read.points), read.left_out) == (1_000, 100)
    read = read_metrics(data(gauge("g", 1.0, big="x" * 300_000), gauge("h", 1.0)))
    assert ([each.name for each in read.points], read.left_out) == (["kbroker_client_h"], 1)
    with pytest.raises(Malformed):
        read_metrics(data(gauge("g", 1.0), big="x" * 300_000))


def test_a_push_that_says_nothing_is_bounded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MOST_FIELDS", 1_000)
    nothing = b"\x18\x00" * 1_001
    for empty in (nothing, wrapped(1, nothing), wrapped(1, wrapped(2, nothing)), wrapped(1, wrapped(2, nothing), 2)):
        with pytest.raises(Malformed, match="more than 1000 fields"):
            read_metrics(empty)
    read_metrics(b"\x18\x00" * 1_000)


def wrapped(number: int, body: bytes, times: int = 1) -> bytes:
    """Return a field that holds a message, so many times."""
    size = len(body).to_bytes(2, "big")
    length = bytes([size[1] & 0x7F | 0x80, (int.from_bytes(size, "big") >> 7) & 0x7F])
    return (bytes([number << 3 | 2]) + length + body) * times


def test_what_is_looked_at_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MOST_CHECKED", 10)
    looked: list[Point | None] = []
    look_at = otlp._point

    def counting(*given: object, **named: bool) -> Point | None:
        looked.append(look_at(*given, **named))  # type: ignore[arg-type]
        return looked[-1]

    monkeypatch.setattr(otlp, "_point", counting)
    empty = Metric(name="g", gauge=Gauge(data_points=[NumberDataPoint()] * 100))
    read = read_metrics(data(empty, gauge("h", 1.0)))
    assert (read.points, read.left_out, len(looked)) == ([], 101, 9)
    monkeypatch.undo()
    monkeypatch.setattr(otlp, "_point", counting)
    looked.clear()
    many = Metric(name="g", gauge=Gauge(data_points=[NumberDataPoint(as_int=n) for n in range(1_100)]))
    assert read_metrics(data(many)).left_out == 100
    assert len(looked) == 1_000, "not those that have no place"


def test_a_resource_of_many_attributes_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert left_out(gauge("g", 1.0), gauge("h", 1.0), **{f"r{n}": "v" for n in range(17)}) == 2
    read: list[object] = []
    monkeypatch.setattr(otlp, "_text", read.append)
    left_out(gauge("g", 1.0), **{f"r{n}": "v" for n in range(17)})
    assert not read


def test_fields_of_later_versions_are_passed_over() -> None:
    scope = ScopeMetrics(metrics=[gauge("g", 1.0)], schema_url="u").SerializeToString()
    odd = b"\x98\x06\x05" + b"\xa1\x06" + bytes(8) + b"\xad\x06" + bytes(4) + b"\xb2\x06\x02hi"  # 99 to 102
    resource = b"\x12" + bytes([len(scope)]) + scope + odd
    read = read_metrics(odd + b"\x0a" + bytes([len(resource)]) + resource)
    assert [each.name for each in read.points] == ["kbroker_client_g"]


@pytest.mark.parametrize(
    "broken",
    [
        b"x",
        b"\x0a",
        b"\x0a\x05ab",
        b"\x00\x00",
        b"\x0b",
        b"\xff" * 11,
        b"\x09\x01",
        b"\x0a\x02\x0a\xff",
        b"\x0a\x06\x12\x04\x12\x02\x0a\xff",
    ],
)
def test_what_is_no_metrics_data(broken: bytes) -> None:
    with pytest.raises(Malformed):
        read_metrics(broken)


GOOD = data(
    gauge("org.apache.kafka.a", 1.5, topic="t"), total("b", 3), histogram("h", [1.0, 5.0], [2, 0, 1], 9.5), group="g"
)


@given(st.binary(max_size=200))
@settings(max_examples=tries(300))
def test_any_bytes_are_read_or_refused(garbage: bytes) -> None:
    try:
        read = read_metrics(garbage)
    except Malformed:
        return
    assert len(read.points) <= otlp.MOST_POINTS


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255), st.integers(0, len(GOOD)))
@settings(max_examples=tries(500))
def test_a_byte_that_is_another_is_read_or_refused(where: int, byte: int, end: int) -> None:
    changed = bytearray(GOOD)
    changed[where] = byte
    for each in (bytes(changed), GOOD[:end]):
        try:
            read = read_metrics(each)
        except Malformed:
            continue
        assert len(read.points) <= 3


def test_what_the_library_reads_is_read_alike() -> None:
    one = MetricsData.FromString(GOOD).resource_metrics[0]
    two = MetricsData(resource_metrics=[one, one])
    assert read_metrics(two.SerializeToString()).points == read_metrics(GOOD).points * 2
