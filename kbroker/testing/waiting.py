"""Waiting in the broker's own loop for what comes by itself, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_LOOK_S, _PATIENCE_S = 0.0005, 30.0


async def until(holds: Callable[[], bool], why: str, patience_s: float = _PATIENCE_S) -> None:
    """Return once something holds. Raises TimeoutError, which tells `why`."""
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{why} within {patience_s:g} s")
        await asyncio.sleep(_LOOK_S)
