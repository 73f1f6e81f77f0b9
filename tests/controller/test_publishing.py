"""Decide, store, publish, answer: until a decision is stored, only the next decision knows it."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest

from kbroker.cluster_state import BrokerEndpoint, ClusterState
from kbroker.controller.controller import Controller
from kbroker.controller.store_interface import Change, Node
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.protocol.errors import ApiError


class SlowStore:
    """A store that accepts everything, and has stored it when the test says so."""

    def __init__(self) -> None:
        self.writes: list[list[Change]] = []
        self._waiting: list[asyncio.Future[None]] = []
        self.slow = True

    def get(self, path: str) -> Node | None:
        return None

    def children(self, path: str) -> list[str]:
        return []

    def write(self, changes: Sequence[Change]) -> None:
        self.writes.append(list(changes))

    def stored(self) -> asyncio.Future[None] | None:
        if not self.slow:
            return None
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    def settle(self) -> None:
        pass

    def close(self) -> None:
        pass

    def finish(self, count: int, error: OSError | None = None) -> None:
        for future in self._waiting[:count]:
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
        del self._waiting[:count]


def run(scenario: Callable[[Controller, SlowStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = SlowStore()
        controller = Controller(store, "cluster", TopicDefaults(1, 1, {}))
        store.slow = False
        controller.register_broker(BrokerEndpoint(1, "localhost", 9092))
        store.slow = True
        await scenario(controller, store)

    asyncio.run(asyncio.wait_for(whole(), 20))


def create(controller: Controller, name: str) -> None:
    controller.put_topics([controller.plan_topic(name, 1, 1)])


def test_a_topic_is_known_once_it_is_stored() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        seen: list[set[str]] = []
        controller.subscribe(lambda _old, new: seen.append(set(new.topics)))
        create(controller, "a")
        answer = asyncio.ensure_future(_finish(controller))
        await asyncio.sleep(0)
        assert (set(controller.state.topics), set(controller.decided.topics), seen) == (set(), {"a"}, [])
        with pytest.raises(ApiError, match="already exists"):
            create(controller, "a")
        create(controller, "b")
        store.finish(1)
        await answer
        assert seen == [{"a"}]
        assert set(controller.state.topics) == {"a"}
        store.finish(1)
        await _finish(controller)
        assert seen == [{"a"}, {"a", "b"}]
        assert controller.decided is controller.state

    run(scenario)


def test_decisions_build_on_each_other_before_they_are_stored() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        create(controller, "a")
        controller.set_configs("topics", "a", {"retention.ms": "1"})
        controller.put_topics([controller.plan_growth("a", 3, None)])
        controller.lose_replicas(1, [("a", 2)])
        create(controller, "b")
        controller.delete_topics(["b"])
        controller.set_configs("brokers", "1", {"log.cleaner.threads": "2"})
        decided = controller.decided
        store.finish(7)
        await _finish(controller)
        assert controller.state == decided
        topic = controller.state.topics["a"]
        assert (dict(topic.configs), [each.leader for each in topic.partitions]) == ({"retention.ms": "1"}, [1, 1, -1])
        assert dict(controller.state.broker_configs["1"]) == {"log.cleaner.threads": "2"}

    run(scenario)


def test_what_cannot_be_stored_is_never_published() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        seen: list[ClusterState] = []
        controller.subscribe(lambda _old, new: seen.append(new))
        create(controller, "a")
        create(controller, "b")
        answer = controller.published()
        assert answer is not None
        store.finish(2, OSError(errno.EIO, "broken"))
        with pytest.raises(OSError, match="broken"):
            await answer
        with pytest.raises(OSError, match="broken"):
            controller.published()
        before = controller.decided
        with pytest.raises(OSError, match="broken"):
            controller.register_broker(BrokerEndpoint(1, "localhost", 9092, cordoned=True))
        assert controller.decided is before
        assert seen == []

    run(scenario)


def test_what_is_stored_at_once_does_not_overtake_what_is_about_to_be_published() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        seen: list[list[str]] = []
        controller.subscribe(lambda _old, new: seen.append(list(new.topics)))
        create(controller, "a")
        store.finish(1)
        store.slow = False
        create(controller, "b")
        assert seen == []
        await _finish(controller)
        assert seen == [["a"], ["a", "b"]]
        create(controller, "c")
        assert seen[2:] == [["a", "b", "c"]]

    run(scenario)


def test_a_listener_may_decide() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        def cordon(_old: ClusterState, new: ClusterState) -> None:
            if "a" in new.topics and not new.brokers[1].cordoned:
                controller.register_broker(BrokerEndpoint(1, "localhost", 9092, cordoned=True))

        controller.subscribe(cordon)
        create(controller, "a")
        store.finish(1)
        await asyncio.sleep(0)
        store.finish(1)
        await _finish(controller)
        assert controller.state.brokers[1].cordoned
        assert set(controller.state.topics) == {"a"}

    run(scenario)


def test_nothing_is_published_after_the_end() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        seen: list[ClusterState] = []
        controller.subscribe(lambda _old, new: seen.append(new))
        create(controller, "a")
        answer = asyncio.ensure_future(_finish(controller))
        await asyncio.sleep(0)
        controller.close()
        store.finish(1)
        with pytest.raises(asyncio.CancelledError):
            await answer
        await asyncio.sleep(0)
        assert seen == []

    run(scenario)


async def _finish(controller: Controller) -> None:
    published = controller.published()
    if published is not None:
        await published


def test_what_one_sync_has_stored_is_published_over_many_turns() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        heard = 0

        def listener(_old: ClusterState, _new: ClusterState) -> None:
            nonlocal heard
            heard += 1
            time.sleep(0.002)

        controller.subscribe(listener)
        for number in range(20):
            create(controller, f"t{number}")
        answer = asyncio.ensure_future(_finish(controller))
        await asyncio.sleep(0)
        store.finish(20)
        turns = []
        while heard < 20:
            before = heard
            await asyncio.sleep(0)
            turns.append(heard - before)
        assert max(turns) == 1
        await answer

    run(scenario)


def test_a_listener_that_fails_keeps_nobody_else_from_hearing() -> None:
    async def scenario(controller: Controller, store: SlowStore) -> None:
        seen: list[set[str]] = []

        def broken(_old: ClusterState, _new: ClusterState) -> None:
            raise RuntimeError("broken")

        controller.subscribe(broken)
        controller.subscribe(lambda _old, new: seen.append(set(new.topics)))
        create(controller, "a")
        answer = asyncio.ensure_future(_finish(controller))
        await asyncio.sleep(0)
        store.finish(1)
        await asyncio.wait_for(answer, 5)
        assert seen == [{"a"}]

    run(scenario)
