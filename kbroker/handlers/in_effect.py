"""Waits that several APIs have in common: for the first news of the cluster, and until a change is in effect.

A change is in effect once it is stored, known to all, and made here. Owns also how much is left of the time that a
client gives a change: it counts from the request's arrival. Never changes anything, and never asks another broker.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeVar

from kbroker.handlers.registry import RequestContext

A = TypeVar("A")
FIRST_NEWS_MS = 5000
"""How long a started broker waits for its first UpdateMetadata, in ms. Then its answers name no topics."""


def time_left(ctx: RequestContext, timeout_ms: int, began_ms: float) -> int:
    """Return what is left of a request's time in ms, which may be less than none; it began by the monotonic clock."""
    return timeout_ms - int(ctx.services.clock.monotonic_ms() - began_ms)


async def in_effect(ctx: RequestContext, answer: A) -> A:
    """Return an answer once all earlier decisions are in effect. Raises OSError."""
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
    """Wait for the first UpdateMetadata of a controller, if this broker of a cluster has had none since its start."""
    cluster = ctx.services.cluster
    news = cluster.metadata.news(FIRST_NEWS_MS) if cluster is not None else None
    if news is not None:
        await news
