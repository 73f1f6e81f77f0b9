"""The collected values as the text of a page.

Owns the conversion from values to prometheus_client's families and their text, in the format that the client prefers.
Runs on the client's thread, beside the event loop, and so rests as long as it works: it holds the interpreter for half
a millisecond at a time, however long the page. Never looks at the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kbroker.long_work import Breaks
from kbroker.metrics.names import BY_NAME
from kbroker.metrics.values import Values, put_all

if TYPE_CHECKING:  # needs an extra
    from kbroker.metrics.pushed import Family

HELP = "Pushed by clients (KIP-714)"


def _samples(breaks: Breaks, name: str, values: Iterable[tuple[str, dict[str, str], float]]) -> list[Sample]:
    def made() -> Iterator[Sample]:
        for ending, labels, value in values:
            yield Sample(name + ending, labels, value)
            breaks.rest()

    # Iterated once and in order, so that it need not be a list.
    return cast("list[Sample]", made())


class _Collected(Collector):
    """Stands in for a registry."""

    def __init__(self, values: Values, families: Sequence[Family]) -> None:
        self._values = values
        self._families = families

    def collect(self) -> Iterable[Metric]:
        breaks = Breaks()
        put_all(self._values, "kafka_server_kafkaserver_linux_disk", _disk_bytes())
        for name, values in self._values.items():
            known = BY_NAME[name]
            family = Metric(name.removesuffix("_total"), known.help, known.kind)
            family.samples = _samples(breaks, name, (("", *each) for each in values))
            yield family
        for pushed in self._families:
            bare = pushed.name.removesuffix("_total") if pushed.kind == "counter" else pushed.name
            family = Metric(bare, HELP, pushed.kind)
            family.samples = _samples(breaks, pushed.name, pushed.samples)
            yield family
        yield from ProcessCollector(registry=None).collect()


def _disk_bytes() -> list[tuple[str, float]]:
    try:
        with open("/proc/self/io", encoding="ascii") as file:
            found = dict(line.split(": ") for line in file)
        return [(name, float(found[name])) for name in ("read_bytes", "write_bytes")]
    except (OSError, ValueError, KeyError):  # another system
        return []


def text_of(values: Values, accept: str, families: Sequence[Family] = ()) -> tuple[bytes, str]:
    """Return the page and its type, for an Accept header; `families` are the clients' pushed metrics."""
    try:
        encode, content_type = choose_encoder(accept)
        return encode(_Collected(values, families)), content_type
    except TypeError:  # a version that is not a number
        encode, content_type = choose_encoder("")
        return encode(_Collected(values, families)), content_type
