"""The console's listen address, and which addresses are allowed. Imports no web server, for the command line's sake."""

from __future__ import annotations

import importlib.util
import socket
from typing import Final

from kbroker import local_http
from kbroker.extras import how_to_install
from kbroker.local_http import NoPlace

DEFAULT_PORT: Final = 8080
DEFAULT: Final = f"127.0.0.1:{DEFAULT_PORT}"
_LIBRARIES: Final = ("starlette", "uvicorn", "jinja2", "js_lib_htmx")
_NOT_PUBLIC: Final = (
    "no user would have to log in; --user or --users of `kbroker console` asks for a password, --console-public "
    "(KBROKER_CONSOLE_PUBLIC=true in a container) allows it without"
)


def require_libraries(option: str = "the console") -> None:
    """Raise NoPlace if the console's packages are not installed."""
    if any(importlib.util.find_spec(name) is None for name in _LIBRARIES):
        raise NoPlace(f"{option} needs packages that are not installed: {how_to_install('console')}")


def parse(text: str, option: str) -> tuple[str, int]:
    """Read HOST:PORT; raises NoPlace."""
    return local_http.parse(text, option, DEFAULT)


def listening(host: str, port: int, option: str, *, allowed: str | None) -> socket.socket:
    """Return a listening socket; raises NoPlace, also for a public address that no option allows."""
    return local_http.listening(host, port, option, not_public=None if allowed else _NOT_PUBLIC)
