"""How often somebody may try to log in.

Owns the count, of an address and of all together. Never looks at a password.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_TRIES: Final = 5
_TRIES_OF_ALL: Final = 30
_WINDOW_S: Final = 60.0
_MOST: Final = 1_000


class LoginTries:
    """The tries of one console."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tries: OrderedDict[str, list[float]] = OrderedDict()

    def may_try(self, address: str) -> bool:
        """Count a try to log in; False where an address, or all together, have tried too often."""
        now = self._clock()
        for name, most in ((address, _TRIES), ("", _TRIES_OF_ALL)):
            tries = [each for each in self._tries.get(name, ()) if now - each < _WINDOW_S]
            if len(tries) >= most:
                return False
            self._tries[name] = [*tries, now]
            self._tries.move_to_end(name)
        while len(self._tries) > _MOST:
            self._tries.popitem(last=False)
        return True
