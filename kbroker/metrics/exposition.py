"""All metrics, and the conversion of collected values to the text of a page.

Owns the table of names (names.txt), meanings, and corresponding MBeans of Kafka. `python -m kbroker.metrics.exposition`
prints this table for the docs. For Kafka's MBeans, the names and labels are those that the usual rules of Prometheus's
JMX exporter produce, so that dashboards and alerts for Kafka work. Also owns the conversion from values to
prometheus_client's families and their text, in the format that the client prefers. Runs on the client's thread, beside
the event loop. After each 0.5 ms of work it sleeps for 0.5 ms, so that the loop gets the interpreter even during a long
page. Never reads the broker's state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final, cast

from prometheus_client import Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from kbroker.long_work import Pauses
from kbroker.metrics.values import Values, put_all

_COUNTS: Final = (
    ",Count",
    "-request-count",
    "throttle-count",
    "-export-count",
    "-error-count",
    "-success-count",
    "-failure-count",
)
"""The endings of the names of MBeans whose values only increase."""


@dataclass(frozen=True, slots=True)
class Name:
    """One metric.

    A counter's name ends in `_total`. If Kafka's name of a count lacks this ending, the metric has no type.
    """

    name: str
    labels: str
    help: str
    mbean: str
    """The name of Kafka's MBean, after "kafka."; empty for kbroker's own metrics."""

    @property
    def kind(self) -> str:
        """Return the type, as Prometheus names it."""
        if self.name.endswith("_total"):
            return "counter"
        return "unknown" if self.mbean.endswith(_COUNTS) else "gauge"


def _read() -> dict[str, Name]:
    text = (files("kbroker.metrics") / "names.txt").read_text(encoding="utf-8")
    rows = (line.split("|") for line in text.splitlines() if line and not line.startswith("#"))
    found = [Name(*(field.strip() for field in [*row, "", ""][:4])) for row in rows]
    return {each.name: each for each in found}


BY_NAME: Final = _read()


def markdown() -> str:
    """Return the table for the docs."""
    rows = ["| metric | labels | meaning | Kafka's MBean |", "|---|---|---|---|"]
    for each in BY_NAME.values():
        mbean = f"`kafka.{each.mbean}`" if each.mbean else ""
        rows.append(f"| `{each.name}` | {each.labels} | {each.help} | {mbean} |")
    return "\n".join(rows) + "\n"


if TYPE_CHECKING:  # requires an extra
    from kbroker.metrics.pushed import Family

HELP = "Pushed by clients (KIP-714)"


def _samples(pauses: Pauses, name: str, values: Iterable[tuple[str, dict[str, str], float]]) -> list[Sample]:
    def made() -> Iterator[Sample]:
        for ending, labels, value in values:
            yield Sample(name + ending, labels, value)
            pauses.rest()

    # The library iterates over this once and in order, so a generator is enough.
    return cast("list[Sample]", made())


class _Collected(Collector):
    """Implements the interface of a registry for collected values."""

    def __init__(self, values: Values, families: Sequence[Family]) -> None:
        self._values = values
        self._families = families

    def collect(self) -> Iterable[Metric]:
        pauses = Pauses()
        put_all(self._values, "kafka_server_kafkaserver_linux_disk", _disk_bytes())
        for name, values in self._values.items():
            known = BY_NAME[name]
            family = Metric(name.removesuffix("_total"), known.help, known.kind)
            family.samples = _samples(pauses, name, (("", *each) for each in values))
            yield family
        for pushed in self._families:
            bare = pushed.name.removesuffix("_total") if pushed.kind == "counter" else pushed.name
            family = Metric(bare, HELP, pushed.kind)
            family.samples = _samples(pauses, pushed.name, pushed.samples)
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
    """Return the page and its content type for an Accept header. `families` are the metrics that clients pushed."""
    try:
        encode, content_type = choose_encoder(accept)
        return encode(_Collected(values, families)), content_type
    except TypeError:  # a version that is not a number
        encode, content_type = choose_encoder("")
        return encode(_Collected(values, families)), content_type


if __name__ == "__main__":
    print(markdown(), end="")
