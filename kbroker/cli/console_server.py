"""The web console beside a broker that `kbroker start` runs.

Owns the two options, and the socket, which exists before the broker: an address in use is reported at once. The server
is loaded on demand, and connects to the broker like any client, to a listener without TLS and login.
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

from kbroker.broker.base_node import Node
from kbroker.config.model import ConfigError
from kbroker.console.listen_address import DEFAULT, listening, parse, require_libraries
from kbroker.local_http import url_of

if TYPE_CHECKING:
    from kbroker.console.server import ConsoleServer

_T = TypeVar("_T")
_CLIENTS_LOGGERS: Final = ("kafka.admin", "kafka.cluster", "kafka.net", "kafka.producer")
"""The loggers of the client behind the pages: it logs each connection, which would be in the broker's own log."""
_HINT: Final = "`kbroker console --command-config FILE` logs in"


def console_options(
    at: str | None = None, public: str | None = None
) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Add --console and --console-public, with environment variables as alternatives, if any."""

    def add(function: Callable[..., _T]) -> Callable[..., _T]:
        function = click.option(
            "--console-public",
            is_flag=True,
            envvar=public,
            help="Let --console listen where others reach it: whoever does can do everything.",
        )(function)
        return click.option(
            "--console",
            metavar="[HOST:PORT]",
            is_flag=False,
            flag_value=DEFAULT,
            envvar=at,
            help=f"Serve a web console, without HOST:PORT at {DEFAULT}.",
        )(function)

    return add


@dataclass(frozen=True, slots=True)
class ConsolePlace:
    """A listening socket for the console."""

    socket: socket.socket
    public: bool

    @property
    def url(self) -> str:
        """Its address, as "http://127.0.0.1:8080"."""
        return url_of(self.socket)

    @contextlib.asynccontextmanager
    async def served(self, node: Node) -> AsyncIterator[ConsoleServer]:
        """Serve as long as the broker does. Raises ConfigError without a suitable listener."""
        from kbroker.admin.connection import Connection
        from kbroker.console.console import Settings
        from kbroker.console.server import ConsoleServer

        for name in _CLIENTS_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        where = plain_address(node)
        settings = Settings(public=self.public, cli=("--bootstrap", where))
        server = ConsoleServer(Connection(where, {}), self.socket, settings).start()
        try:
            yield server
        finally:  # in a thread, because its requests may wait for this loop
            await asyncio.to_thread(server.stop)


def plain_address(node: Node) -> str:
    """Return the address of a listener without login; raises ConfigError."""
    listeners = node.config.listeners
    for listener, address in zip(listeners.bind, node.addresses, strict=True):
        if listeners.protocols[listener.name] == "PLAINTEXT":
            return str(address).replace("0.0.0.0:", "127.0.0.1:", 1)
    raise ConfigError(f"--console needs a listener of PLAINTEXT; {_HINT}")


@contextlib.contextmanager
def console_place(at: str | None, *, public: bool) -> Iterator[ConsolePlace | None]:
    """Prepare the place before the broker starts; None without `at`. Raises NoPlace and ConfigError."""
    if at is None:
        if public:
            raise ConfigError("--console-public says nothing without --console")
        yield None
        return
    host, port = parse(at, "--console")
    require_libraries("--console")
    import_module("kbroker.console.server")  # here, because it takes longer than a broker's loop may block
    with contextlib.closing(listening(host, port, "--console", allowed="public" if public else None)) as made:
        yield ConsolePlace(made, public)
