"""Converts OpenTelemetry's MetricsData, which clients push, to points for a page (KIP-714).

Owns the form of names and attributes on the page, the choice of the parts of the format to read, and the limits on one
push. Runs on a thread, without access to a broker. Raises Malformed for invalid MetricsData. Valid points that the page
cannot show are counted.

This module reads the outer messages itself, and the library parses each metric separately. So the library blocks the
interpreter only for the time of one metric:

    MetricsData     1: ResourceMetrics, repeated
    ResourceMetrics 1: Resource (1: attributes)   2: ScopeMetrics, repeated
    ScopeMetrics    2: Metric, repeated
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_DELTA,
    DataPointFlags,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from kbroker.long_work import Pauses
from kbroker.protocol.errors import Malformed

MOST_POINTS: Final = 1_000
"""The maximum number of points of one push. Further points are omitted."""
MOST_FIELDS: Final = 100_000
"""The maximum number of fields in the outer messages of one push.

More fields raise Malformed; a push may have millions.
"""
MOST_CHECKED: Final = 5_000
"""The maximum number of metrics and points that are examined in one push. Further metrics and points are omitted."""
MOST_ATTRIBUTES: Final = 16
"""The maximum number of attributes of one point, with those of its resource.

A point with more attributes is omitted.
"""
LONGEST_LABELS: Final = 1_000
"""The maximum number of characters in the names and values of a point's attributes. A point with more is omitted."""
LONGEST_VALUE: Final = 200
"""The maximum number of characters of an attribute's value. Further characters are cut off."""
LONGEST_NAME: Final = 200
"""The maximum number of characters of a name. A metric with a longer name is omitted."""
MOST_BUCKETS: Final = 50
_MOST_METRIC_BYTES: Final = 256 * 1024
"""The maximum size of one metric in bytes, because a metric is parsed in one call."""
_KAFKAS: Final = "org_apache_kafka_"
"""The prefix of the metrics of clients (KIP-714). No metric of a broker has this prefix."""
_OTHERS: Final = "kbroker_client_"
_NO_VALUE: Final = DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_]")
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's value: the counts up to each bound and above the last bound, and the sum of all values."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Point:
    """One value of one series, with its name on the page."""

    name: str
    kind: str
    """One of: counter, gauge, histogram."""
    labels: Labels
    """The label names and values, sorted, without the labels that identify the client."""
    value: float | Buckets
    is_delta: bool
    """Whether the value must be added to earlier values."""


@dataclass(slots=True)
class Read:
    """The result of reading one push."""

    points: list[Point] = field(default_factory=list)
    left_out: int = 0
    """The number of omitted points, plus the number of metrics whose points were not examined."""


class _Walk:
    """The progress through a push, with pauses."""

    def __init__(self) -> None:
        self._pauses = Pauses()
        self._fields = 0
        self.left = MOST_CHECKED
        """The number of metrics and points that may still be examined."""

    def field(self) -> None:
        """Count one more field. Raises Malformed if there are too many."""
        self._fields += 1
        if self._fields > MOST_FIELDS:
            raise Malformed(f"more than {MOST_FIELDS} fields")
        self._pauses.rest()

    def check(self) -> None:
        """Count one more metric or point."""
        self.left -= 1
        self._pauses.rest()


def read_metrics(data: bytes | bytearray | memoryview) -> Read:
    """Read uncompressed MetricsData. Raises Malformed."""
    read, walk = Read(), _Walk()
    try:
        for resource_metrics in _messages(memoryview(data), 1, walk):
            own: dict[str, str] | None = {}
            for resource in _messages(resource_metrics, 1, walk):
                own = _resource(resource)
            for scope_metrics in _messages(resource_metrics, 2, walk):
                for metric in _messages(scope_metrics, 2, walk):
                    _take(read, metric, own, walk)
    except DecodeError as error:
        raise Malformed(f"no MetricsData: {error}") from None
    return read


def _resource(message: memoryview) -> dict[str, str] | None:
    """Return the attributes of a resource. Return None if the attributes exceed the limits of a point."""
    if len(message) > _MOST_METRIC_BYTES:
        raise Malformed(f"a resource of {len(message)} bytes")
    attributes = Resource.FromString(bytes(message)).attributes
    return None if len(attributes) > MOST_ATTRIBUTES else _attributes(attributes)


def _take(read: Read, raw: memoryview, resource: dict[str, str] | None, walk: _Walk) -> None:
    room = MOST_POINTS - len(read.points)
    if resource is None or len(raw) > _MOST_METRIC_BYTES or room <= 0 or walk.left <= 0:
        read.left_out += 1
        return
    walk.check()
    metric = Metric.FromString(bytes(raw))
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    count = len(getattr(metric, kind).data_points)
    known = 0
    for point in islice(_points(metric, kind, resource), min(count, walk.left)):
        walk.check()
        if point is not None:
            read.points.append(point)
            known += 1
            if known == room:
                break
    read.left_out += count - known


def _points(metric: Metric, kind: str, resource: dict[str, str]) -> Iterator[Point | None]:
    """Yield the points of a metric, with None for a point that cannot be shown."""
    name = page_name(metric.name)
    if kind == "gauge":
        for point in metric.gauge.data_points:
            yield _point(name, "gauge", point, resource, _number(point), is_delta=False)
    elif kind == "sum":
        is_delta = metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        shown = "counter" if metric.sum.is_monotonic else "gauge"
        if metric.sum.is_monotonic and not name.endswith("_total"):
            name += "_total"
        for point in metric.sum.data_points:
            yield _point(name, shown, point, resource, _number(point), is_delta=is_delta)
    elif kind == "histogram":
        is_delta = metric.histogram.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        for each in metric.histogram.data_points:
            yield _point(name, "histogram", each, resource, _buckets(each), is_delta=is_delta)
    # Summaries and exponential histograms are ignored, because no known client of Kafka pushes them.


def _point(
    name: str,
    kind: str,
    point: NumberDataPoint | HistogramDataPoint,
    resource: dict[str, str],
    value: float | Buckets | None,
    *,
    is_delta: bool,
) -> Point | None:
    if value is None or point.flags & _NO_VALUE or not 0 < len(name) <= LONGEST_NAME:
        return None
    if isinstance(value, float) and not _may_be(value, kind, is_delta=is_delta):
        return None
    if len(point.attributes) + len(resource) > MOST_ATTRIBUTES:
        return None
    labels = {**resource, **_attributes(point.attributes)}
    if sum(len(key) + len(text) for key, text in labels.items()) > LONGEST_LABELS:
        return None
    return Point(name, kind, tuple(sorted(labels.items())), value, is_delta)


def _may_be(value: float, kind: str, *, is_delta: bool) -> bool:
    """Whether a number is valid for its kind: a sum must stay finite, and a counter must only increase."""
    return (kind == "gauge" and not is_delta) or (math.isfinite(value) and (kind == "gauge" or value >= 0))


def _number(point: NumberDataPoint) -> float | None:
    kind = point.WhichOneof("value")
    if kind is None:
        return None
    return float(point.as_int) if kind == "as_int" else point.as_double


def _buckets(point: HistogramDataPoint) -> Buckets | None:
    bounds, counts = tuple(point.explicit_bounds), tuple(point.bucket_counts)
    if not bounds and not counts:
        counts = (point.count,)
    rises = all(low < high for low, high in pairwise(bounds))
    if len(counts) != len(bounds) + 1 or len(bounds) > MOST_BUCKETS or not rises:
        return None
    # Values below 0 are not shown either, because OpenMetrics has no sum for values that may be negative.
    if not all(0 <= each < math.inf for each in (*bounds, point.sum)):
        return None
    return Buckets(bounds, counts, point.sum)


def page_name(name: str) -> str:
    """Return a metric's name on the page, without a unit, as Prometheus's own receivers of OTLP form it."""
    plain = _NOT_IN_NAMES.sub("_", name[: LONGEST_NAME + 1])
    return plain if plain.startswith(_KAFKAS) else _OTHERS + plain


def _attributes(attributes: Iterable[Any]) -> dict[str, str]:
    found = {}
    for each in attributes:
        name = _NOT_IN_NAMES.sub("_", each.key[: LONGEST_NAME + 1])
        if not name or name[0].isdigit():
            name = f"_{name}"
        if name.startswith("__"):  # Prometheus reserves such names
            name = f"key{name}"
        found[name] = _text(each.value)
    return found


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind is None:
        return ""
    found = getattr(value, kind)
    if kind == "bool_value":
        return "true" if found else "false"
    if kind == "bytes_value":
        return bytes(found[:LONGEST_VALUE]).hex()[:LONGEST_VALUE]
    if kind in ("array_value", "kvlist_value"):
        return ""
    return str(found)[:LONGEST_VALUE]


def _messages(data: memoryview, wanted: int, walk: _Walk) -> Iterator[memoryview]:
    """Yield the messages in one field of a message. Raises Malformed for an invalid message."""
    position = 0
    while position < len(data):
        walk.field()
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _BYTES:
            size, position = _varint(data, position)
            if size > len(data) - position:
                raise Malformed("a message is cut off")
            if number == wanted:
                yield data[position : position + size]
            position += size
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise Malformed(f"a field of type {kind}")
        if not number or position > len(data):
            raise Malformed("no field")


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(data):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            break
    raise Malformed("a number is cut off")
