"""Which connections the sweep closes, without sockets and without waiting."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.server_config import BrokerConfig
from kbroker.network.dispatch import Dispatcher
from kbroker.network.server import Server, server_limits


class Idle:
    """A connection that has never moved."""

    peer = "127.0.0.1:1"
    listener = "PLAINTEXT"
    idle_since = 0.0
    ended = False

    def has_moved(self) -> bool:
        return False

    def abort(self) -> None:
        self.ended = True


@pytest.mark.parametrize(("max_idle_ms", "ends"), [(999, True), (1000, True), (1001, False), (-1, False)])
def test_what_has_been_idle_for_long_is_closed_unless_the_limit_is_negative(max_idle_ms: int, ends: bool) -> None:
    async def scenario() -> bool:
        services: Any = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: 1000.0))
        limits = replace(server_limits(BrokerConfig()), max_idle_ms=max_idle_ms)
        server, connection = Server(services, Dispatcher(), limits), Idle()
        server.opened(connection)  # type: ignore[arg-type]
        server._close_idle()
        assert server._sweep is not None
        server._sweep.cancel()
        return connection.ended

    assert asyncio.run(scenario()) is ends
