"""Requests of a node whose records are in remote storage, leave the local disk meanwhile, or do not come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compat_tests.wire.exchanges.produce import batch
from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers import fetch as fetch_handler
from kbroker.handlers.list_offsets import list_offsets
from kbroker.handlers.registry import RequestContext
from kbroker.partition import Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.logs import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kbroker.tiers.reading import NOT_YET, RemoteData
from kbroker.tiers.tiered_partition import NOWHERE
from tests.log.builders import delete_due
from tests.turns import run_on


class Reader:
    """Remote storage that has a record of each partition, or never answers."""

    reader: Any

    def __init__(self, record: bytes = b"") -> None:
        self.reader = self
        self._record = record

    async def read(
        self, _owner: object, _log: object, _offset: int, most: int, *, min_one: bool, committed: bool, until: float
    ) -> RemoteData:
        del committed, until
        return RemoteData(self._record, []) if self._record and (min_one or most >= len(self._record)) else NOT_YET


def request(topic: str, *partitions: int) -> FetchRequest:
    wanted = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in partitions]
    topics = [FetchTopic(topic, partitions=wanted)]
    return FetchRequest(max_wait_ms=60_000, min_bytes=1 << 19, max_bytes=1 << 20, session_epoch=-1, topics=topics)


def move(partition: Partition, now_ms: int) -> None:
    """Let the closed segments leave the local disk."""
    log = partition.log
    assert log.tier is not None
    log.tier.end_offset = log.segments.bases[-1]
    assert delete_due(log, now_ms)
    assert log.earliest_offset == 0 < log.log_start_offset


async def led(node: BrokerNode, topic: str) -> list[Partition]:
    """Create a topic, and return its two partitions, with three records each."""
    configs = {"internal.segment.bytes": "100", "local.retention.bytes": "1"}
    node.controller.put_topics([node.controller.plan_topic(topic, 2, 1, None, configs)])
    while any(node.replicas.get((topic, index)) is None for index in range(2)):  # noqa: ASYNC110 - in slices
        await asyncio.sleep(0)
    found = [node.replicas.leader(topic, index) for index in range(2)]
    for partition in found:
        partition.log.update_config(replace(partition.log.config, remote_storage_enable=True))
        for _ in range(3):
            partition.append(bytearray(batch(1)), 1, node.clock.now_ms())
    return found


def context(node: BrokerNode, version: int) -> RequestContext:
    made = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
    made.version = version
    return made


async def ends_without_an_error(node: BrokerNode, topic: str, *, beside: bool = False) -> None:
    """Let records leave the disk while a fetch waits for more; `beside`: it also wants records of remote storage."""
    here, other = await led(node, topic)
    if beside:
        node.services.tiers = Reader()  # type: ignore[assignment]
        move(other, node.clock.now_ms())
    asked = fetch_handler.fetch(context(node, 12), request(topic, *range(1 + beside)))
    task = asyncio.ensure_future(answered(asked))
    while not here.waiters:  # noqa: ASYNC110 - it begins in slices
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    move(here, node.clock.now_ms())
    here.poke()
    found = (await asyncio.wait_for(task, 20)).responses[0].partitions
    assert [(each.error_code, each.records or b"", each.log_start_offset) for each in found] == [
        (ErrorCode.NONE, b"", 0)
    ] * (1 + beside)


async def answered(answer: Any) -> Any:
    found = run_on(answer) if asyncio.iscoroutine(answer) else answer
    return await found if hasattr(found, "__await__") else found


@pytest.fixture
def on_node(tmp_path: Path) -> Callable[[Callable[[BrokerNode], Awaitable[None]]], None]:
    """Run a story on a node."""

    def run(story: Callable[[BrokerNode], Awaitable[None]]) -> None:
        async def scenario() -> None:
            settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
            node = await BrokerNode.start(BrokerConfig(settings))
            try:
                await story(node)
            finally:
                node.services.tiers = None
                await node.stop()

        asyncio.run(scenario())

    return run


def test_a_waiting_fetch_ends_without_an_error(on_node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: BrokerNode) -> None:
        await ends_without_an_error(node, "of-few")
        await ends_without_an_error(node, "beside-remote", beside=True)
        monkeypatch.setattr(fetch_handler, "FEW", -1)
        await ends_without_an_error(node, "of-many")

    on_node(story)


def test_a_remote_partition_that_is_first_gets_a_batch_larger_than_its_limit(on_node: Any) -> None:
    """Partitions take turns in a fetch session. Records of others must not keep back a large remote batch for ever."""

    async def story(node: BrokerNode) -> None:
        remote, _ = await led(node, "topic")
        move(remote, node.clock.now_ms())
        node.services.tiers = Reader(b"x" * 1000)  # type: ignore[assignment]
        for order, sizes in ((0, 1), [1000, 0]), ((1, 0), [0]):
            wanted = [FetchPartition(partition=index, partition_max_bytes=500) for index in order]
            asked = FetchRequest(
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=1000,
                session_epoch=-1,
                topics=[FetchTopic("topic", partitions=wanted)],
            )
            answer = await answered(fetch_handler.fetch(context(node, 12), asked))
            found = answer.responses[0].partitions
            assert [len(each.records or b"") for each in found if each.partition_index == 0] == sizes[:1]

    on_node(story)


def test_offsets_are_known_at_once_after_remote_storage_was_switched_off(on_node: Any) -> None:
    async def story(node: BrokerNode) -> None:
        partition, _ = await led(node, "topic")
        move(partition, node.clock.now_ms())
        log = partition.log
        assert log.tier is not None
        log.tier.start_offset, log.tier.end_offset = (
            NOWHERE,
            -1,
        )  # the store does not answer, so the rest is not deleted yet
        log.update_config(replace(log.config, remote_storage_enable=False))
        node.services.tiers = Reader()  # type: ignore[assignment]
        for timestamp, offset in (
            (-2, log.log_start_offset),
            (-4, log.log_start_offset),
            (-5, -1),
            (-6, -1),
            (0, None),
        ):
            topics = [ListOffsetsTopic("topic", [ListOffsetsPartition(0, -1, timestamp)])]
            answer = await answered(list_offsets(context(node, 11), ListOffsetsRequest(-1, 0, topics)))
            (found,) = answer.topics[0].partitions
            assert found.error_code == ErrorCode.NONE
            assert offset is None or found.offset == offset

    on_node(story)
