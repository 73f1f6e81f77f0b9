"""Transactions whose coordinator, partitions and group are on different brokers, at the level of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker import Cluster
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordination.partitioning import partition_for
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from kbroker.protocol.messages.transactions import AddOffsetsToTxnRequest
from kbroker.txn.shard import Identity
from tests.txn.raw import CONCURRENT, Raw, until

FAST = {
    "replica.fetch.backoff.ms": 100,
    "controlled.shutdown.retry.backoff.ms": 100,
    "zookeeper.session.timeout.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 50,
}


class Context:
    """Three brokers; of each topic created here, broker 1 leads partition 0, broker 2 leads 1, broker 3 leads 2."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.count = 0
        self._opened: list[Raw] = []

    def at(self, node_id: int, generation: int = 1) -> Raw:
        """Return a connection to a broker."""
        self._opened.append(Raw(self.cluster.brokers[node_id].bootstrap_servers, generation))
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            each.close()

    def leader(self, topic: str, index: int) -> int:
        """Wait until all running brokers agree on a partition's leader, and return it."""

        def agreed() -> int:
            running = [each for each in self.cluster.brokers.values() if each.is_running]
            known = [each.node.member.state.partition(topic, index) for each in running]
            leaders = {-1 if each is None else each.leader for each in known}
            return leaders.pop() if len(leaders) == 1 and leaders <= {each.node.node_id for each in running} else 0

        return int(until("a leader", agreed))

    def topic(self) -> str:
        self.count += 1
        name = f"topic-{self.count}"
        assignments = [CreatableReplicaAssignment(0, [1, 2, 3]), CreatableReplicaAssignment(1, [2, 3, 1])]
        assignments.append(CreatableReplicaAssignment(2, [3, 1, 2]))
        asked = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)

        def created() -> bool:
            controller = next(
                each for each in self.cluster.brokers.values() if each.is_running and each.node.controller.is_active
            )
            raw = self.at(controller.node.node_id)
            (made,) = raw.ask(CreateTopicsRequest(topics=[asked], timeout_ms=20_000), 5).topics
            return made.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)

        until("the topic", created)
        assert [self.leader(name, index) for index in range(3)] == [1, 2, 3]
        return name

    def id_at(self, node_id: int, topic: str = TRANSACTIONS_TOPIC) -> str:
        """Return a transactional id, or a group, that a broker coordinates."""
        while True:
            self.count += 1
            name = f"id-{self.count}"
            if self.leader(topic, partition_for(name, 4)) == node_id:
                return name


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with Cluster(brokers=3, config=FAST) as cluster:
        found = Context(cluster)
        yield found
        found.close()


def sees(raw: Raw, topic: str, index: int, values: list[bytes]) -> Callable[[], bool]:
    return lambda: raw.see(topic, index=index).values == values


@pytest.mark.long
@pytest.mark.parametrize("coordinator", [1, 2, 3])
@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_partitions_of_all_brokers(context: Context, coordinator: int, generation: int, commit: bool) -> None:
    topic, name = context.topic(), context.id_at(coordinator)
    at_coordinator = context.at(coordinator, generation)
    producer = at_coordinator.init(name)
    for index in range(3):
        if generation == 1:
            (added,) = until("adding", lambda i=index: _some(at_coordinator.add(name, producer, topic, i)))
            assert added is ErrorCode.NONE
        leader = context.at(index + 1, generation)
        got = until(
            "producing", lambda i=index, at=leader: _written(at.produce(name, producer, topic, [b"x"], index=i))
        )
        assert got == [0]
        assert leader.see(topic, index=index).values == []
    at_coordinator.end(name, producer, commit)
    for index in range(3):
        seen = [b"x"] if commit else []
        until("the marker", sees(context.at(index + 1), topic, index, seen))
        assert context.at(index + 1).see(topic, index=index).stable == 2


def _some(code: ErrorCode) -> list[ErrorCode]:
    return [] if code is CONCURRENT else [code]


def add_offsets(raw: Raw, name: str, producer: Identity, group: str) -> ErrorCode:
    request = AddOffsetsToTxnRequest(
        transactional_id=name, producer_id=producer.producer_id, producer_epoch=producer.epoch, group_id=group
    )
    return ErrorCode(raw.ask(request, 3).error_code)


def _written(answer: Any) -> list[Any]:
    return [] if answer in (CONCURRENT, ErrorCode.NOT_ENOUGH_REPLICAS) else [answer]


@pytest.mark.parametrize("coordinator", [1, 2])
def test_what_was_not_added_is_refused(context: Context, coordinator: int) -> None:
    """The coordinator refuses it; the partition's leader asks it, wherever it is."""
    topic, name = context.topic(), context.id_at(coordinator)
    at_coordinator, leader = context.at(coordinator), context.at(1)
    producer = at_coordinator.init(name)
    assert leader.produce(name, producer, topic, [b"x"], version=10) is ErrorCode.INVALID_TXN_STATE
    assert leader.produce(name, producer, topic, [b"x"], version=11) is ErrorCode.TRANSACTION_ABORTABLE
    assert at_coordinator.add(name, producer, topic, 0) is ErrorCode.NONE
    older = producer._replace(epoch=producer.epoch - 1)
    stranger = producer._replace(producer_id=producer.producer_id + 1)
    if older.epoch >= 0:
        assert leader.produce(name, older, topic, [b"x"]) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert leader.produce(name, stranger, topic, [b"x"]) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert leader.produce(name, producer, topic, [b"x"]) == 0
    at_coordinator.end(name, producer)
    until("the marker", sees(leader, topic, 0, [b"x"]))


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("generation", [1, 2])
def test_offsets_of_a_group_elsewhere(context: Context, generation: int, commit: bool) -> None:
    topic, name, group = context.topic(), context.id_at(2), context.id_at(3, OFFSETS_TOPIC)
    at_coordinator, at_group = context.at(2, generation), context.at(3, generation)
    producer = at_coordinator.init(name)
    at_group.find_group(group)
    if generation == 1:
        (added,) = until("adding", lambda: _some(add_offsets(at_coordinator, name, producer, group)))
        assert added is ErrorCode.NONE
    (written,) = until("the offsets", lambda: _some(at_group.offsets(name, producer, group, topic, 5)))
    assert written is ErrorCode.NONE
    assert at_group.position(group, topic) == -1
    at_coordinator.end(name, producer, commit)
    wanted = 5 if commit else -1
    until("the marker", lambda: at_group.position(group, topic, stable=True) == wanted)


def test_ids_of_all_brokers_differ(context: Context) -> None:
    found = [context.at(node_id).init(context.id_at(node_id)).producer_id for node_id in (1, 2, 3) for _ in range(3)]
    assert len(set(found)) == 9
    assert len({each // 1000 for each in found}) == 3
