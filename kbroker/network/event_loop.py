"""Which event loop a broker runs on: uvloop where it exists, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a fresh loop of the fastest kind there is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
