"""The addresses of a cluster's brokers: how they are written, which are free, and where this machine reaches them.

Owns what stands for them in tables, in lines to copy and in settings. Never starts anything.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from kbroker.launcher.child import LauncherError

LAST_PORT: Final = 65_535
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}


def reached_at(host: str) -> str:
    """Return where this machine reaches what listens on `host`."""
    return _ANYWHERE.get(host, host)


def parse_listen(text: str, option: str = "--listen") -> tuple[str, int]:
    """Read HOST:PORT, as given to an option."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > LAST_PORT:
        raise LauncherError(f"{option} takes HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def joined(host: str, port: int) -> str:
    """Write an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_ports(host: str, count: int) -> list[int]:
    """Return ports that nobody listens on at this moment, all different."""
    with ExitStack() as held:
        return [held.enter_context(bound(host, 0)).getsockname()[1] for _ in range(count)]


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that has an address; raises OSError where it is taken."""
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
    except BaseException:
        probe.close()
        raise
    return probe
