"""Dead letters in a cluster: any broker writes them to the leader of their topic, and may create the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from compat_tests.wire.client import WireClient
from kbroker.broker.cluster_node import ClusterNode
from kbroker.embed_cluster import Cluster
from kbroker.long_work import in_slices
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.configs import IncrementalAlterConfigsRequest, IncrementalConfig, IncrementalResource
from kbroker.protocol.records import iter_batches, read_records
from kbroker.share_partition.dead_letters import REJECTED, Letter
from tests.cluster.sharing import LEADER, REJECT, Sharing, codes, fetched
from tests.txn.raw import until

FAST = {"zookeeper.session.timeout.ms": 1000}
BROKER, GROUP = 4, 32
DLQ = "dlq.t"
PATIENCE_S = 20
ARCHIVING, ARCHIVED = 3, 4


def configure(cluster: Cluster, kind: int, name: str, key: str, value: str) -> None:
    resource = IncrementalResource(kind, name, [IncrementalConfig(key, 0, value)])
    with WireClient(cluster.brokers[1].bootstrap_servers) as client:
        assert client.ask(IncrementalAlterConfigsRequest([resource]), 1).responses[0].error_code == 0


def create(cluster: Cluster, partitions: int, replicas: int, **config: str) -> None:
    configs = {"errors.deadletterqueue.group.enable": "true", **config}
    cluster.topics.create(DLQ, partitions=partitions, replication_factor=replicas, config=configs)


def write(node: ClusterNode, topic: str, index: int, letter: Letter) -> Coroutine[Any, Any, None]:
    """Write a dead letter of the group `workers` at a broker."""
    source: Any = SimpleNamespace(topic=topic, index=index, key=(topic, index))
    return in_slices(node.dead_letters.write("workers", source, [letter]))


def letters(cluster: Cluster, index: int) -> set[tuple[str, str]]:
    """Return which records the dead letters at a partition's leader are about; none if there is no leader."""

    async def read() -> set[tuple[str, str]]:
        leaders = [each.node.replicas.get((DLQ, index)) for each in cluster.brokers.values() if each.is_running]
        leader = next((each for each in leaders if each is not None and each.leading), None)
        if leader is None:
            return set()
        view = leader.log.read(0, 1 << 20, leader.log.high_watermark, min_one=True).view()
        records = [
            record
            for at, header in iter_batches(view)
            for record in read_records(bytes(view[at : at + header.size]), max_bytes=1 << 20)
        ]
        told = [dict(each.headers) for each in records]
        return {((each["__dlq.errors.topic"] or b"").decode(), (each["__dlq.errors.offset"] or b"").decode())
                for each in told}  # fmt: skip

    return cluster.run(read())


@pytest.mark.parametrize("is_there", [True, False])
def test_every_broker_writes_to_every_leader(is_there: bool) -> None:
    config = {**FAST, "num.partitions": 3, "default.replication.factor": 2, "min.insync.replicas": 2}
    with Cluster(brokers=3, config=config) as cluster:
        if is_there:
            create(cluster, 3, 2)
        else:
            configure(cluster, BROKER, "", "errors.deadletterqueue.auto.create.topics.enable", "true")
        configure(cluster, GROUP, "workers", "errors.deadletterqueue.topic.name", DLQ)

        def knows(node: ClusterNode) -> bool:
            return "workers" in node.metadata.state.group_configs and (
                node.config.get_bool("errors.deadletterqueue.auto.create.topics.enable") != is_there
            )

        until("the configs", lambda: all(knows(each.node) for each in cluster.brokers.values()))
        for number, broker in cluster.brokers.items():
            for index in range(3):
                cluster.run(write(broker.node, f"t{number}", index, Letter(5, 6, 1, REJECTED)))
        expected = {(f"t{number}", offset) for number in cluster.brokers for offset in ("5", "6")}
        for index in range(3):
            assert letters(cluster, index) == expected


def rejected(sharing: Sharing) -> None:
    """Let a member receive two records and reject them; the dead letters go to a topic that broker 2 leads."""
    create(sharing.cluster, 1, 3)
    sharing.move(DLQ, 0, [2, 1, 3])
    sharing.set_config("errors.deadletterqueue.topic.name", DLQ)
    sharing.join()
    sharing.produce(2)
    with sharing.member(LEADER) as member:
        assert fetched(member, sharing.topic) == [(0, 1, 1)]
        assert codes(member, sharing.topic, 0, 1, REJECT) == 0


def written(sharing: Sharing) -> bool:
    return letters(sharing.cluster, 0) == {(sharing.topic, "0"), (sharing.topic, "1")}


def test_what_a_member_rejects_is_written_at_another_broker(sharing: Sharing) -> None:
    rejected(sharing)
    until("both letters", lambda: written(sharing) and sharing.lag() == 0)
    state = sharing.stored()
    assert state is not None
    assert [each for each in state.batches if each.delivery_state != ARCHIVED] == []


def test_the_next_leader_writes_what_a_killed_one_has_not(sharing: Sharing) -> None:
    stuck = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        writer = sharing.cluster.brokers[LEADER].node.dead_letters
        patch.setattr(writer, "write", lambda *_: stuck.wait())
        rejected(sharing)
        state = sharing.stored()
        assert state is not None
        assert [each.delivery_state for each in state.batches] == [ARCHIVING]
        sharing.cluster.brokers[LEADER].kill()
    until("another leader", lambda: sharing.leader() not in (-1, LEADER))
    with sharing.member(sharing.leader(), "m2") as member:
        until(
            "both letters", lambda: member.fetch((sharing.topic, 0), wait_ms=100).error_code == 0 and written(sharing)
        )


class Frozen:
    """A broker that receives a request, and does not answer as long as the connection exists."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[None]] = []

    async def ask(self, *_: object) -> None:
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]

    def close(self) -> None:
        for each in self.asked:
            each.set_exception(PeerUnavailable("closed"))


def leader_of(node: ClusterNode) -> int:
    partition = node.metadata.state.partition(DLQ, 0)
    return -1 if partition is None else partition.leader


def test_letters_do_not_wait_for_a_leader_that_is_gone() -> None:
    """A frozen broker closes no connection: without this, its answer would be awaited for a minute."""
    with Cluster(brokers=3, config=FAST) as cluster:
        create(cluster, 1, 3, **{"min.insync.replicas": "1"})
        configure(cluster, GROUP, "workers", "errors.deadletterqueue.topic.name", DLQ)
        until("a leader", lambda: leader_of(cluster.brokers[1].node) > 0)
        gone = leader_of(cluster.brokers[1].node)
        writer = cluster.brokers[gone % 3 + 1].node
        until("the config", lambda: "workers" in writer.metadata.state.group_configs and leader_of(writer) == gone)
        frozen = Frozen()
        letters_to = writer.dead_letters._own._peers  # type: ignore[attr-defined]
        letters_to._known[gone] = letters_to._endpoint_of(gone), frozen
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(cluster.run, write(writer, "t", 0, Letter(5, 5, 1, REJECTED)))
            until("a request", lambda: frozen.asked)
            cluster.brokers[gone].kill()
            writing.result(PATIENCE_S)
        assert letters(cluster, 0) == {("t", "5")}
