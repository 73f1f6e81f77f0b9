"""How often somebody may try to log in, and how many passwords are looked at.

Owns the count of wrong answers and whose turn it is. Never looks at a password itself.

An address has few wrong answers a minute. One password is looked at at a time, which costs some 50 ms of a processor;
after many wrong answers of all addresses in a minute, one every two seconds. So many addresses guess no faster than
few, and a right password waits for the wrong ones of others, and is not shut out by them.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

_WRONG: Final = 5
_WRONG_OF_ALL: Final = 30
_WINDOW_S: Final = 60.0
_PAUSE_S: Final = _WINDOW_S / _WRONG_OF_ALL
_MOST_WAITING: Final = 32
_MOST: Final = 1_000
_ALL: Final = ""


class LoginTries:
    """The tries of one console."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()
        self._waiting: set[str] = set()
        self._turn = asyncio.Lock()
        self._looked = -_PAUSE_S

    async def judge(self, address: str, is_right: Callable[[], bool]) -> bool | None:
        """Return what `is_right` tells, run on a thread; None where it is not asked: too many tries."""
        if self._wrong_of(address) >= _WRONG or address in self._waiting or len(self._waiting) >= _MOST_WAITING:
            return None
        self._waiting.add(address)
        try:
            async with self._turn:
                pause = self._looked + _PAUSE_S - self._clock()
                if pause > 0 and self._wrong_of(_ALL) >= _WRONG_OF_ALL:
                    await self._sleep(pause)
                self._looked = self._clock()
                # Not by the threads that ask the cluster: where it hangs they are all taken.
                right = await asyncio.to_thread(is_right)
        finally:
            self._waiting.discard(address)
        if not right:
            self._count(address)
        return right

    def _wrong_of(self, address: str) -> int:
        now = self._clock()
        return sum(now - each < _WINDOW_S for each in self._wrong.get(address, ()))

    def _count(self, address: str) -> None:
        now = self._clock()
        for name, most in ((address, _WRONG), (_ALL, _WRONG_OF_ALL)):
            self._wrong[name] = [*self._wrong.get(name, ()), now][-most:]
            self._wrong.move_to_end(name)
        while len(self._wrong) > _MOST:
            self._wrong.popitem(last=False)
