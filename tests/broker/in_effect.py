"""A wait for tests that change the cluster without a request."""

from __future__ import annotations

import asyncio

from kbroker.broker.node import BrokerNode


async def in_effect(node: BrokerNode) -> None:
    """Return once every earlier decision is stored, published and hosted."""
    published = node.controller.published()
    if published is not None:
        await published
    while not node.replicas.has_hosted_all:  # noqa: ASYNC110 - it is hosted by callbacks of this loop
        await asyncio.sleep(0)
