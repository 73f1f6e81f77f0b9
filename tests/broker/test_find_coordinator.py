"""FindCoordinator waits for a topic that it has created, and hosts it in slices, between those of other requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kbroker.cluster_state import OFFSETS_TOPIC, ClusterState
from kbroker.handlers.find_coordinator import find_coordinator
from kbroker.protocol.messages.groups import FindCoordinatorRequest


def test_what_is_left_once_the_topic_is_there_is_done_in_the_connections_turns() -> None:
    async def scenario() -> None:
        created: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        services = SimpleNamespace(
            groups=SimpleNamespace(ensure_topic=lambda: False, partition_for=lambda _key: 0),
            controller=SimpleNamespace(auto_created={OFFSETS_TOPIC: created}.get, state=ClusterState("c")),
        )
        ctx: Any = SimpleNamespace(version=4, services=services)
        work: Any = find_coordinator(ctx, FindCoordinatorRequest(key_type=0, coordinator_keys=["group"]))
        assert work.send(None) is created
        created.set_result(None)
        assert work.send(None) is None, "each key has a turn"
        work.close()

    asyncio.run(scenario())
