"""A Fetch waits while its records leave the local disk: it ends without an error, and the next one reads them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compat_tests.wire.exchanges.produce import batch
from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers import fetch as fetch_handler
from kbroker.handlers.registry import RequestContext
from kbroker.partition import Partition
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.tiers.reading import NOT_YET
from tests.log.builders import delete_due
from tests.turns import run_on


class NoReader:
    """A store that never answers."""

    reader: Any
    reads = 0

    def __init__(self) -> None:
        self.reader = self

    async def read(self, *_args: Any, **_more: Any) -> Any:
        self.reads += 1
        return NOT_YET


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


async def ends_without_an_error(node: BrokerNode, topic: str, *, beside: bool = False) -> None:
    """Let records leave the disk while a fetch waits for more; `beside`: it also wants records of remote storage."""
    configs = {"internal.segment.bytes": "100", "local.retention.bytes": "1"}
    node.controller.put_topics([node.controller.plan_topic(topic, 2, 1, None, configs)])
    while any(node.replicas.get((topic, index)) is None for index in range(2)):  # noqa: ASYNC110 - in slices
        await asyncio.sleep(0)
    here, other = (node.replicas.leader(topic, index) for index in range(2))
    for partition in (here, other):
        partition.log.update_config(replace(partition.log.config, remote_storage_enable=True))
        for _ in range(3):
            partition.append(bytearray(batch(1)), 1, node.clock.now_ms())
    if beside:
        node.services.tiers = NoReader()  # type: ignore[assignment]
        move(other, node.clock.now_ms())
    context = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
    context.version = 12
    task = asyncio.ensure_future(answered(fetch_handler.fetch(context, request(topic, *range(1 + beside)))))
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
    return await (run_on(answer) if asyncio.iscoroutine(answer) else answer)


def test_a_waiting_fetch_ends_without_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(tmp_path)}
        node = await BrokerNode.start(BrokerConfig(settings))
        try:
            await ends_without_an_error(node, "of-few")
            await ends_without_an_error(node, "beside-remote", beside=True)
            monkeypatch.setattr(fetch_handler, "FEW", -1)
            await ends_without_an_error(node, "of-many")
        finally:
            node.services.tiers = None
            await node.stop()

    asyncio.run(scenario())
