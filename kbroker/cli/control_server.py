"""The control API beside a broker that `kbroker start` runs.

Owns the two options, and the parts that exist before the broker: its address, its socket, the clock that it moves. The
server itself is loaded on demand only.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.broker.base_node import Node
from kbroker.broker.node import BrokerNode
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.control.listen_address import DEFAULT, listening, parse, require_library
from kbroker.local_http import url_of
from kbroker.testing.steered_clock import SteeredClock

if TYPE_CHECKING:
    from kbroker.control.server import ControlServer

_T = TypeVar("_T")


def control_options(
    at: str | None = None, public: str | None = None
) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Add --control and --control-public, with environment variables as alternatives, if any."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.option(
            "--control-public",
            is_flag=True,
            envvar=public,
            help="Let --control listen where others reach it: whoever does can do everything.",
        )(function)
        return click.option(
            "--control",
            metavar="[HOST:PORT]",
            is_flag=False,
            flag_value=DEFAULT,
            envvar=at,
            help=f"For tests: serve faults, time, requests and reset over HTTP, without HOST:PORT at {DEFAULT}.",
        )(function)

    return add


@dataclass(frozen=True, slots=True)
class ControlPlace:
    """A listening socket, and the broker's clock."""

    socket: socket.socket
    clock: SteeredClock
    public: bool

    @property
    def url(self) -> str:
        """Its address, as "http://127.0.0.1:9690"."""
        return url_of(self.socket)

    def serve(self, node: Node) -> ControlServer:
        """Serve the control API of a broker; called in its loop."""
        from kbroker.control.server import ControlServer
        from kbroker.control.subject import RunningBroker

        assert isinstance(node, BrokerNode)
        return ControlServer(RunningBroker(node, self.clock), self.socket, public=self.public).start()


@contextlib.contextmanager
def control_place(at: str | None, config: BrokerConfig, *, public: bool) -> Iterator[ControlPlace | None]:
    """Prepare the place before the broker starts, so that errors are reported at once; None without `at`.

    Raises NoPlace and ConfigError.
    """
    if at is None:
        if public:
            raise ConfigError("--control-public says nothing without --control")
        yield None
        return
    if config.in_cluster:
        raise ConfigError("--control is for a broker that is alone, and zookeeper.connect makes it one of a cluster")
    host, port = parse(at)
    require_library()
    import_module("kbroker.control.server")  # here, because it takes longer than a broker's loop may block
    with contextlib.closing(listening(host, port, public=public)) as made:
        yield ControlPlace(made, SteeredClock(), public)
