"""Waits for a condition with a deadline, in a test's own thread and in the broker's loop.

Decides the interval between checks of the condition, and builds the message after the deadline. Knows nothing about the
condition.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, TypeVar

from kbroker.testing.missing import MissingError

Result = TypeVar("Result")
_CHECK_SECONDS: Final = 0.01
_IN_LOOP_S, _PATIENCE_S = 0.0005, 30.0


def hold(holds: Callable[[], Result], timeout: float) -> Result:
    """Wait until a condition holds, and return the result of `holds`. Raises AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        failure: Exception | None = None
        try:
            found = holds()
        except (AssertionError, MissingError) as err:
            failure = err
        else:
            if found:
                return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s{f': {failure}' if failure else ''}") from failure
        time.sleep(_CHECK_SECONDS)


async def until(holds: Callable[[], bool], why: str, patience_s: float = _PATIENCE_S) -> None:
    """Return when a condition holds. Raises TimeoutError with `why` in its text."""
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{why} within {patience_s:g} s")
        await asyncio.sleep(_IN_LOOP_S)
