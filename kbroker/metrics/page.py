"""What was collected, as the text of a page.

Owns the way from values to prometheus_client's families and its text, in the format that who asks prefers. Runs on the
thread of who asks, beside the event loop, and so rests as long as it works: what it has of the interpreter is half a
millisecond at a time, however long the page. Never looks at the broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, cast

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kbroker.metrics.names import BY_NAME
from kbroker.metrics.values import Values, put_all

_WORK_S: Final = 0.0005


class _Breaks:
    """Gives the interpreter away now and then."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + _WORK_S

    def of(self, values: list[tuple[dict[str, str], float]], name: str) -> Iterator[Sample]:
        for labels, value in values:
            yield Sample(name, labels, value)
            if time.perf_counter() > self._until:
                time.sleep(_WORK_S)
                self._until = time.perf_counter() + _WORK_S


class _Collected(Collector):
    """Stands for a registry."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def collect(self) -> Iterable[Metric]:
        breaks = _Breaks()
        put_all(self._values, "kafka_server_kafkaserver_linux_disk", _disk_bytes())
        for name, values in self._values.items():
            known = BY_NAME[name]
            family = Metric(name.removesuffix("_total"), known.help, known.kind)
            # Taken once and in order, so that it need not be a list.
            family.samples = cast("list[Sample]", breaks.of(values, name))
            yield family
        yield from ProcessCollector(registry=None).collect()


def _disk_bytes() -> list[tuple[str, float]]:
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            found = dict(line.split(": ") for line in file)
        return [(name, float(found[name])) for name in ("read_bytes", "write_bytes")]
    except (OSError, ValueError, KeyError):  # another system
        return []


def text_of(values: Values, accept: str) -> tuple[bytes, str]:
    """Return the page and its type, for a header Accept."""
    try:
        encode, content_type = choose_encoder(accept)
        return encode(_Collected(values)), content_type
    except TypeError:  # a version that is no number
        encode, content_type = choose_encoder("")
        return encode(_Collected(values)), content_type
