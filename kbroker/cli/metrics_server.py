"""Metrics and health beside a broker that `kbroker start` runs.

Owns the option, and the socket, which exists before the broker: an address in use is reported at once, and a client
learns that the broker is starting while logs are being read. The server is loaded on demand only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar

import click

from kbroker.clock import Clock, SystemClock
from kbroker.config.server_config import BrokerConfig
from kbroker.extras import how_to_install
from kbroker.local_http import parse, url_of
from kbroker.network.server import bind, server_limits

if TYPE_CHECKING:
    from kbroker.metrics.pushed import PushedMetrics
    from kbroker.metrics.server import MetricsServer

log = logging.getLogger(__name__)

DEFAULT: Final = "127.0.0.1:9404"
_BACKLOG: Final = 128
_T = TypeVar("_T")


def metrics_option(at: str | None = None) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Add --metrics, with an environment variable as an alternative, if any."""
    return click.option(
        "--metrics",
        metavar="[HOST:PORT]",
        is_flag=False,
        flag_value=DEFAULT,
        envvar=at,
        help=f"Serve /metrics, /healthz and /readyz over HTTP, without HOST:PORT at {DEFAULT}.",
    )


@dataclass(frozen=True, slots=True)
class MetricsPlace:
    """A listening socket for metrics."""

    socket: socket.socket

    @property
    def url(self) -> str:
        """Its address, as "http://127.0.0.1:9404"."""
        return url_of(self.socket)

    @contextlib.asynccontextmanager
    async def served(self, clock: Clock | None, *, takes_clients: bool) -> AsyncIterator[MetricsServer]:
        """Serve in the broker's loop, with the metrics that clients push if they are accepted."""
        from kbroker.metrics.server import MetricsServer

        server = MetricsServer(self.socket, asyncio.get_running_loop())
        if takes_clients:
            server.pushed = _pushed(clock or SystemClock())
        server.start()
        try:
            yield server
        finally:  # in a thread, because its requests may wait for this loop
            await asyncio.to_thread(server.stop)


def _pushed(clock: Clock) -> PushedMetrics | None:
    """Return the receiver of clients' metrics; None without the extra that reads them."""
    try:
        from kbroker.metrics.pushed import PushedMetrics
    except ImportError:
        log.info(
            "clients are not asked for their metrics, for which an extra is missing: %s", how_to_install("telemetry")
        )
        return None
    return PushedMetrics(clock)


@contextlib.contextmanager
def metrics_place(at: str | None, config: BrokerConfig) -> Iterator[MetricsPlace | None]:
    """Prepare the place before the broker starts; None without `at`. Raises NoPlace, ConfigError and OSError."""
    if at is None:
        yield None
        return
    host, port = parse(at, "--metrics", DEFAULT)
    import_module("kbroker.metrics.server")  # here, because it takes longer than a broker's loop may block
    with contextlib.suppress(ImportError):  # it needs an extra
        import_module("kbroker.metrics.pushed")
    with contextlib.closing(bind(host, port, server_limits(config))) as made:
        made.setblocking(True)
        made.listen(_BACKLOG)
        yield MetricsPlace(made)
