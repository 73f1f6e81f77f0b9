"""Where the control API listens, and who may be let in there.

Owns reading HOST:PORT, what counts as this machine alone, and the socket. Never imports the server: the command line
has its addresses from here.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import socket
from typing import Final

DEFAULT_PORT: Final = 9690
DEFAULT: Final = f"127.0.0.1:{DEFAULT_PORT}"
_LAST_PORT: Final = 65_535
_LIBRARIES: Final = ("starlette", "uvicorn")


class ControlError(Exception):
    """Why the control API cannot be served there, in one line."""


def parse(text: str, option: str = "--control") -> tuple[str, int]:
    """Read HOST:PORT; an IPv6 address stands in brackets. Raises ControlError."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    wrong = not colon or not bare or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT
    if wrong or (":" in bare) != host.startswith("["):
        raise ControlError(f"{option} takes HOST:PORT, as {DEFAULT}, not {text!r}")
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """Write an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(listening: socket.socket) -> str:
    """Return where a socket that listens is reached, by the address that it has."""
    host, port = listening.getsockname()[:2]
    return f"http://{joined(host, port)}"


def require_library() -> None:
    """Raise ControlError where the web server is not installed."""
    if any(importlib.util.find_spec(name) is None for name in _LIBRARIES):
        raise ControlError("--control needs a web server that is not installed: pip install 'kbroker[control]'")


def listening(host: str, port: int, *, public: bool) -> socket.socket:
    """Return a socket that listens there; port 0 takes a free one.

    Raises ControlError where others than this machine could come and that was not said (`public`), where the port is in
    use, and where the address is nobody's.
    """
    where = joined(host, port)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ControlError(f"--control {where}: unknown host") from None
    if not public and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise ControlError(
            f"--control {where}: others than this machine could reach it, and it lets everybody do everything; "
            "--control-public (KBROKER_CONTROL_PUBLIC=true in a container) allows that"
        )
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        raise ControlError(f"--control {where}: {(error.strerror or str(error)).lower()}") from None
    return made
