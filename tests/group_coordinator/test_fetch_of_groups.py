"""OffsetFetch of many groups waits for all uncommitted writes together, not for one after the other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kbroker.coordination.runtime import Runtime
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.handlers.offset_fetch import offset_fetch
from kbroker.long_work import in_slices
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)

COUNT = 20


class Reads:
    """A runtime in which every read waits for the same commit."""

    read_divided = Runtime.read_divided

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[OffsetFetchResponseGroup]] = []
        self._clock = SimpleNamespace(now_ms=lambda: 0)
        self._state = SimpleNamespace(shard=SimpleNamespace(offsets=self))

    async def fetch(self, *_: object) -> None:
        pass

    def _active(self, _partition: int) -> Any:
        return self._state

    def read(self, *_: object) -> asyncio.Future[OffsetFetchResponseGroup]:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]


class Groups:
    """A coordinator of one partition."""

    fetch_offsets = GroupCoordinator.fetch_offsets

    def __init__(self) -> None:
        self._runtime = Reads()

    def partition_for(self, _group_id: str) -> int:
        return 0


def test_the_groups_of_a_request_wait_together() -> None:
    async def scenario() -> list[str]:
        groups = Groups()
        state = SimpleNamespace(topic_names={})
        ctx: Any = SimpleNamespace(
            version=10, services=SimpleNamespace(groups=groups, controller=SimpleNamespace(state=state))
        )
        asked = [OffsetFetchRequestGroup(group_id=str(each), topics=[]) for each in range(COUNT)]
        work: Any = offset_fetch(ctx, OffsetFetchRequest(groups=asked))
        answer = asyncio.ensure_future(in_slices(work))
        await asyncio.sleep(0.05)
        waiting = groups._runtime.waiting
        assert len(waiting) == COUNT
        for number, each in enumerate(waiting):
            each.set_result(OffsetFetchResponseGroup(group_id=str(number)))
        return [each.group_id for each in (await answer).groups]

    assert asyncio.run(scenario()) == [str(each) for each in range(COUNT)]
