"""Waiting until what was appended to a partition is committed: until its high watermark has passed it.

Owns nothing but the wait: a partition pokes whoever waits when its high watermark moves, or its leadership.
"""

from __future__ import annotations

import asyncio

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replicas import Partition


class _Until:
    """One who waits for an offset."""

    __slots__ = ("_done", "_offset", "_partition")

    def __init__(self, partition: Partition, offset: int, done: asyncio.Future[None]) -> None:
        self._partition = partition
        self._offset = offset
        self._done = done

    def poke(self) -> None:
        if self._done.done():
            return
        if not self._partition.leading:
            self._done.set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif self._partition.log.high_watermark >= self._offset:
            self._done.set_result(None)


def until_committed(partition: Partition, offset: int) -> asyncio.Future[None]:
    """Return what is done once all below `offset` is committed; NOT_LEADER_OR_FOLLOWER where leadership goes before.

    Whoever does not want to know any more cancels it.
    """
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiter = _Until(partition, offset, done)
    partition.waiters.add(waiter)
    done.add_done_callback(lambda _done: partition.waiters.discard(waiter))
    waiter.poke()
    return done
