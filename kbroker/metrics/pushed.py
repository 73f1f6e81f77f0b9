"""Keeps the metrics that clients have pushed, for the page of `kbroker start --metrics` (KIP-714).

Owns the choice of the clients whose values are kept, the time for which they are kept, and their maximum number. A
thread decompresses and reads each push. The event loop updates and returns the values, in pieces. Never requests
anything from a client.

The latest values of each client are kept: deltas are summed up, so that counters on the page only increase. A client is
dropped when it terminates, and after three intervals (at least a minute) without a push. If there are too many clients,
the client with the oldest push is dropped. These drops are counted.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from kbroker.clock import Clock
from kbroker.long_work import in_slices, turn
from kbroker.metrics.otlp import LONGEST_VALUE, Buckets, Labels, Point, Read, read_metrics
from kbroker.metrics.values import Values, put
from kbroker.protocol.compression import decompress
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.wire import uuid_text
from kbroker.telemetry.instances import EXPIRY_MS, Client, Push

MOST_CLIENTS: Final = 1_000
MOST_SERIES: Final = 20_000
"""The maximum number of series of all clients together.

Each bucket, the count and the sum of a histogram are a series.
"""
MOST_OF_ONE: Final = 5_000
"""The maximum number of series of one client."""
MOST_WAITING: Final = 64
"""The maximum number of waiting pushes, for all clients together.

A client must retry any further push after an interval.
"""
_ENDINGS: Final = {
    "counter": ("", "_total", "_created"),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_count", "_sum", "_created"),
}
"""The suffixes that a metric's name may have on the page. No other metric may have such a name (OpenMetrics)."""
_OWN_LABELS: Final = "client_instance_id", "client_id", "client_software_name"
_RESERVED_LABELS: Final = re.compile(rf"(?:exported_)*(?:le|{'|'.join(_OWN_LABELS)})")
"""Label names that a client's own attributes must not have. The names include the new names of renamed attributes."""


@dataclass(slots=True)
class Family:
    """One metric of the page: its name, its type, and its samples, each with a suffix for the name."""

    name: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)


@dataclass(slots=True)
class _Kept:
    client: Client
    expires_ms: float = 0.0
    values: dict[tuple[str, Labels], Point] = field(default_factory=dict)
    series: int = 0
    left_out: int = 0


class PushedMetrics:
    """A receiver (telemetry/instances.py) whose values appear on the page."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # the client with the newest push is at the end
        self._series = 0
        self._left_out: OrderedDict[bytes, float] = OrderedDict()
        """The clients that were dropped for lack of space.

        Each client stays in this dict until it would have expired.
        """
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kbroker-pushed")

    def __len__(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Accept no more pushes."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    # -- called by the broker, in its loop

    async def export(self, client: Client, push: Push) -> None:
        """Accept a push. Raises Malformed, and ApiError if too many pushes wait."""
        if self._waiting >= MOST_WAITING:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        self._waiting += 1
        reading = asyncio.get_running_loop().run_in_executor(self._thread, _read, push)
        reading.add_done_callback(self._was_read)
        # The thread continues to read the push even if the waiting request has ended, for example with its connection.
        read = await asyncio.shield(reading)
        if push.terminating:
            self.forget(client.instance_id)
        else:
            await in_slices(self._keep(client, push, read))

    def _was_read(self, reading: asyncio.Future[Read]) -> None:
        self._waiting -= 1
        if not reading.cancelled():
            reading.exception()  # always retrieve the result, because otherwise asyncio would warn

    def forget(self, instance_id: bytes) -> None:
        """Drop a client's values."""
        kept = self._kept.pop(instance_id, None)
        if kept is not None:
            self._series -= kept.series

    # -- values

    async def _keep(self, client: Client, push: Push, read: Read) -> None:
        now_ms = self._clock.monotonic_ms()
        kept = self._kept.setdefault(client.instance_id, _Kept(client))
        self._kept.move_to_end(client.instance_id)
        self._left_out.pop(client.instance_id, None)
        kept.client, kept.left_out = client, read.left_out
        kept.expires_ms = now_ms + max(EXPIRY_MS, 3 * push.interval_ms)
        while len(self._kept) > MOST_CLIENTS:
            self._make_room(now_ms)
        for point in read.points:
            key = (point.name, point.labels)
            before = kept.values.get(key)
            grown = _series(point) - (0 if before is None else _series(before))
            if grown > 0 and kept.series + grown > MOST_OF_ONE:
                kept.left_out += 1
            else:
                kept.values[key] = _added(before, point)
                kept.series += grown
                self._series += grown
            await turn
            if self._kept.get(client.instance_id) is not kept:
                return  # the client was dropped for lack of space, or has terminated
            while self._series > MOST_SERIES:
                self._make_room(now_ms)

    def _make_room(self, now_ms: float) -> None:
        instance_id, kept = next(iter(self._kept.items()))
        self.forget(instance_id)
        if kept.expires_ms > now_ms:
            self._left_out[instance_id] = kept.expires_ms
            if len(self._left_out) > MOST_CLIENTS:
                self._left_out.popitem(last=False)

    async def collect(self, values: Values) -> list[Family]:
        """Return the families to show. Add to `values` the clients and the numbers of omitted points."""
        now_ms = self._clock.monotonic_ms()
        for instance_id, kept in list(self._kept.items()):
            if kept.expires_ms <= now_ms:
                self.forget(instance_id)
            await turn
        self._left_out = OrderedDict((each, until) for each, until in self._left_out.items() if until > now_ms)
        families: dict[str, Family] = {}
        taken: set[str] = set()
        left_out = 0
        for kept in list(self._kept.values()):
            own = _labels(kept.client)
            put(values, "kbroker_telemetry_client_info", 1, own | _more(kept.client))
            left_out += kept.left_out
            for point in list(kept.values.values()):
                family = _family(families, taken, point)
                if family is None:
                    left_out += 1
                else:
                    family.samples += _samples(point, own)
                await turn
        put(values, "kbroker_left_out", len(self._left_out), {"kind": "client instances"})
        put(values, "kbroker_left_out", left_out, {"kind": "client metrics"})
        return list(families.values())


def _read(push: Push) -> Read:
    return read_metrics(decompress(push.codec, push.data, push.most_bytes))


def _series(point: Point) -> int:
    """Return the number of lines that a point has on the page."""
    return len(point.value.counts) + 2 if isinstance(point.value, Buckets) else 1


def _added(before: Point | None, point: Point) -> Point:
    """Return a point. If the point is a delta, add the previous value."""
    if before is None or not point.is_delta or before.kind != point.kind:
        return point
    old, new = before.value, point.value
    if isinstance(old, Buckets) and isinstance(new, Buckets):
        if old.bounds != new.bounds:
            return point
        counts = tuple(a + b for a, b in zip(old.counts, new.counts, strict=True))
        total: float | Buckets = Buckets(new.bounds, counts, old.sum + new.sum)
    else:
        assert isinstance(old, float) and isinstance(new, float)  # noqa: PT018 - of one kind
        total = old + new
    return Point(point.name, point.kind, point.labels, total, True)


def _family(families: dict[str, Family], taken: set[str], point: Point) -> Family | None:
    """Return the family of a point.

    Return None if another metric has the same name, because a page has each name only once.
    """
    found = families.get(point.name)
    if found is not None:
        return found if found.kind == point.kind else None
    bare = point.name.removesuffix("_total") if point.kind == "counter" else point.name
    names = [bare + ending for ending in _ENDINGS[point.kind]]
    if not taken.isdisjoint(names):
        return None
    made = families[point.name] = Family(point.name, point.kind)
    taken.update(names)
    return made


def _samples(point: Point, own: dict[str, str]) -> list[tuple[str, dict[str, str], float]]:
    # Prometheus renames labels in this way if they conflict with its own labels.
    client_labels = {
        f"exported_{name}" if _RESERVED_LABELS.fullmatch(name) else name: value for name, value in point.labels
    }
    labels = client_labels | own
    if not isinstance(point.value, Buckets):
        return [("", labels, point.value)]
    value, seen, samples = point.value, 0, []
    for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
        seen += count
        le = "+Inf" if bound == float("inf") else repr(bound)
        samples.append(("_bucket", labels | {"le": le}, float(seen)))
    return [*samples, ("_count", labels, float(seen)), ("_sum", labels, value.sum)]


def _labels(client: Client) -> dict[str, str]:
    texts = uuid_text(client.instance_id), client.client_id, client.software_name
    return {name: text[:LONGEST_VALUE] for name, text in zip(_OWN_LABELS, texts, strict=True)}


def _more(client: Client) -> dict[str, str]:
    return {
        "client_software_version": client.software_version[:LONGEST_VALUE],
        "client_source_address": client.address,
        "principal": client.principal[:LONGEST_VALUE],
    }
