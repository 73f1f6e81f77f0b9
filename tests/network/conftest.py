"""The embedded broker that the tests of a whole broker use, and raw connections to it."""

from __future__ import annotations

from tests.broker.conftest import broker, connect

__all__ = ["broker", "connect"]
