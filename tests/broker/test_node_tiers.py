"""What a broker believes of a topic before it deletes the topic's remote segments."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from kbroker.broker.node_tiers import check_tiers, use_in, use_in_tree
from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.tree.memory import MemoryEnsemble, MemoryTree
from kbroker.controller.tree.znode import Create
from kbroker.controller.znodes import CONFIG, TOPICS, Assignment, encode_configs, topic_path
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.tiers.metadata import Owner
from kbroker.tiers.shared import Use

ID, OTHER = b"i" * 16, b"o" * 16
OWNER = Owner("t", ID, 0)
ON, OFF = {"remote.storage.enable": "true"}, {"remote.log.delete.on.disable": "true"}
UNKNOWN = ClusterState("cluster")
"""The state of a broker before the controller has sent it any topic."""


def state(configs: dict[str, str], topic_id: bytes = ID) -> ClusterState:
    topic = TopicState("t", topic_id, (PartitionState((1,), (1,), 1, 0),), configs)
    return replace(UNKNOWN, topics={"t": topic}, topic_names={topic_id: "t"})


async def tree(topic_id: bytes | None, configs: dict[str, str] | None) -> MemoryTree:
    """Return a tree with a topic, if it has an id or configs."""
    made = MemoryEnsemble().connect()
    for path in ("/brokers", TOPICS, CONFIG, f"{CONFIG}/topics"):
        await made.commit([Create(path, b"")])
    if configs is not None:
        await made.commit([Create(f"{CONFIG}/topics/t", encode_configs(configs))])
        await made.commit([Create(topic_path("t"), Assignment({0: (1,)}, topic_id).encode())])
    return made


@pytest.mark.parametrize(
    ("known", "topic_id", "configs", "use"),
    [
        (UNKNOWN, ID, ON, Use.ON),
        (UNKNOWN, ID, OFF, Use.OFF),
        (UNKNOWN, ID, {}, Use.ON),  # the configs may be unknown yet
        (UNKNOWN, None, None, Use.DELETED),
        (UNKNOWN, OTHER, ON, Use.DELETED),
        (UNKNOWN, None, ON, Use.ON),  # an old broker has written the znode without an id
        (state(OFF), ID, ON, Use.ON),
        (state(ON), ID, ON, Use.ON),
        (state(ON, OTHER), ID, ON, Use.ON),
        (state(ON, OTHER), OTHER, ON, Use.DELETED),
    ],
)
def test_a_topic_is_gone_when_zookeeper_says_so(
    known: ClusterState, topic_id: bytes | None, configs: dict[str, str] | None, use: Use
) -> None:
    async def scenario() -> None:
        assert await use_in_tree(await tree(topic_id, configs), known, OWNER) is use

    asyncio.run(scenario())


def test_without_zookeeper_no_topic_is_gone() -> None:
    async def scenario() -> None:
        cut = await tree(ID, ON)
        cut.cut()
        with pytest.raises(ApiError) as raised:
            await use_in_tree(cut, UNKNOWN, OWNER)
        assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE

    asyncio.run(scenario())


def test_a_node_alone_knows_all_topics() -> None:
    assert [use_in(each, OWNER) for each in (UNKNOWN, state(ON), state(OFF), state(ON, OTHER))] == [
        Use.DELETED,
        Use.ON,
        Use.OFF,
        Use.DELETED,
    ]


def test_a_broker_without_tiers_refuses_topics_with_remote_records() -> None:
    check_tiers(BrokerConfig({}), {"t": {}})
    with pytest.raises(ConfigError, match="topics such as t use remote storage"):
        check_tiers(BrokerConfig({}), {"s": {}, "t": ON})
