"""The control API's server: web_server.py around the application.

The server uses Starlette and uvicorn instead of FastAPI. FastAPI needs pydantic, and takes 0.5 s and 25 MB to load
instead of 0.13 s and 13 MB. The checks and the document that FastAPI offers are here derived from a table of operations
(values.py, document.py).
"""

from __future__ import annotations

import logging
import socket
from typing import Final

from kbroker.control.application import AT_ONCE, application
from kbroker.control.known_faults import KnownFaults
from kbroker.control.known_snapshots import KnownSnapshots
from kbroker.control.operations import Control
from kbroker.control.subject import Subject
from kbroker.web_connection import TimedH11Connection
from kbroker.web_server import WebServer

CONNECTIONS: Final = 100
"""The maximum number of concurrent connections. Further connections get the status 503."""
_THREADS: Final = 2 * AT_ONCE + 8
"""The number of threads: one for each concurrent operation, and some for readers of streams.

Python's default on two processors is six.
"""
_LARGEST_HEAD: Final = 16 * 1024
log = logging.getLogger(__name__)


class ControlServer(WebServer):
    """Serves the control API of one broker on a listening socket until `stop`. It is also a context manager.

    The broker's own thread must not call `stop`, because a running operation may be waiting for that thread.
    """

    def __init__(self, subject: Subject, listening: socket.socket, *, public: bool = False) -> None:
        """Create the server.

        A `public` server accepts any host name; another server accepts only an address or localhost.
        """
        self._control = Control(subject, KnownFaults(subject.faults), KnownSnapshots())
        super().__init__(
            application(self._control, public=public),
            listening,
            "control API",
            log,
            self._control.ending.set,
            protocol=TimedH11Connection,
            connections=CONNECTIONS,
            largest_head=_LARGEST_HEAD,
            threads=_THREADS,
            beside_broker=True,
        )

    def stop(self) -> None:
        """Stop the server, and delete the snapshots."""
        super().stop()
        self._control.snapshots.close()
