"""Content of ZooKeeper that a broker follows: after a watch or a notification, the broker reads the content again.

Owns the reading task, the last processed notifications, and the change of a znode together with its notification. The
broker also reads after each new connection: a lost connection loses its watches, even in the same session. A
notification carries no values: it names the nodes to read. After a lost connection a broker processes the notifications
that it missed; ZooKeeper keeps them for at least 15 minutes. Never knows the meaning of the nodes. (Apache Kafka 3.9:
ZkNodeChangeNotificationListener.)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from kbroker.clock import Clock
from kbroker.controller.pacing import all_of
from kbroker.controller.tree.znode import (
    Create,
    Delete,
    MetadataTree,
    Refused,
    Session,
    SetData,
    Unreachable,
    Znode,
)
from kbroker.controller.znodes import Unreadable
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

AT_ONCE: Final = 50
"""The number of concurrent reads, and the maximum number of old notifications to remove at a time."""
EXPIRED_MS: Final = 15 * 60 * 1000
"""The age in ms at which a notification is removed. All live brokers have processed it before this age."""
TRIES: Final = 100
"""The maximum number of attempts of a change.

An attempt fails only if another broker's change was written first.
"""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Rereading:
    """Calls `read`, which reads all content that may have changed.

    After Unreachable, the next connection repeats the call.
    """

    def __init__(self, tree: MetadataTree, read: Callable[[], Awaitable[None]], name: str) -> None:
        """Set the function that reads; `name` is the function's name in the log."""
        self._tree = tree
        self._read = read
        self._name = name
        self._reading: asyncio.Task[None] | None = None
        self._again = self._closed = False

    def begin(self, connected: Callable[[], None] | None = None) -> None:
        """Read now. Call `connected`, by default `reread`, with every new connection."""
        again = connected or self.reread
        self._tree.listen(lambda session: again() if session is Session.LIVE else None)
        self.reread()

    def reread(self) -> None:
        """Read again now, or after the read in progress."""
        if self._closed:
            return
        if self._reading is not None:
            self._again = True
            return
        self._reading = asyncio.get_running_loop().create_task(self._follow())

    async def settled(self) -> None:
        """Wait for the end of the read in progress, if any."""
        if self._reading is not None:
            await asyncio.shield(self._reading)

    def close(self) -> None:
        """Stop reading."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()

    async def _follow(self) -> None:
        try:
            while True:
                self._again = False
                with contextlib.suppress(Unreachable):  # the next connection starts another read
                    await self._read()
                if not self._again:
                    break
        except Exception:
            log.exception("%s is not followed until it changes again", self._name)
        finally:
            self._reading = None


class Notifications(Generic[K]):
    """The numbered znodes below a path. Each of them names a key whose value has changed.

    `named` returns the key in the data of a notification, or None if the notification must be skipped.
    """

    def __init__(self, tree: MetadataTree, clock: Clock, path: str, named: Callable[[str, bytes], K | None]) -> None:
        self._tree = tree
        self._clock = clock
        self._path = path
        self._named = named
        self._last = -1

    async def skip(self) -> None:
        """Count all present notifications as processed. The caller reads their keys afterwards."""
        self._last = max(map(_number, await self._tree.children(self._path)), default=-1)

    async def process(self, on_change: Callable[[], None], reread: Callable[[Iterable[K]], Awaitable[None]]) -> None:
        """Reread the keys of new notifications, and watch for more. After Unreachable, the next call retries."""
        last = self._last
        try:
            names = sorted(await self._tree.children(self._path, on_change), key=_number)
            changed: dict[K, None] = {}
            for name in names:
                if _number(name) <= self._last:
                    continue
                node = await self._tree.get(f"{self._path}/{name}")
                key = None if node is None else self._named(f"{self._path}/{name}", node.data)
                if key is not None:
                    changed[key] = None
                self._last = _number(name)
            if changed:
                await reread(changed)
                await self._remove_old(names)
        except Unreachable:
            self._last = last
            raise

    async def _remove_old(self, names: Sequence[str]) -> None:
        """Remove notifications that all brokers have processed.

        If there are many, remove only the oldest notifications.
        """
        for name in names[:AT_ONCE]:
            path = f"{self._path}/{name}"
            node = await self._tree.get(path)
            if node is None:
                continue
            if not 0 <= node.stat.created_ms < self._clock.now_ms() - EXPIRED_MS:
                break
            with contextlib.suppress(Refused):  # another broker was first
                await self._tree.commit([Delete(path)])


class NotifiedValues(ABC, Generic[K, V]):
    """Values, each in its own znode, kept current through notifications. `nothing` is the value of a missing znode.

    A change is written together with its notification, and only if the value has not changed meanwhile.
    """

    def __init__(self, tree: MetadataTree, name: str, nothing: V, notifications: Sequence[Notifications[K]]) -> None:
        """Begin with no values; `name` is the name of these values in the log."""
        self._tree = tree
        self._nothing = nothing
        self._notifications = notifications
        self._rereading = Rereading(tree, self._process, name)
        self._changed_here: set[K] = set()
        """Keys whose values this broker has changed since the beginning of the last read."""

    @abstractmethod
    def _path(self, key: K) -> str:
        """Return the path of a value's znode."""

    @abstractmethod
    def _decoded(self, path: str, data: bytes) -> V:
        """Return the value in a znode. Raises Unreadable."""

    @abstractmethod
    def _encoded(self, value: V) -> Any:
        """Return the JSON object of a value."""

    @abstractmethod
    def _notification(self, key: K) -> Create:
        """Return the notification of a change."""

    @abstractmethod
    def _unreadable(self, key: K, error: Unreadable, found: dict[K, V]) -> None:
        """Handle a znode that cannot be read."""

    @abstractmethod
    def _take(self, changed: dict[K, V]) -> None:
        """Update the known values, and notify the listener."""

    @abstractmethod
    def _busy(self, key: K) -> str:
        """Return the error's text for a value that other brokers keep changing."""

    def close(self) -> None:
        """Stop following."""
        self._rereading.close()

    async def change(self, key: K, revise: Callable[[V], V]) -> V:
        """Store the result of `revise` for a value, notify all brokers, and update this broker's copy.

        Return the new value. Raises the exceptions of `revise`, Unreachable, Denied and Unreadable. Raises ApiError if
        another broker's change comes first in every attempt.
        """
        path = self._path(key)
        for _ in range(TRIES):
            node = await self._tree.get(path)
            old = self._nothing if node is None else self._decoded(path, node.data)
            new = revise(old)
            if new != old:
                try:
                    await self._tree.commit([self._write(path, node, new), self._notification(key)])
                except Refused as refused:
                    if refused.path != path:
                        raise
                    continue
            self._changed_here.add(key)
            self._take({key: new})
            return new
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, self._busy(key))

    def _write(self, path: str, node: Znode | None, value: V) -> Create | SetData | Delete:
        if node is not None and value == self._nothing:
            return Delete(path, node.stat.version)
        data = json.dumps(self._encoded(value), separators=(",", ":"), ensure_ascii=False).encode()
        return Create(path, data) if node is None else SetData(path, data, node.stat.version)

    async def _process(self) -> None:
        for each in self._notifications:
            await each.process(self._rereading.reread, self._reread)

    async def _reread(self, changed: Iterable[K]) -> None:
        self._changed_here.clear()
        found = await self._read_all(changed)
        for key in self._changed_here:  # the read value may be older; the notification of the change arrives later
            found.pop(key, None)
        self._take(found)

    async def _read_all(self, keys: Iterable[K]) -> dict[K, V]:
        found: dict[K, V] = {}

        async def read(key: K) -> None:
            path = self._path(key)
            node = await self._tree.get(path)
            try:
                found[key] = self._nothing if node is None else self._decoded(path, node.data)
            except Unreadable as error:
                self._unreadable(key, error, found)

        await all_of(keys, read, AT_ONCE)
        return found


def _number(name: str) -> int:
    """Return the number at the end of a notification's name; -1 if the name has no number."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
