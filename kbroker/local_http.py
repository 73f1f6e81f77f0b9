"""Serving over HTTP: addresses, the check whether only this machine can reach an address, and the socket.

Owns the parsing of HOST:PORT, the names in a Host header that cannot belong to another site, and the packages that the
control API and the web console need. Never imports a server, because the command line imports this module.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

from kbroker.extras import how_to_install

_LAST_PORT: Final = 65_535
_BACKLOG: Final = 128


class NoPlace(Exception):  # noqa: N818 - an outcome
    """A server cannot use an address; the text is the reason, in one line."""


def parse(text: str, option: str, example: str) -> tuple[str, int]:
    """Read HOST:PORT, with an IPv6 address in brackets. Raises NoPlace, which names the option and an example."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    wrong = not colon or not bare or not (port.isascii() and port.isdecimal()) or int(port) > _LAST_PORT
    if wrong or (":" in bare) != host.startswith("["):
        raise NoPlace(f"{option} takes HOST:PORT, as {example}, not {text!r}")
    return bare, int(port)


def joined(host: str, port: int) -> str:
    """Format an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def url_of(listening: socket.socket, scheme: str = "http") -> str:
    """Return the URL of a listening socket, with its actual address."""
    host, port = listening.getsockname()[:2]
    return f"{scheme}://{joined(host, port)}"


def listening(host: str, port: int, option: str, *, not_public: str | None) -> socket.socket:
    """Return a socket that listens at an address; port 0 selects a free port.

    Raises NoPlace if the port is in use, or if this machine does not have the address. If other machines could connect
    and `not_public` is given, also raises NoPlace with this reason.
    """
    where = joined(host, port)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise NoPlace(f"{option} {where}: unknown host") from None
    if not_public is not None and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise NoPlace(f"{option} {where}: other machines could reach it, and {not_public}")
    # asyncio sets TCP_NODELAY only on sockets that name TCP. Without TCP_NODELAY, an answer's body is sent 40 ms after
    # its head.
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise NoPlace(f"{option} {where}: {(error.strerror or str(error)).lower()}") from None
    return made


@dataclass(frozen=True, slots=True)
class Service:
    """A service: its default address, its packages, and why other machines must not reach it by default."""

    default: str
    extra: str
    packages: tuple[str, ...]
    needs: str
    not_public: str

    def require(self, user: str) -> None:
        """Raise NoPlace, with a text that begins with `user`, if the service's packages are not installed."""
        if any(importlib.util.find_spec(name) is None for name in self.packages):
            raise NoPlace(f"{user} needs {self.needs} not installed: {how_to_install(self.extra)}")

    def listening(
        self, host: str, port: int, option: str, *, public: bool, not_public: str | None = None
    ) -> socket.socket:
        """Return a listening socket.

        Raises NoPlace. Without `public`, also raises NoPlace for an address to which other machines could connect. The
        text then contains the reason `not_public`, by default the service's own reason.
        """
        return listening(host, port, option, not_public=None if public else not_public or self.not_public)


CONTROL: Final = Service(
    "127.0.0.1:9690",
    "control",
    ("starlette", "uvicorn"),
    "a web server that is",
    "it lets everybody do everything; --control-public (KBROKER_CONTROL_PUBLIC=true in a container) allows that",
)
CONSOLE: Final = Service(
    "127.0.0.1:8080",
    "console",
    ("starlette", "uvicorn", "jinja2", "js_lib_htmx"),
    "packages that are",
    "no user would have to log in; --user or --users of `kbroker console` asks for a password, --console-public "
    "(KBROKER_CONSOLE_PUBLIC=true in a container) allows it without",
)

REGISTRY: Final = Service(
    "127.0.0.1:8081",
    "registry",
    ("starlette", "uvicorn", "avro", "fastavro", "jsonschema_rs"),
    "packages that are",
    "everybody could register and delete schemas; --registry-auth BASIC with --registry-tls-cert asks for a password, "
    "--registry-public (KBROKER_REGISTRY_PUBLIC=true in a container) allows it without",
)


def is_own(host: str) -> bool:
    """Whether a Host header's name cannot belong to another site: an address, or localhost, which needs no DNS."""
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
