"""Where something of ours is served over HTTP: addresses, what counts as this machine alone, and the socket.

Owns reading HOST:PORT, and which names in a request's Host cannot be somebody else's. Never imports a server: the
command line has its addresses from here.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

_LAST_PORT: Final = 65_535
_BACKLOG: Final = 128


class NoPlace(Exception):  # noqa: N818 - what happened
    """Why nothing can be served there, in one line."""


def parse(text: str, option: str, example: str) -> tuple[str, int]:
    """Read HOST:PORT; an IPv6 address stands in brackets. Raises NoPlace, which names the option and an example."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    wrong = not colon or not bare or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT
    if wrong or (":" in bare) != host.startswith("["):
        raise NoPlace(f"{option} takes HOST:PORT, as {example}, not {text!r}")
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """Write an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(listening: socket.socket, scheme: str = "http") -> str:
    """Return where a socket that listens is reached, by the address that it has."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://{joined(host, port)}"


def listening(host: str, port: int, option: str, *, not_public: str | None) -> socket.socket:
    """Return a socket that listens there; port 0 takes a free one.

    Raises NoPlace where others than this machine could come, which `not_public` says why not (None: they may), where
    the port is in use, and where the address is nobody's.
    """
    where = joined(host, port)
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise NoPlace(f"{option} {where}: unknown host") from None
    if not_public is not None and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise NoPlace(f"{option} {where}: others than this machine could reach it, and {not_public}")
    made = socket.socket(family, kind)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise NoPlace(f"{option} {where}: {(error.strerror or str(error)).lower()}") from None
    return made


def is_own(host: str) -> bool:
    """Whether the name in a Host cannot be somebody else's: an address, or localhost, which no DNS is asked for."""
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
