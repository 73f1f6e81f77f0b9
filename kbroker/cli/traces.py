"""Spans of requests beside a broker that `kbroker start` runs.

Owns the options, and the check that the exporter is installed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final, TypeVar
from urllib.parse import urlsplit

import click

from kbroker.broker.base_node import Node
from kbroker.config.model import ConfigError
from kbroker.extras import how_to_install
from kbroker.traces.traces import Traces, exporting_to

_NEEDED: Final = "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"
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
    """The destination of spans, and the share of requests that have one."""

    url: str
    ratio: float

    @contextlib.asynccontextmanager
    async def of(self, node: Node) -> AsyncIterator[None]:
        """Trace the requests of a broker; raises OSError."""
        about = {"service.instance.id": str(node.node_id), "kafka.cluster.id": node.cluster_id}
        traces = await asyncio.to_thread(Traces, exporting_to(self.url, about))
        node.server.dispatcher.trace(traces.note, self.ratio)
        try:
            yield
        finally:
            node.server.dispatcher.trace(None)
            await asyncio.to_thread(traces.close)  # it may wait for a collector


def traces_place(url: str | None, ratio: float) -> TracesPlace | None:
    """Return the destination of spans; None without a URL. Raises ConfigError for an invalid one."""
    if url is None:
        return None
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConfigError(f"--traces takes a URL, as http://127.0.0.1:4318, not {url!r}")
    try:
        missing = next((each for each in _NEEDED if find_spec(each) is None), None)
    except ImportError as error:  # not even its parent package
        missing = error.name
    if missing is not None:
        raise ConfigError(f"--traces needs more than kbroker alone: {how_to_install('traces')} (no {missing})")
    return TracesPlace(url, ratio)
