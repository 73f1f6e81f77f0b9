"""inter.broker.apis.from=brokers: inter-broker requests are accepted on that listener, from brokers' hosts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from compat_tests.wire.client import WireClient
from kbroker import Cluster
from kbroker.controller.tree.znode import Unreachable
from kbroker.handlers.from_brokers import BrokerHosts, _address
from kbroker.handlers.registry import CloseConnection
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from kbroker.protocol.messages.inter_broker import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kbroker.protocol.messages.share_state import (
    DeleteShareGroupStateRequest,
    InitializedPartition,
    InitializedTopic,
    InitializeShareGroupStateRequest,
    PartitionToDelete,
    PartitionToRead,
    PartitionToWrite,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    TopicToDelete,
    TopicToRead,
    TopicToWrite,
    WriteShareGroupStateRequest,
)
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.broker.test_fuzz import Canary

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
OF_CONTROLLER = {"controller_id": 9, "controller_epoch": -1, "broker_epoch": -1}
FORGED: list[tuple[Any, int]] = [
    (LeaderAndIsrRequest(**OF_CONTROLLER, type=0, topic_states=[], live_leaders=[]), 7),
    (StopReplicaRequest(**OF_CONTROLLER, topic_states=[]), 4),
    (UpdateMetadataRequest(**OF_CONTROLLER, topic_states=[], live_brokers=[]), 8),
    (ControlledShutdownRequest(broker_id=99, broker_epoch=-1), 3),
    (AlterPartitionRequest(broker_id=99, broker_epoch=-1, topics=[]), 3),
    (AllocateProducerIdsRequest(broker_id=99, broker_epoch=-1), 0),
    (AddPartitionsToTxnRequest(transactions=[]), 5),
    (FetchRequest(replica_id=2, max_wait_ms=0, min_bytes=0, topics=[FetchTopic("t", b"", [FetchPartition(0)])]), 12),
    (FetchRequest(replica_state=ReplicaState(2, -1), max_wait_ms=0, min_bytes=0, topics=[]), 17),
]
MARKERS = WriteTxnMarkersRequest([WritableTxnMarker(1, 1, True, [WritableTxnMarkerTopic("t", [0])], 0)])

T = b"t" * 16
SHARE_STATES: list[tuple[Any, int]] = [
    (InitializeShareGroupStateRequest("g", [InitializedTopic(T, [InitializedPartition(0, 0, 0)])]), 0),
    (ReadShareGroupStateRequest("g", [TopicToRead(T, [PartitionToRead(0, 0)])]), 0),
    (WriteShareGroupStateRequest("g", [TopicToWrite(T, [PartitionToWrite(0, 0, 0, 0, 0, [])])]), 1),
    (DeleteShareGroupStateRequest("g", [TopicToDelete(T, [PartitionToDelete(0)])]), 0),
    (ReadShareGroupStateSummaryRequest("g", [TopicToRead(T, [PartitionToRead(0, 0)])]), 1),
]
ALL = len(FORGED) + 1 + len(SHARE_STATES)


def codes(client: WireClient) -> list[int]:
    found = [client.ask(request, version).error_code for request, version in FORGED]
    markers = client.ask(MARKERS, 1).markers
    states = [client.ask(request, version).results[0].partitions[0].error_code for request, version in SHARE_STATES]
    return [*found, markers[0].topics[0].partitions[0].error_code, *states]


@pytest.mark.long
def test_strangers_pass_for_no_brokers_and_brokers_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kbroker")
    config = {
        "inter.broker.apis.from": "brokers",
        "listeners": "OUTSIDE://127.0.0.1:0,INSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    with Cluster(3, config, data_dir=tmp_path) as cluster:
        cluster.topics.create("t", partitions=3, replication_factor=3)
        broker = cluster.brokers[1]
        outside, inside = map(str, broker.node.addresses)
        with WireClient(outside) as client:
            assert codes(client) == [REFUSED] * ALL
        with WireClient(inside) as client:
            assert REFUSED not in codes(client), "loopback is where the brokers are"
        canary = Canary(outside, 1)
        canary.sing()
        canary.client.close()
        cluster.brokers[2].stop()
        cluster.brokers[2].start()
        state = cluster.brokers[2].node.member.state
        assert {each.leader for each in state.topics["t"].partitions} <= {1, 2, 3}
        said = [each.getMessage() for each in caplog.records]
        assert not [each for each in said if "controlled shutdown" in each], said
        assert sum("the sender is no broker" in each for each in said) == ALL, "strangers' alone"


def judged(hosts: Iterable[str], *peers: str) -> list[bool]:
    async def registered() -> Iterable[str]:
        return hosts

    async def ask() -> list[bool]:
        known = BrokerHosts("INSIDE", registered)
        assert not known.knows(peers[0]), "nothing was read yet"
        return [known.knows(each) or (number == 0 and await known.knows_now(each)) for number, each in enumerate(peers)]

    return asyncio.run(ask())


def test_hosts() -> None:
    asked = ("/192.0.2.1", "/192.0.2.2", "/127.0.0.1", "/0:0:0:0:0:0:0:1", "/0:0:0:0:0:ffff:c000:201")
    assert judged(["192.0.2.1"], *asked) == [True, False, False, False, True]
    assert judged(["127.0.1.1", "2001:db8::1"], *asked) == [False, False, True, True, False]
    assert judged(["localhost"], "/127.0.0.1", "/192.0.2.1") == [True, False]
    assert judged([], *asked) == [False] * 5
    assert judged(["2001:db8::1"], "/2001:db8:0:0:0:0:0:1") == [True]


class Reading:
    """Host lookups: how often they are made, and their results."""

    def __init__(self) -> None:
        self.hosts: list[str] | None = []
        self.times = 0

    async def __call__(self) -> list[str]:
        self.times += 1
        await asyncio.sleep(0)
        if self.hosts is None:
            raise Unreachable("gone")
        return self.hosts


def test_hosts_are_read_anew_and_not_at_any_rate() -> None:
    async def ask() -> None:
        loop, now = asyncio.get_running_loop(), 1000.0
        reading = Reading()
        known = BrokerHosts("INSIDE", reading)
        loop.time, real = lambda: now, loop.time  # type: ignore[method-assign]
        try:
            known._read_at = known._tried_at = 0.0
            assert await asyncio.gather(*(known.knows_now("/192.0.2.1") for _ in range(50))) == [False] * 50
            assert reading.times == 1, "those who come together are judged by one reading"
            reading.hosts, now = ["192.0.2.1"], now + 5
            assert await known.knows_now("/192.0.2.1")
            reading.hosts, now = [], now + 29
            assert known.knows("/192.0.2.1")
            assert known._reading is None
            now += 2
            assert known.knows("/192.0.2.1"), "at once, and read anew beside it"
            assert known._reading is not None
            await known._reading
            assert not known.knows("/192.0.2.1")
            reading.hosts, now = None, now + 5
            with pytest.raises(CloseConnection):
                await known.knows_now("/192.0.2.1")
            known._known, now = frozenset([_address("192.0.2.1")]), now + 1
            tried = reading.times
            assert known.knows("/192.0.2.1"), "what was known stays where nothing can be read"
            assert known._reading is None
            assert reading.times == tried, "and is read anew no more often for it"
        finally:
            loop.time = real  # type: ignore[method-assign]
            known.close()

    asyncio.run(ask())


def test_a_host_that_cannot_be_resolved_for_once_is_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a broker's request would be refused once, and nobody retries a LeaderAndIsr."""

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        reading = Reading()
        reading.hosts = ["b1.example", "b2.example"]
        addresses = {"b1.example": "192.0.2.1", "b2.example": "192.0.2.2"}

        async def resolve(host: str, _port: None, **_: int) -> list[Any]:
            if host not in addresses:
                raise socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[host], 0))]

        monkeypatch.setattr(loop, "getaddrinfo", resolve)
        known = BrokerHosts("INSIDE", reading)
        assert await known.knows_now("/192.0.2.1")
        del addresses["b1.example"]
        await known._begin(0)
        assert [known.knows(f"/192.0.2.{number}") for number in (1, 2, 3)] == [True, True, False]
        reading.hosts = ["b2.example"]
        await known._begin(0)
        assert [known.knows(f"/192.0.2.{number}") for number in (1, 2)] == [False, True]
        known.close()

    asyncio.run(ask())
