"""Work on a thread beside the event loop, which is to have the interpreter as often as it wants.

Owns that such work rests as long as it works, half a millisecond at a time. Never for the loop's own thread.
"""

from __future__ import annotations

import time
from typing import Final

_WORK_S: Final = 0.0005


class Breaks:
    """Gives the interpreter away now and then."""

    def __init__(self) -> None:
        self._until = time.perf_counter() + _WORK_S

    def rest(self) -> None:
        """Rest, if that is due."""
        if time.perf_counter() > self._until:
            time.sleep(_WORK_S)
            self._until = time.perf_counter() + _WORK_S
