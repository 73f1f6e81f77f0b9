"""The coordinators' ways to other brokers, put together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kbroker.broker.coordinator_peers import CoordinatorPeers
from kbroker.cluster_state import TRANSACTIONS_TOPIC, ClusterState, PartitionState, TopicState
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn.marker_sender import Marker
from kbroker.txn.shard import Identity
from tests.coordination.world import ManualClock
from tests.peers.memory import MemoryPeers


def test_who_is_asked_follows_the_cluster() -> None:
    async def scenario() -> None:
        net, where = MemoryPeers(), {1: ("one", 9), 2: ("two", 9), 3: ("three", 9)}
        partitions = tuple(PartitionState((1, 2, 3), (1, 2, 3), leader, 5) for leader in (1, 2, -1))
        topic = TopicState(TRANSACTIONS_TOPIC, bytes(16), partitions)
        states = [ClusterState("c", controller_id=3)]
        ways = CoordinatorPeers(
            1,
            net,
            ManualClock(),
            30_000,
            where.get,
            lambda: 77,
            lambda: states[-1],
            {"a": 0, "b": 1, "c": 2}.__getitem__,
        )
        nobody = {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert ways.others.ask("b", Identity(1, 0), [("t", 0)], verify_only=True) == nobody
        states.append(ClusterState("c", controller_id=3, topics={TRANSACTIONS_TOPIC: topic}))
        assert ways.others.is_here("a")
        assert ways.others.ask("c", Identity(1, 0), [("t", 0)], verify_only=True) == nobody
        ways.others.ask("b", Identity(1, 0), [("t", 0)], verify_only=True)
        asked = await net.next()
        assert (asked.endpoint, asked.client_id) == (("two", 9), "broker-1-txn-verification")
        with pytest.raises(ApiError):
            ways.producer_ids.next()
        asked = await net.next()
        assert (asked.endpoint, asked.request.broker_epoch) == (("three", 9), 77)
        here: Any = object()
        assert ways.marker_target(1, here) is here
        assert ways.marker_target(4, here) is None
        target = ways.marker_target(2, here)
        assert target is ways.marker_target(2, here)
        assert target is not None
        target.write(Marker(7, 0, 1, True, 0, (("t", 0),)))
        asked = await net.next()
        assert (asked.endpoint, asked.client_id) == (("two", 9), "broker-1-txn-marker-sender")
        ways.close()
        assert sorted(net.closed) == [("three", 9), ("two", 9), ("two", 9)]

    asyncio.run(scenario())
