"""Registrations of one subject at the same time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from kbroker.coordination.shard import Outcome
from kbroker.schema_registry.drafts import Request
from kbroker.schema_registry.registry import Registry
from kbroker.schema_registry.shard import RegistryShard
from kbroker.schema_registry.state import State
from tests.schema_registry.context import Context

T = TypeVar("T")


class SlowForSome:
    """A store (`Store`) whose checks take `slow_turns` turns of the loop in the task "slow", one in others."""

    def __init__(self, slow_turns: int) -> None:
        self.context = Context()
        self.slow_turns = slow_turns
        self.checks: dict[str, int] = {}

    async def ask(self, question: Callable[[State], T]) -> T:
        return question(self.context.state)

    look = ask

    def at_once(self, question: Callable[[State], T]) -> T | None:
        return question(self.context.state)

    async def ask_long(self, question: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        return await question(self.context.state)

    async def decide(self, decision: Callable[[RegistryShard], Outcome]) -> Any:
        await asyncio.sleep(0)
        return self.context.decided(decision)

    async def aside(self, work: Callable[[], T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        name = task.get_name()
        self.checks[name] = self.checks.get(name, 0) + 1
        for _ in range(self.slow_turns if name == "slow" else 1):
            await asyncio.sleep(0)
        return work()


def schema_with(field: str) -> Request:
    fields = [{"name": field, "type": "int", "default": 0}]
    return Request(json.dumps({"type": "record", "name": "One", "fields": fields}))


def test_a_writer_whose_checks_are_slower_than_all_others_still_registers() -> None:
    """A fast writer changes the subject during each check of the slow one, until the slow one has its turn."""

    async def scenario() -> None:
        store = SlowForSome(slow_turns=30)
        registry = Registry(store)
        slow = asyncio.create_task(registry.register("s", schema_with("slow"), normalize=False), name="slow")
        others = 0
        while not slow.done():
            others += 1
            assert others < 100
            await registry.register("s", schema_with(f"fast{others}"), normalize=False)
        assert slow.result().id == slow.result().version <= others + 1
        assert store.checks["slow"] <= 3  # one disturbed, one beside a registration that began before, one in its turn

    asyncio.run(scenario())


def test_writers_of_a_schema_that_is_registered_do_not_wait_for_each_other() -> None:
    async def scenario() -> None:
        store = SlowForSome(slow_turns=1)
        registry = Registry(store)
        first = await registry.register("s", schema_with("a"), normalize=False)
        again = [
            asyncio.create_task(registry.register("s", schema_with("a"), normalize=False), name=f"{number}")
            for number in range(50)
        ]
        assert {(await each).version for each in again} == {first.version}
        assert all(store.checks[f"{number}"] == 1 for number in range(50))

    asyncio.run(scenario())
