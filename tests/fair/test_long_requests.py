"""Long requests of every API: the work between two yields does not grow with the length of a list.

The unit is the interpreter's steps, which are the same in each run. `python -m tests.fair` measures the same requests,
at their full length, against broker processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.features import SHARE_VERSION
from kbroker.handlers.registry import RequestContext
from tests.broker.in_effect import in_effect
from tests.fair.gaps import Counter, run
from tests.fair.long_requests import FILLS, GROUP, NO_LISTS, TOPIC, LongList, every_list, lists_of, measured
from tests.fair.rows import apis_without_rows

SHORT, LONG = 150, 600
"""Elements of the two compared lists: if a request counts as short, both do."""
AT_ONCE = {
    "CreatePartitions v3 topics.assignments": "a topic's growth is one change, of 10,000 partitions at most",
    "AlterConfigs v2 resources.configs": "up to 1,000 configs of one resource are one change, more are refused",
    "IncrementalAlterConfigs v1 resources.configs": "as above",
    "JoinGroup v9 protocols": "up to 1,000 protocols are one decision, more are refused",
    "SyncGroup v5 assignments": "up to 1,000 assignments are one decision, more are sifted first",
    "ConsumerGroupHeartbeat v1 subscribed_topic_names": "what a member subscribes to is one decision",
    "ConsumerGroupHeartbeat v1 topic_partitions": "what a member owns is one decision",
    "ConsumerGroupHeartbeat v1 topic_partitions.partitions": "what a member owns is one decision",
    "OffsetCommit v10 topics.partitions": "one batch is one decision, built in pieces before",
    "OffsetCommit v10 topics": "as above",
    "TxnOffsetCommit v6 topics.partitions": "as above",
    "TxnOffsetCommit v6 topics": "as above",
    "WriteShareGroupState v1 topics.partitions.state_batches": "one write is one decision, of 10,000 batches at most",
}
"""Lists about which a coordinator decides in one step, and what bounds them."""


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[tuple[RequestContext, bytes]]:
    """Yield a broker with a topic, a group and the coordinators' topics; a handler's context, and the topic's id."""
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.num.partitions": "2",
        "share.coordinator.state.topic.num.partitions": "2",
    }
    node = await BrokerNode.start(BrokerConfig(settings))
    try:
        node.controller.replace_features({**node.controller.state.features, SHARE_VERSION: 1})
        for topic in (TOPIC, "__consumer_offsets", "__transaction_state", "__share_group_state"):
            node.controller.auto_create(topic)
        await in_effect(node)
        context = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
        yield context, node.controller.state.topics[TOPIC].topic_id
    finally:
        await node.stop()


def by_api() -> Iterator[tuple[str, list[LongList]]]:
    lists = every_list()
    for api in measured():
        yield api.name, [each for each in lists if each.api is api]


def test_every_api_has_its_rows() -> None:
    """A new API has rows through its declaration; one without a list must be named as such."""
    without = {name for name, lists in by_api() if not lists}
    without |= {api.name for api in measured(of_clusters=True) if not list(lists_of(api))}
    assert without == NO_LISTS
    assert not apis_without_rows()
    assert {str(each) for each in every_list()} >= AT_ONCE.keys(), "an exception is of no list"


async def dearest(context: RequestContext, each: LongList, fill: str, topic_id: bytes) -> tuple[float, float]:
    """Return the most interpreter steps between two yields, with the short and with the long list."""
    await run(context, each.filled(SHORT, fill, topic_id), each.version)  # what the first use creates already exists
    short = await run(context, each.filled(SHORT, fill, topic_id), each.version, Counter)
    long = await run(context, each.filled(LONG, fill, topic_id), each.version, Counter)
    return short.longest, long.longest


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, lists in by_api() if lists])
def test_a_longer_list_makes_no_longer_step(name: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as (context, topic_id):
            for each in dict(by_api())[name]:
                for fill in FILLS:
                    short, long = await dearest(context, each, fill, topic_id)
                    if str(each) in AT_ONCE:
                        continue
                    assert long <= 1.2 * short + 1_000, f"{each} {fill}: {short:.0f} and {long:.0f} steps"

    asyncio.run(scenario())


def test_the_topic_is_there_after_all_of_it(tmp_path: Path) -> None:
    """Requests that only validate have changed nothing."""

    async def scenario() -> None:
        async with world(tmp_path) as (context, _):
            state = context.services.controller.state
            for each in every_list():
                if each.api.name in ("CreateTopics", "CreatePartitions", "AlterConfigs", "IncrementalAlterConfigs"):
                    await run(context, each.filled(3), each.version)
            assert context.services.controller.state is state
            assert GROUP not in state.topics

    asyncio.run(scenario())
