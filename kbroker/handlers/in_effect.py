"""When an answer that tells of a change may leave: once the change is stored, known to all, and made here.

Owns that wait, for the APIs that change the cluster, and what is left of the time that a client gives such a change: it
counts from the request's arrival. Never changes anything.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeVar

from kbroker.handlers.registry import RequestContext

A = TypeVar("A")


def time_left(ctx: RequestContext, timeout_ms: int, began_ms: float) -> int:
    """Return what is left of a request's time in ms, which may be less than none; it began by the monotonic clock."""
    return timeout_ms - int(ctx.services.clock.monotonic_ms() - began_ms)


async def in_effect(ctx: RequestContext, answer: A) -> A:
    """Return an answer once all that was decided so far is in effect; raises OSError."""
    published = ctx.services.controller.published()
    if published is not None:
        await published
    if not ctx.services.replicas.has_hosted_all:
        hosted = asyncio.get_running_loop().create_future()
        ctx.services.replicas.when_hosted(partial(_done, hosted))
        await hosted
    return answer


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
