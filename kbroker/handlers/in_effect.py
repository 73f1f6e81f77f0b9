"""Waits that several APIs share: for the first UpdateMetadata of a cluster, and until a change is in effect.

A change is in effect once it is stored, published to all, and applied here. Also owns the remaining time of a request
with a timeout, which counts from the request's arrival. Never changes anything, and never sends a request.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeVar

from kbroker.handlers.registry import RequestContext

A = TypeVar("A")
FIRST_NEWS_MS = 5000
"""How long a started broker waits for its first UpdateMetadata, in ms. After that its responses name no topics."""


def time_left(ctx: RequestContext, timeout_ms: int, began_ms: float) -> int:
    """Return the rest of a request's timeout in ms, which may be negative; `began_ms` is by the monotonic clock."""
    return timeout_ms - int(ctx.services.clock.monotonic_ms() - began_ms)


async def in_effect(ctx: RequestContext, answer: A) -> A:
    """Return `answer` once all earlier decisions are in effect. Raises OSError."""
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


async def first_news(ctx: RequestContext) -> None:
    """Wait for the first UpdateMetadata, if this broker of a cluster has had none since its start."""
    cluster = ctx.services.cluster
    news = cluster.metadata.news(FIRST_NEWS_MS) if cluster is not None else None
    if news is not None:
        await news
