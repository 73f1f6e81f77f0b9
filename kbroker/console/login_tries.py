"""Limits on login attempts, and on checks of passwords.

Owns the count of wrong attempts and the order of checks. Never reads a password itself.

Each address has only a few wrong attempts per minute. Passwords are checked one at a time; a check takes about 50 ms of
processor time. After many wrong attempts from all addresses within a minute, only one password is checked every two
seconds. Therefore an attacker with many addresses cannot guess faster than an attacker with a few. But a correct
password must then wait until earlier wrong passwords are checked. The number of waiting checks is limited. So an
attacker with many addresses can prevent logins from new addresses. Addresses with an earlier login, and the console's
own machine, do not wait for other addresses.
"""

from __future__ import annotations

import asyncio
import ipaddress
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


def _is_of_this_machine(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


class LoginTries:
    """The login attempts at one console."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()
        self._waiting: set[str] = set()
        self._turn, self._turn_of_known = asyncio.Lock(), asyncio.Lock()
        self._known: OrderedDict[str, None] = OrderedDict()
        """Addresses with an earlier login."""
        self._looked = -_PAUSE_S

    async def judge(self, address: str, is_right: Callable[[], bool]) -> bool | None:
        """Run `is_right` in a thread, and return its result; return None if too many attempts prevent the check."""
        known = address in self._known or _is_of_this_machine(address)
        if self._wrong_of(address) >= _WRONG or address in self._waiting:
            return None
        if not known and len(self._waiting) >= _MOST_WAITING:
            return None
        self._waiting.add(address)
        try:
            # Do not use the threads for requests to the cluster, because all of these threads are busy if the cluster
            # hangs.
            if known:
                async with self._turn_of_known:
                    right = await asyncio.to_thread(is_right)
            else:
                async with self._turn:
                    await self._rest()
                    right = await asyncio.to_thread(is_right)
        finally:
            self._waiting.discard(address)
        if right:
            self._known[address] = None
            self._known.move_to_end(address)
            while len(self._known) > _MOST:
                self._known.popitem(last=False)
        else:
            self._count(address)
        return right

    async def _rest(self) -> None:
        """Wait if many recent attempts were wrong."""
        pause = self._looked + _PAUSE_S - self._clock()
        if pause > 0 and self._wrong_of(_ALL) >= _WRONG_OF_ALL:
            await self._sleep(pause)
        self._looked = self._clock()

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
