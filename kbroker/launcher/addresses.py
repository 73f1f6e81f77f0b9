"""The addresses of a cluster's brokers: their text, free ports, and how this machine reaches them.

Owns their form in tables, in lines to copy and in settings. Never starts anything.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from kbroker.launcher.child import LauncherError

LAST_PORT: Final = 65_535
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def reached_at(host: str) -> str:
    """Return the address at which this machine reaches a listener on `host`."""
    return _ANYWHERE.get(host, host)


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Read HOST:PORT, as given to an option."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > LAST_PORT:
        raise LauncherError(f"{option} takes HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """Format an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that are free at this moment, all different."""
    with ExitStack() as held:
        return [held.enter_context(bound(host, 0)).getsockname()[1] for _ in range(count)]


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; raises OSError if the address is in use."""
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    except BaseException:
        probe.close()
        raise
    return probe
