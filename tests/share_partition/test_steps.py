"""Long lists in ShareFetch and ShareAcknowledge: the work between two turns does not grow with the lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kbroker import Broker
from kbroker.handlers.registry import RequestContext
from kbroker.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from kbroker.protocol.messages.share_fetch import FetchPartition, FetchTopic, ForgottenTopic, ShareFetchRequest
from tests.fair.gaps import Counter, run

from .conversation import GROUP, Served

SHORT, LONG = 400, 1600
MEMBER = "m1"


def ids(count: int) -> list[bytes]:
    return [number.to_bytes(16, "big") for number in range(1, count + 1)]


def fetch(topics: list[FetchTopic], epoch: int = 0, **fields: Any) -> ShareFetchRequest:
    usual = {"max_bytes": 1 << 24, "max_records": 10_000, "batch_size": 1, "min_bytes": 1, "max_wait_ms": 0}
    return ShareFetchRequest(
        group_id=GROUP, member_id=MEMBER, share_session_epoch=epoch, topics=topics, **{**usual, **fields}
    )


def acknowledge(topic: bytes, batches: list[AcknowledgementBatch], epoch: int) -> ShareAcknowledgeRequest:
    partitions = [AcknowledgePartition(0, batches)]
    return ShareAcknowledgeRequest(
        group_id=GROUP, member_id=MEMBER, share_session_epoch=epoch, topics=[AcknowledgeTopic(topic, partitions)]
    )


def unknown_topics(_topic: bytes, count: int) -> list[Any]:
    return [fetch([FetchTopic(each, [FetchPartition(0, [])]) for each in ids(count)])]


def unknown_partitions(topic: bytes, count: int) -> list[Any]:
    return [fetch([FetchTopic(topic, [FetchPartition(number, []) for number in range(7, count)])])]


def forgotten(topic: bytes, count: int) -> list[Any]:
    added = fetch([FetchTopic(topic, [FetchPartition(number, []) for number in range(7, count)])])
    return [added, fetch([], 1, forgotten_topics_data=[ForgottenTopic(topic, list(range(7, count)))])]


def records(topic: bytes, count: int) -> list[Any]:
    """Return requests that fetch `count` batches, acknowledge every second record, fetch again and end the session."""
    one = [FetchTopic(topic, [FetchPartition(0, [])])]
    return [
        fetch(one),
        fetch(one, 1),
        acknowledge(topic, [AcknowledgementBatch(0, count - 1, [1, 2] * (count // 2))], 2),
        fetch([], 3),
        acknowledge(topic, [AcknowledgementBatch(at, at, [1]) for at in range(1, count, 2)], 4),
        fetch([], -1),
    ]


@pytest.mark.long
@pytest.mark.parametrize("make", [unknown_topics, unknown_partitions, forgotten, records])
def test_a_longer_list_makes_no_longer_step(make: Callable[[bytes, int], list[Any]]) -> None:
    with Broker() as broker:
        served = Served(broker)
        served.settings.now = served.settings.now._replace(record_locks=10_000)
        topics = {count: served.topic(f"t{count}") for count in (20, SHORT, LONG)}
        for count in topics:
            served.produce(f"t{count}", *[1] * count)

        async def longest(count: int) -> float:
            context = RequestContext(broker.node.services, "/192.0.2.1", "PLAINTEXT", ("", 0))
            steps = []
            for request in make(topics[count], count):
                done = await run(context, request, 2, Counter)
                assert done.answer.error_code == 0
                steps.append(done.longest)
                await asyncio.gather(*served.share._tasks)
            return max(steps)

        async def both() -> tuple[float, float]:
            await longest(20)  # the first use creates some objects
            return await longest(SHORT), await longest(LONG)

        short, long = served.on_loop(both)
        assert long <= 1.2 * short + 1_500, f"{short:.0f} and {long:.0f} steps"
