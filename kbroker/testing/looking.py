"""Looking from a test's own thread until something holds, with a deadline.

Owns the waiting, and what is told when it was in vain. Never knows what is looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from kbroker.testing.missing import MissingError

Result = TypeVar("Result")
_LOOK_SECONDS: Final = 0.01


def hold(holds: Callable[[], Result], timeout: float) -> Result:
    """Look until something holds; return what `holds` returned. Raises AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        said: Exception | None = None
        try:
            found = holds()
        except (AssertionError, MissingError) as err:
            said = err
        else:
            if found:
                return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s{f': {said}' if said else ''}") from said
        time.sleep(_LOOK_SECONDS)
