"""The control API's address, and whether it may be public. Never imports the server, for the command line's sake."""

from __future__ import annotations

import importlib.util
import socket
from typing import Final

from kbroker import local_http
from kbroker.extras import how_to_install
from kbroker.local_http import NoPlace

DEFAULT_PORT: Final = 9690
DEFAULT: Final = f"127.0.0.1:{DEFAULT_PORT}"
_LIBRARIES: Final = ("starlette", "uvicorn")
_NOT_PUBLIC: Final = (
    "it lets everybody do everything; --control-public (KBROKER_CONTROL_PUBLIC=true in a container) allows that"
)


def parse(text: str, option: str = "--control") -> tuple[str, int]:
    """Read HOST:PORT; raises NoPlace."""
    return local_http.parse(text, option, DEFAULT)


def require_library() -> None:
    """Raise NoPlace if the web server is not installed."""
    if any(importlib.util.find_spec(name) is None for name in _LIBRARIES):
        raise NoPlace(f"--control needs a web server that is not installed: {how_to_install('control')}")


def listening(host: str, port: int, *, public: bool) -> socket.socket:
    """Return a listening socket; raises NoPlace, also for a public address without permission."""
    return local_http.listening(host, port, "--control", not_public=None if public else _NOT_PUBLIC)
