"""The services beside a broker of `kbroker start`: metrics and health, control API, web console, spans of requests.

Owns the options, and everything that must exist before the broker starts: the sockets, the clock that the control API
moves, and the check that packages are installed. So an address in use is reported immediately, and while logs are being
read, the metrics server already answers that the broker is starting. A server's module is imported only if that server
is requested. The console connects to the broker like any client, to a listener without TLS and login.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from kbroker.broker.base_node import Node
from kbroker.broker.node import BrokerNode
from kbroker.cli.output import Decorator, with_options
from kbroker.cli.registry_place import RegistryOptions, RegistryPlace, registry_options
from kbroker.clock import Clock, SystemClock
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.extras import how_to_install
from kbroker.local_http import CONSOLE, CONTROL, REGISTRY, parse, url_of
from kbroker.long_work import in_slices
from kbroker.network.server import bind, server_limits
from kbroker.share_partition.in_flight import InUse, in_use
from kbroker.testing.steered_clock import SteeredClock
from kbroker.traces.traces import Traces, exporting_to

if TYPE_CHECKING:
    from kbroker.console.server import ConsoleServer
    from kbroker.control.server import ControlServer
    from kbroker.metrics.pushed import PushedMetrics
    from kbroker.metrics.server import MetricsServer

_METRICS: Final = "127.0.0.1:9404"
_BACKLOG: Final = 128
_SERVICES: Final = {"control": CONTROL, "console": CONSOLE, "registry": REGISTRY}
_OF_TRACES: Final = "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_CLIENTS_LOGGERS: Final = ("kafka.admin", "kafka.cluster", "kafka.net", "kafka.producer")
"""The loggers of the console's Kafka client. They log each connection, which would fill the broker's log."""
log = logging.getLogger(__name__)


# -- options


def metrics_option(*, in_container: bool = False) -> Decorator:
    """Add --metrics."""
    return _address("metrics", _METRICS, "Serve /metrics, /healthz and /readyz over HTTP", in_container)


traces_options = with_options(
    click.option(
        "--traces",
        metavar="[URL]",
        is_flag=False,
        flag_value="",
        help="Export a span for each request over OTLP/HTTP. Without a URL, OTEL_EXPORTER_OTLP_* name the collector.",
    ),
    click.option(
        "--traces-ratio",
        type=click.FloatRange(0, 1),
        default=1.0,
        help="The share of requests with a span, from 0 to 1.",
    ),
)


def http_options(*, in_container: bool = False) -> Decorator:
    """Add --control, --console and --registry, and the options that make these servers reachable from elsewhere."""
    return with_options(
        _address(
            "control", CONTROL.default, "For tests: serve faults, time, requests and reset over HTTP", in_container
        ),
        _public("control", in_container),
        _address("console", CONSOLE.default, "Serve a web console", in_container),
        _public("console", in_container),
        _address("registry", REGISTRY.default, "Serve a schema registry with Confluent's API", in_container),
        _public("registry", in_container),
        registry_options(in_container=in_container),
    )


def _address(name: str, default: str, text: str, in_container: bool) -> Decorator:
    """Add the option for the address of a server; in a container an environment variable can also set the address."""
    return click.option(
        f"--{name}",
        metavar="[HOST:PORT]",
        is_flag=False,
        flag_value=default,
        envvar=f"KBROKER_{name.upper()}_LISTEN" if in_container else None,
        help=f"{text}; without HOST:PORT, at {default}.",
    )


def _public(name: str, in_container: bool) -> Decorator:
    return click.option(
        f"--{name}-public",
        is_flag=True,
        envvar=f"KBROKER_{name.upper()}_PUBLIC" if in_container else None,
        help=f"Allow an address of --{name} that other machines can reach. They can then do everything.",
    )


# -- before the broker


@dataclass(frozen=True, slots=True)
class _Place:
    """A listening socket for a server."""

    socket: socket.socket

    @property
    def url(self) -> str:
        """The server's URL, like "http://127.0.0.1:9404"."""
        return url_of(self.socket)


@dataclass(frozen=True, slots=True)
class MetricsPlace(_Place):
    """The socket at which metrics and health are served."""

    @contextlib.asynccontextmanager
    async def served(self, clock: Clock | None, *, takes_clients: bool) -> AsyncIterator[MetricsServer]:
        """Serve in the broker's loop; with `takes_clients`, also serve the metrics that clients push."""
        from kbroker.metrics.server import MetricsServer

        server = MetricsServer(self.socket, asyncio.get_running_loop())
        if takes_clients:
            server.pushed = _pushed(clock or SystemClock())
        server.start()
        try:
            yield server
        finally:  # in a thread, because running requests may wait for this loop
            await asyncio.to_thread(server.stop)


def _pushed(clock: Clock) -> PushedMetrics | None:
    """Return the receiver of clients' metrics; None if the extra for parsing them is not installed."""
    try:
        from kbroker.metrics.pushed import PushedMetrics
    except ImportError:
        log.info("clients push no metrics, because an extra is missing: %s", how_to_install("telemetry"))
        return None
    return PushedMetrics(clock)


@dataclass(frozen=True, slots=True)
class ControlPlace(_Place):
    """The socket at which the control API is served, and the broker's clock."""

    clock: SteeredClock
    public: bool

    def serve(self, node: Node) -> ControlServer:
        """Serve the control API of a broker; called in its loop."""
        from kbroker.control.server import ControlServer
        from kbroker.control.subject import RunningBroker

        assert isinstance(node, BrokerNode)
        return ControlServer(RunningBroker(node, self.clock), self.socket, public=self.public).start()


_PATIENCE_S: Final = 5.0
"""The seconds for which the console waits for the broker's loop."""


@dataclass(frozen=True, slots=True)
class ConsolePlace(_Place):
    """The socket at which the web console is served, and the broker's own registry, if it has one."""

    public: bool
    registry: RegistryPlace | None = None

    @contextlib.asynccontextmanager
    async def served(self, node: Node) -> AsyncIterator[ConsoleServer]:
        """Serve as long as the broker serves. Raises ConfigError without a suitable listener."""
        from kbroker.admin.connection import Connection
        from kbroker.admin.schemas import SchemaRegistry
        from kbroker.console.console import Settings
        from kbroker.console.server import ConsoleServer

        for name in _CLIENTS_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        where = _plain_address(node)
        told = partial(_in_flight, node, asyncio.get_running_loop())
        settings = Settings(public=self.public, cli=("--bootstrap", where), in_flight=told)
        registry = None
        if self.registry is not None and (url := self.registry.url_for_console) is not None:
            registry = SchemaRegistry(url, self.registry.ca)
        elif self.registry is not None:
            log.info(
                "the console has no pages of the schema registry, because it requires a login; "
                "`kbroker console --registry https://USER:PASSWORD@HOST:PORT` has these pages"
            )
        server = ConsoleServer(Connection(where, {}), self.socket, settings, registry=registry).start()
        try:
            yield server
        finally:  # in a thread, because running requests may wait for this loop
            await asyncio.to_thread(server.stop)


def _in_flight(node: Node, loop: asyncio.AbstractEventLoop, group: str, most: int) -> list[InUse]:
    """Return a share group's records in flight; must be called in a thread other than the loop's."""
    work = in_slices(in_use(node.services.share, group, most))
    return asyncio.run_coroutine_threadsafe(work, loop).result(_PATIENCE_S)


def _plain_address(node: Node) -> str:
    """Return the address of a listener without login. Raises ConfigError."""
    listeners = node.config.listeners
    for listener, address in zip(listeners.bind, node.addresses, strict=True):
        if listeners.protocols[listener.name] == "PLAINTEXT":
            return str(address).replace("0.0.0.0:", "127.0.0.1:", 1)
    raise ConfigError("--console needs a listener of PLAINTEXT; `kbroker console --command-config FILE` logs in")


@dataclass(frozen=True, slots=True)
class TracesPlace:
    """The destination of spans, and the share of requests that get a span."""

    url: str
    ratio: float

    @contextlib.asynccontextmanager
    async def of(self, node: Node) -> AsyncIterator[None]:
        """Trace the requests of a broker. Raises OSError."""
        about = {"service.instance.id": str(node.node_id), "kafka.cluster.id": node.cluster_id}
        traces = await asyncio.to_thread(Traces, exporting_to(self.url, about))
        node.server.dispatcher.trace(traces.note, self.ratio)
        try:
            yield
        finally:
            node.server.dispatcher.trace(None)
            await asyncio.to_thread(traces.close)  # in a thread, because the end of tracing may wait for a collector


@dataclass(frozen=True, slots=True)
class Beside:
    """The services beside the broker that were requested."""

    control: ControlPlace | None = None
    metrics: MetricsPlace | None = None
    console: ConsolePlace | None = None
    traces: TracesPlace | None = None
    registry: RegistryPlace | None = None

    @property
    def urls(self) -> dict[str, str]:
        """The addresses of the requested servers, by name."""
        servers = {
            "control": self.control,
            "metrics": self.metrics,
            "console": self.console,
            "registry": self.registry,
        }
        return {name: each.url for name, each in servers.items() if each is not None}


@contextlib.contextmanager
def places(
    config: BrokerConfig,
    *,
    metrics: str | None,
    control: str | None,
    control_public: bool,
    console: str | None,
    console_public: bool,
    registry: str | None = None,
    registry_public: bool = False,
    traces: str | None = None,
    traces_ratio: float = 1.0,
    **of_registry: Any,
) -> Iterator[Beside]:
    """Prepare the requested services before the broker starts. Raises NoPlace, ConfigError and OSError.

    The parameters are the values of the options; `of_registry` are those of `registry_options`.
    """
    with contextlib.ExitStack() as stack:

        def closing(made: socket.socket) -> socket.socket:
            return stack.enter_context(contextlib.closing(made))

        of_metrics = None if metrics is None else MetricsPlace(closing(_metrics_socket(metrics, config)))
        of_control = of_console = None
        if _is_wanted("control", control, public=control_public):
            if config.in_cluster:
                raise ConfigError("--control needs a broker without a cluster, but zookeeper.connect is set")
            made = closing(_http_socket("control", str(control), public=control_public))
            of_control = ControlPlace(made, SteeredClock(), control_public)
        registry_at = None
        options = RegistryOptions.of(**of_registry)
        if _is_wanted("registry", registry, public=registry_public):
            made = closing(options.listening(*_http_address("registry", str(registry)), public=registry_public))
            registry_at = RegistryPlace(made, options)
        elif options.given:
            raise ConfigError(f"{options.given} has no effect without --registry")
        if _is_wanted("console", console, public=console_public):
            made = closing(_http_socket("console", str(console), public=console_public))
            of_console = ConsolePlace(made, console_public, registry_at)
        yield Beside(of_control, of_metrics, of_console, traces_place(traces, traces_ratio), registry_at)


def _is_wanted(name: str, at: str | None, *, public: bool) -> bool:
    if at is None and public:
        raise ConfigError(f"--{name}-public has no effect without --{name}")
    return at is not None


def _http_socket(name: str, at: str, *, public: bool) -> socket.socket:
    return _SERVICES[name].listening(*_http_address(name, at), f"--{name}", public=public)


def _http_address(name: str, at: str) -> tuple[str, int]:
    """Return the address of a server whose module can be loaded. Raises NoPlace."""
    service = _SERVICES[name]
    host, port = parse(at, f"--{name}", service.default)
    service.require(f"--{name}")
    import_module(
        f"kbroker.{'registry_api' if name == 'registry' else name}.server"
    )  # imported now: the import takes longer than a broker's loop may block
    return host, port


def _metrics_socket(at: str, config: BrokerConfig) -> socket.socket:
    host, port = parse(at, "--metrics", _METRICS)
    import_module("kbroker.metrics.server")  # imported now: the import takes longer than a broker's loop may block
    with contextlib.suppress(ImportError):  # the module needs an extra
        import_module("kbroker.metrics.pushed")
    made = bind(host, port, server_limits(config))
    made.setblocking(True)
    made.listen(_BACKLOG)
    return made


def traces_place(url: str | None, ratio: float) -> TracesPlace | None:
    """Return the destination of spans; None without a URL. Raises ConfigError for an invalid URL."""
    if url is None:
        return None
    if url and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConfigError(f"--traces takes a URL such as http://127.0.0.1:4318, not {url!r}")
    try:
        missing = next((each for each in _OF_TRACES if find_spec(each) is None), None)
    except ImportError as error:  # even the parent package of this module is missing
        missing = error.name
    if missing is not None:
        raise ConfigError(f"--traces needs more than kbroker alone: {how_to_install('traces')} (no {missing})")
    return TracesPlace(url, ratio)
