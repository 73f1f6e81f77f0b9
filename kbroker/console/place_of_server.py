"""Where the console listens, and who may be let in there.

Owns reading HOST:PORT, what counts as this machine alone, and the socket. Imports no web server: the command line has
its addresses from here.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import socket
from typing import Final

from kbroker.admin.errors import AdminError

DEFAULT_PORT: Final = 8080
DEFAULT: Final = f"127.0.0.1:{DEFAULT_PORT}"
_LAST_PORT: Final = 65_535
_LIBRARIES: Final = ("starlette", "uvicorn", "jinja2", "js_lib_htmx")


def require_libraries(option: str = "the console") -> None:
    """Raise AdminError where what it is made of is not installed."""
    if any(importlib.util.find_spec(name) is None for name in _LIBRARIES):
        raise AdminError(f"{option} needs packages that are not installed: pip install 'kbroker[console]'")


def parse(text: str, option: str) -> tuple[str, int]:
    """Read HOST:PORT; an IPv6 address stands in brackets. Raises AdminError."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    wrong = not colon or not bare or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT
    if wrong or (":" in bare) != host.startswith("["):
        raise AdminError(f"{option} takes HOST:PORT, as {DEFAULT}, not {text!r}")
    return bare, int(port)


def url_of(listening: socket.socket, *, secure: bool) -> str:
    """Return where a socket that listens is reached, by the address that it has."""
    host, port = listening.getsockname()[:2]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"{'https' if secure else 'http'}://{where}"


def listening(host: str, port: int, option: str, *, allowed: str | None) -> socket.socket:
    """Return a socket that listens there; port 0 takes a free one.

    Raises AdminError where others than this machine could come and nothing allows that (`allowed` is what does), where
    the port is in use, and where the address is nobody's.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise AdminError(f"{option} {where}: unknown host") from None
    if allowed is None and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise AdminError(
            f"{option} {where}: others than this machine could reach it, and nobody would have to log in; "
            "--user or --users of `kbroker console` asks for a password, "
            "--console-public (KBROKER_CONSOLE_PUBLIC=true in a container) allows it without"
        )
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        raise AdminError(f"{option} {where}: {(error.strerror or str(error)).lower()}") from None
    return made
