"""FindCoordinator waits for a topic that it has created, and hosts it in turns that others have theirs beside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import GeneratorType, SimpleNamespace
from typing import Any

from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.divided import whole
from kbroker.handlers.find_coordinator import find_coordinator
from kbroker.protocol.messages.groups import FindCoordinatorRequest


def test_what_is_left_once_the_topic_is_there_is_done_in_the_connections_turns() -> None:
    async def scenario() -> None:
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        services = SimpleNamespace(
            groups=SimpleNamespace(ensure_topic=lambda: False),
            controller=SimpleNamespace(auto_created={OFFSETS_TOPIC: created}.get),
        )
        ctx: Any = SimpleNamespace(version=4, services=services)
        work: Any = find_coordinator(ctx, FindCoordinatorRequest(key_type=0, coordinator_keys=["group"]))
        answer = whole(work)
        assert isinstance(answer, Awaitable)
        created.set_result(None)
        left = await answer
        assert isinstance(left, GeneratorType)
        left.close()

    asyncio.run(scenario())
