"""Refuses connections over the limits, and logs the refusals: at most one line a second for each reason.

Owns the limits of open connections, and the number of descriptors that are reserved for the logs.
quota/connection_rate.py limits the rate of new connections. Never closes a connection.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Mapping
from typing import Protocol

log = logging.getLogger(__name__)

_PAUSE = 1.0
"""The number of seconds between two lines for the same reason."""
_DESCRIPTORS_RESERVED = 64
"""Descriptors that are reserved for other uses than connections: a roll, a checkpoint, a segment that is read."""
NO_DESCRIPTOR = "descriptors are needed for logs (ulimit -n)"
"""The reason for refusing a connection whose descriptor is `last_descriptor` or higher."""


def last_descriptor() -> int:
    """Return the lowest descriptor that connections must not use. This and all higher descriptors have other uses."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _DESCRIPTORS_RESERVED


class Limits(Protocol):
    """The limits of open connections."""

    @property
    def max_connections(self) -> int: ...

    @property
    def max_connections_per_ip(self) -> int: ...

    @property
    def per_ip_overrides(self) -> Mapping[str, int]: ...


def refusing_limit(limits: Limits, host: str, own: int, of_all: int) -> str | None:
    """Return the limit that refuses one more connection of a host with `own` connections; None if no limit does."""
    if of_all >= limits.max_connections:
        return f"too many connections (max.connections={limits.max_connections})"
    if own >= limits.per_ip_overrides.get(host, limits.max_connections_per_ip):
        key = "max.connections.per.ip" + (".overrides" if host in limits.per_ip_overrides else "")
        return f"too many connections of one address ({key})"
    return None


class Refusals:
    """Logs refusals by reason. There are few reasons: each names a setting that an operator may change."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def log(self, peer: str, reason: str) -> None:
        """Count and log a refusal."""
        if reason in self._timers:
            self._counts[reason] = self._counts.get(reason, 0) + 1
        else:
            log.info("refusing a connection from %s: %s", peer, reason)
            self._wait(reason)

    def close(self) -> None:
        """Log the refusals that are not logged yet."""
        for reason, timer in list(self._timers.items()):
            timer.cancel()
            self._sum_up(reason)
        self._timers.clear()

    def _wait(self, reason: str) -> None:
        self._timers[reason] = self._loop.call_later(_PAUSE, self._is_over, reason)

    def _is_over(self, reason: str) -> None:
        if self._sum_up(reason):
            self._wait(reason)
        else:
            del self._timers[reason]

    def _sum_up(self, reason: str) -> bool:
        count = self._counts.pop(reason, 0)
        if count:
            log.info("refused %d more connections: %s", count, reason)
        return bool(count)
