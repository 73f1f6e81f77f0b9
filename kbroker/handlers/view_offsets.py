"""Offsets of views for ListOffsets.

The latest offset directly follows the last match, and a search by time finds only matches.

Owns the maximum time for which a request waits for a scan. If the scan takes longer, the answer is an error after which
clients retry; the scanned ranges are remembered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.logs import ListOffsetsPartitionResponse
from kbroker.views.hosted_views import HostedView

PATIENCE_SECONDS: Final = 15.0
"""The maximum time for which a request waits for a scan. Clients wait for 30 s or longer by default."""


async def latest(view: HostedView, until: float, *, committed: bool = False) -> int:
    """Return the offset after the last match. Raises ApiError and OSError.

    Here and below, `until` is the time of the loop's clock at which the wait ends with OFFSET_NOT_AVAILABLE.
    """
    if not await view.scan.ends(view.selection, until):
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return end_of(view, committed=committed)


def end_of(view: HostedView, *, committed: bool) -> int:
    """Return the known end of a view. Raises OSError."""
    start = view.partition.log.log_start_offset
    if not committed:
        return view.selection.high_watermark(start)
    return view.selection.last_stable_offset(view.scan.bound(committed=True), start)


async def at_time(
    view: HostedView, timestamp: int, answer: ListOffsetsPartitionResponse, until: float, *, committed: bool
) -> None:
    """Set the first match with a timestamp of at least `timestamp` ms, if there is one. Raises ApiError and OSError."""
    source = view.partition.log
    bound = view.scan.bound(committed=committed)
    begin = await source.find_timestamp(timestamp)
    if begin is None or begin[0] >= bound:
        return
    try:
        found = await view.scan.reader.first_at(view.selection, begin[0], timestamp, bound, _before(until))
    except TimeoutError:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE) from None
    if found is not None:
        answer.offset, answer.timestamp, answer.leader_epoch = found


async def largest_time(
    view: HostedView, answer: ListOffsetsPartitionResponse, until: float, *, committed: bool
) -> None:
    """Set the first match with the largest timestamp of all matches, if there is one. Raises ApiError and OSError."""
    scan, bound = view.scan, view.scan.bound(committed=committed)
    position, has_time = view.partition.log.log_start_offset, _before(until)
    best = None
    try:
        least = -1
        while (found := await scan.reader.first_at(view.selection, position, least, bound, has_time)) is not None:
            best, position, least = found, found[0] + 1, found[1] + 1
    except TimeoutError:
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE) from None
    if best is not None:
        answer.offset, answer.timestamp, answer.leader_epoch = best


def _before(until: float) -> Callable[[], bool]:
    loop = asyncio.get_running_loop()
    return lambda: loop.time() < until
