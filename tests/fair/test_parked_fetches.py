"""Waiting fetches of many partitions: an append checks only its own partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest

from compat_tests.wire.exchanges.produce import batch
from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers import fetch as fetch_handler
from kbroker.handlers.fetch_attempt import Fetch
from kbroker.handlers.registry import RequestContext
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic
from tests.turns import Parked, run_on

COUNT = 200
TOPIC = "many"
VERSION = 12


class World:
    """A broker with a topic of many partitions, and a client's requests to it."""

    def __init__(self, node: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        self.context = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
        self.context.version = VERSION
        self.looks: list[int] = []
        read = Fetch.read

        def counted(work: Fetch, key: Any, *rest: Any) -> Any:
            self.looks.append(key[2])
            return read(work, key, *rest)

        monkeypatch.setattr(Fetch, "read", counted)

    def append(self, index: int) -> None:
        partition = self.node.replicas.get((TOPIC, index))
        assert partition is not None
        partition.append(bytearray(batch(1)), 1, self.node.clock.now_ms())

    def ask(self, request: FetchRequest) -> Any:
        """Send a request; return the response, or the waiting one."""
        answer: Any = fetch_handler.fetch(self.context, request)
        assert isinstance(answer, CoroutineType), "many partitions are read in steps"
        return run_on(answer)


def request(count: int = COUNT, **options: Any) -> FetchRequest:
    wanted = [FetchPartition(partition=i, partition_max_bytes=1 << 20) for i in range(count)]
    fields: dict[str, Any] = {"max_wait_ms": 60_000, "min_bytes": 1, "max_bytes": 1 << 26, "session_epoch": -1}
    return FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=wanted)], **{**fields, **options})


def with_data(response: FetchResponse) -> list[int]:
    return [p.partition_index for topic in response.responses for p in topic.partitions if p.records]


async def arrived(waiting: Parked) -> FetchResponse:
    answer: FetchResponse = await waiting.result()
    return answer


@pytest.fixture
def in_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def run(story: Any) -> None:
        async def scenario() -> None:
            settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
            node = await BrokerNode.start(BrokerConfig(settings))
            try:
                node.controller.put_topics([node.controller.plan_topic(TOPIC, COUNT, 1)])
                while any(node.replicas.get((TOPIC, i)) is None for i in range(COUNT)):  # noqa: ASYNC110 - in slices
                    await asyncio.sleep(0)
                await story(World(node, monkeypatch))
            finally:
                await node.stop()

        asyncio.run(scenario())

    return run


def test_an_append_costs_a_look_at_its_partition(in_world: Any) -> None:
    async def story(world: World) -> None:
        waiting = [world.ask(request(min_bytes=1_000)) for _ in range(20)]
        world.looks.clear()
        world.append(7)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert world.looks == [7] * 20
        assert not any(each.done() for each in waiting)
        for each in waiting:
            each.cancel()
        await asyncio.sleep(0)
        assert all(not partition.waiters for partition in world.node.replicas), "nobody waits any more"

    in_world(story)


@pytest.mark.long
def test_enough_bytes_of_several_partitions_bring_the_answer(in_world: Any) -> None:
    async def story(world: World) -> None:
        waiting = world.ask(request(min_bytes=2 * len(batch(1)) + 1))
        for index in (150, 3):
            world.append(index)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
        world.looks.clear()
        world.append(80)
        answer = await arrived(waiting)
        assert with_data(answer) == [3, 80, 150]
        assert sum(len(topic.partitions) for topic in answer.responses) == COUNT, "as a full request has it"
        assert world.looks == [80, 3, 80, 150], "the one that moved, and then what there is to send"

    in_world(story)


@pytest.mark.long
def test_the_end_of_the_time_brings_what_there_is(in_world: Any) -> None:
    async def story(world: World) -> None:
        world.append(9)
        answer = await arrived(world.ask(request(min_bytes=1_000_000, max_wait_ms=1)))
        assert with_data(answer) == [9]
        assert with_data(world.ask(request(min_bytes=1_000_000, max_wait_ms=0))) == [9]

    in_world(story)


@pytest.mark.long
def test_an_error_and_the_end_of_a_topic_are_told_at_once(in_world: Any) -> None:
    async def story(world: World) -> None:
        waiting = world.ask(request())
        world.node.controller.delete_topics([TOPIC])
        answer = await arrived(waiting)
        codes = {p.error_code for topic in answer.responses for p in topic.partitions}
        assert codes == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
        answer = world.ask(request())
        assert {p.error_code for p in answer.responses[0].partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}

    in_world(story)


@pytest.mark.long
def test_what_is_appended_while_it_is_read_is_not_missed(in_world: Any) -> None:
    async def story(world: World) -> None:
        work: Any = fetch_handler.fetch(world.context, request())
        while len(world.looks) < 50:
            work.send(None)
        world.append(7)
        assert with_data(whole(work)) == [7]
        work = fetch_handler.fetch(world.context, request(min_bytes=1_000))
        while len(world.looks) < 250:
            work.send(None)
        work.close()
        assert all(not partition.waiters for partition in world.node.replicas), "a client that has gone leaves nothing"

    in_world(story)


def test_a_session_tells_what_has_changed(in_world: Any) -> None:
    async def story(world: World) -> None:
        first = world.ask(request(max_wait_ms=0, session_epoch=0))
        assert first.session_id
        world.append(5)
        options = {"session_id": first.session_id, "session_epoch": 1}
        second = world.ask(FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1 << 20, **options))
        assert with_data(second) == [5]
        assert len(second.responses[0].partitions) == 1
        gone = [ForgottenTopic(topic=TOPIC, partitions=list(range(1, COUNT)))]
        options = {"session_id": first.session_id, "session_epoch": 2, "forgotten_topics_data": gone}
        world.looks.clear()
        third = world.ask(FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, **options))
        assert third.responses == []
        assert world.looks == [0]

    in_world(story)


@pytest.mark.parametrize("version", [4, 12])
def test_any_request_is_answered_as_a_short_one(in_world: Any, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    async def story(world: World) -> None:
        for index in (3, 4, 90, 199):
            for _ in range(3):
                world.append(index)
        world.context.version = version
        for options in (
            {}, {"max_bytes": 1}, {"max_bytes": 200}, {"isolation_level": 1}, {"min_bytes": 500}, {"replica_id": 5},
        ):  # fmt: skip
            asked = request(max_wait_ms=0, **options)
            asked.topics.append(FetchTopic(topic="absent", partitions=[FetchPartition(partition=1)]))
            asked.topics[0].partitions[5].fetch_offset = 9
            long = world.ask(asked)
            monkeypatch.setattr(fetch_handler, "FEW", 10_000)
            short: Any = fetch_handler.fetch(world.context, asked)
            monkeypatch.undo()
            assert _plain(long) == _plain(short)

    in_world(story)


def _plain(response: FetchResponse) -> list[Any]:
    return [
        (topic.topic, p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset, len(p.records or b""))
        for topic in response.responses
        for p in topic.partitions
    ]
