"""Spans of requests beside a broker that `kbroker start` runs.

Owns the options, and that what exports them is loaded where it is asked for, and not before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import click

from kbroker.broker.base_node import Node
from kbroker.config.model import ConfigError

if TYPE_CHECKING:  # needs an extra
    from opentelemetry.sdk.trace.export import SpanExporter

_T = TypeVar("_T")


def traces_options() -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Add --traces and --traces-ratio."""

    def add(command: Callable[..., _T]) -> Callable[..., _T]:
        command = click.option(
            "--traces-ratio",
            type=click.FloatRange(0, 1),
            default=1.0,
            help="Share of the requests that have a span, 0 to 1.",
        )(command)
        return click.option(
            "--traces",
            metavar="[URL]",
            is_flag=False,
            flag_value="",
            help="Export a span for each request over OTLP/HTTP; without URL to where OTEL_EXPORTER_OTLP_* says.",
        )(command)

    return add


@dataclass(frozen=True, slots=True)
class TracesPlace:
    """Where spans go, and for which share of requests."""

    exporter: SpanExporter
    ratio: float

    @contextlib.asynccontextmanager
    async def of(self, node: Node) -> AsyncIterator[None]:
        """Have the requests of a broker traced."""
        from kbroker.traces.spans import Traces

        about = {"service.instance.id": str(node.node_id), "kafka.cluster.id": node.cluster_id}
        traces = Traces(self.exporter, self.ratio, about)
        node.server.dispatcher.trace(traces.note)
        try:
            yield
        finally:
            node.server.dispatcher.trace(None)
            await asyncio.to_thread(traces.close)  # it may wait for a collector


def traces_place(url: str | None, ratio: float) -> TracesPlace | None:
    """Return where spans are to go; None without a URL. Raises ConfigError where that cannot be."""
    if url is None:
        return None
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConfigError(f"--traces takes a URL, as http://127.0.0.1:4318, not {url!r}")
    try:
        from kbroker.traces.spans import exporter_to
    except ImportError as error:
        raise ConfigError(f"--traces needs more than kbroker alone: pip install 'kbroker[traces]' ({error})") from None
    return TracesPlace(exporter_to(url), ratio)
