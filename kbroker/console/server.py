"""The console's server: connections, TLS, and the order of a stop: first streams, then the server, then clients."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from kbroker.admin.connection import Connection
from kbroker.admin.registry_schemas import RegistrySchemas
from kbroker.admin.schemas import SchemaRegistry
from kbroker.console.application import application
from kbroker.console.console import Console, Settings
from kbroker.console.decoding.schemas import Schemas
from kbroker.web_connection import TimedH11Connection
from kbroker.web_server import WebServer

CONNECTIONS: Final = 200
_LARGEST_HEAD: Final = 32 * 1024
log = logging.getLogger(__name__)


class ConsoleServer(WebServer):
    """Serves a console on a listening socket until `stop`, also as a context manager."""

    def __init__(
        self,
        connection: Connection,
        listening: socket.socket,
        settings: Settings,
        *,
        schemas: Path | None = None,
        registry: SchemaRegistry | None = None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        settings = replace(settings, port=int(listening.getsockname()[1]), secure=tls is not None)
        self.console = Console(
            connection, settings, Schemas(schemas, None if registry is None else RegistrySchemas(registry))
        )
        super().__init__(
            application(self.console),
            listening,
            "console",
            log,
            self.console.end,
            protocol=TimedH11Connection,
            connections=CONNECTIONS,
            largest_head=_LARGEST_HEAD,
            tls=tls,
        )

    def start(self) -> Self:
        """Serve in a thread, and begin to sample."""
        self.console.sampler.start()
        return super().start()

    def stop(self) -> None:
        """Stop, and release all resources."""
        super().stop()
        self.console.close()
