"""Pauses for work on a thread beside the event loop, so that the loop gets the interpreter whenever it needs it.

Owns the rhythm: such work rests as long as it works, half a millisecond at a time. Never for the loop's own thread.
"""

from __future__ import annotations

import time
from typing import Final

_WORK_S: Final = 0.0005


class Breaks:
    """Releases the interpreter at short intervals."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + _WORK_S

    def rest(self) -> None:
        """Rest if work has run for half a millisecond since the last rest."""
        if time.perf_counter() > self._until:
            time.sleep(_WORK_S)
            self._until = time.perf_counter() + _WORK_S
