"""Markers and coordinators' records take effect once they are committed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kbroker.broker.local_markers import LocalMarkers
from kbroker.clock import SystemClock
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn.marker_sender import Marker

P0 = ("t", 0)
MARKER = Marker(7, 0, 1, True, 2, (P0,))


@dataclass(frozen=True)
class Waiter:
    poked: asyncio.Event

    def poke(self) -> None:
        self.poked.set()


class Led(Partition):
    """A replicated partition: the test moves its high watermark."""

    def __init__(self) -> None:
        super().__init__("t", bytes(16), 0, SimpleNamespace(high_watermark=0))  # type: ignore[arg-type]
        self.leading = True
        self.end = 0

    def append(self, *_arguments: Any, **_options: Any) -> Any:
        if not self.leading:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.end += 1
        return SimpleNamespace(last_offset=self.end - 1)

    async def committed(self, offset: int) -> None:
        waiter = Waiter(asyncio.Event())
        self.waiters[waiter] = None
        try:
            while self.leading and self.log.high_watermark < offset:
                await waiter.poked.wait()
                waiter.poked.clear()
        finally:
            del self.waiters[waiter]
        if not self.leading:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def commit(self, offset: int) -> None:
        self.log.high_watermark = offset
        self.poke()

    def follow(self) -> None:
        self.leading = False
        self.poke()


def markers(partition: Led, timeout_ms: float = 30_000) -> LocalMarkers:
    replicas: Any = SimpleNamespace(get={P0: partition}.get, leader=lambda *_key: partition)
    groups: Any = None
    return LocalMarkers(replicas, groups, SystemClock(), timeout_ms)


def test_a_marker_that_is_committed_at_once() -> None:
    partition = Led()
    partition.log.high_watermark = 9
    assert markers(partition).write(MARKER) == {P0: ErrorCode.NONE}


def test_a_marker_is_written_once_others_have_it() -> None:
    async def scenario() -> None:
        partition = Led()
        answer = asyncio.ensure_future(markers(partition).write(MARKER))  # type: ignore[arg-type]
        await asyncio.sleep(0.001)
        assert not answer.done()
        assert len(partition.waiters) == 1
        partition.commit(1)
        assert await answer == {P0: ErrorCode.NONE}
        assert not partition.waiters

    asyncio.run(scenario())


def test_a_marker_whose_leader_goes_before_is_to_be_sent_again() -> None:
    async def scenario() -> None:
        partition = Led()
        answer = asyncio.ensure_future(markers(partition).write(MARKER))  # type: ignore[arg-type]
        await asyncio.sleep(0.001)
        partition.follow()
        assert await answer == {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert not partition.waiters
        assert markers(partition).write(MARKER) == {P0: ErrorCode.NOT_LEADER_OR_FOLLOWER}

    asyncio.run(scenario())


def test_a_marker_that_takes_too_long_is_to_be_sent_again() -> None:
    async def scenario() -> None:
        partition = Led()
        assert await markers(partition, 1).write(MARKER) == {P0: ErrorCode.REQUEST_TIMED_OUT}  # type: ignore[misc]
        assert not partition.waiters

    asyncio.run(scenario())
