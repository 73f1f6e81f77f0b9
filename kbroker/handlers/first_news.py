"""A broker of a cluster that has just started waits to be told of the cluster, before it says what there is.

Owns that wait, for the APIs that tell of topics. Never asks anybody.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext

FIRST_NEWS_MS = 5000
"""For so long; then it answers that it knows nothing. Without a controller nobody tells it anything."""


async def first_news(ctx: RequestContext) -> None:
    """Wait for it, within a request's work."""
    cluster = ctx.services.cluster
    news = cluster.metadata.news(FIRST_NEWS_MS) if cluster is not None else None
    if news is not None:
        await news
