"""The state as another thread's server reads it, while the broker's loop decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kbroker.coordination.shard import Outcome
from kbroker.schema_registry.records import Content, Version, schema_record
from kbroker.schema_registry.service import FromOtherThread, RegistryService
from kbroker.schema_registry.shard import RegistryShard
from tests.coordination.world import FakeWriter, ManualClock


async def _created() -> None:
    """Create a topic."""


def service_of(writer: FakeWriter) -> RegistryService:
    service = RegistryService(writer, ManualClock(), 5_000, _created)
    service.on_leadership(0, 1)
    return service


async def turns() -> None:
    """Let all other tasks have more turns of the loop than they need."""
    for _ in range(20):
        await asyncio.sleep(0)


def written(_shard: RegistryShard) -> Outcome:
    return Outcome(reply=1, records=[schema_record(Version("a", 1, 1, Content('"string"'), False))])


def test_a_decision_that_nobody_waits_for_any_more_is_not_safe_before_it_is_committed() -> None:
    async def scenario() -> None:
        writer = FakeWriter()
        service = service_of(writer)
        assert service.settled() is not None
        writer.lag = True
        task = asyncio.create_task(service.decide(written))
        await turns()
        assert writer.end == 1
        assert service.settled() is None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert service.settled() is None
        writer.commit_to(writer.end)
        await turns()
        assert service.settled() is not None
        service.close()

    asyncio.run(scenario())


def test_what_others_wrote_during_a_look_is_asked_for_again() -> None:
    async def scenario() -> None:
        writer = FakeWriter()
        service = service_of(writer)
        store = FromOtherThread(service, asyncio.get_running_loop())
        looks: list[Any] = []

        def question(state: Any) -> int:
            looks.append(state)
            if len(looks) == 1:  # as the loop does, while this thread waits for the interpreter
                writer.end += 1
                service._runtime._partitions[0].last_end += 1
                return 0
            return 1

        assert await store.look(question) == 1

        def failing(_state: Any) -> int:
            looks.append(None)
            if len(looks) == 3:
                raise RuntimeError("dictionary changed size during iteration")
            return 1

        assert await store.look(failing) == 1
        service.close()

    asyncio.run(scenario())
