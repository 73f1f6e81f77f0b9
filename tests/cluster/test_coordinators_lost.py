"""Coordinators whose broker is killed just after it has answered: the answer stays valid."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from kbroker import Cluster
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordination.partitioning import partition_for
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.txn.raw import until

from .test_transactions import FAST, Context, _some, _written


@pytest.fixture
def context() -> Iterator[Context]:
    with Cluster(brokers=3, config=FAST) as cluster:
        found = Context(cluster)
        yield found
        found.close()


def new_leader(context: Context, topic: str, index: int, killed: int) -> int:
    leader = context.leader(topic, index)
    assert leader != killed
    return leader


@pytest.mark.parametrize("generation", [1, 2])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_an_outcome_that_was_answered_is_carried_out(context: Context, generation: int, commit: bool) -> None:
    killed = 2
    topic, name = context.topic(), context.id_at(killed)
    at_coordinator = context.at(killed, generation)
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
    answer = at_coordinator.end_once(name, producer, commit)
    context.cluster.brokers[killed].kill()
    assert not isinstance(answer, ErrorCode)
    for index in range(3):
        leader = context.at(new_leader(context, topic, index, killed))
        until("the marker", lambda i=index, at=leader: at.see(topic, index=i).stable >= 2)  # or twice
        assert leader.see(topic, index=index).values == ([b"x"] if commit else [])
    elsewhere = new_leader(context, TRANSACTIONS_TOPIC, partition_for(name, 4), killed)
    coordinator = context.at(elsewhere, generation)
    until("the end", lambda: coordinator.state(name) == ("CompleteCommit" if commit else "CompleteAbort"))
    again = coordinator.init(name)
    assert again.producer_id == producer.producer_id
    assert again.epoch > producer.epoch


def test_an_open_transaction_goes_on_elsewhere(context: Context) -> None:
    killed = 1
    topic, name = context.topic(), context.id_at(killed)
    at_coordinator = context.at(killed)
    producer = at_coordinator.init(name)
    assert at_coordinator.add(name, producer, topic, 1) is ErrorCode.NONE
    assert context.at(2).produce(name, producer, topic, [b"x"], index=1) == 0
    context.cluster.brokers[killed].kill()
    elsewhere = context.at(new_leader(context, TRANSACTIONS_TOPIC, partition_for(name, 4), killed))
    until("what is known there", lambda: elsewhere.state(name) == "Ongoing")
    leader = context.at(context.leader(topic, 1))
    assert leader.produce(name, producer, topic, [b"y"], index=1, sequence=1) == 1
    elsewhere.end(name, producer)
    until("the marker", lambda: leader.see(topic, index=1).values == [b"x", b"y"])


def test_a_transaction_times_out_elsewhere(context: Context) -> None:
    killed = 3
    topic, name = context.topic(), context.id_at(killed)
    at_coordinator = context.at(killed)
    producer = at_coordinator.init(name, timeout_ms=300)
    assert at_coordinator.add(name, producer, topic, 0) is ErrorCode.NONE
    context.cluster.brokers[killed].kill()
    elsewhere = context.at(new_leader(context, TRANSACTIONS_TOPIC, partition_for(name, 4), killed))
    until("the abort", lambda: elsewhere.state(name) == "CompleteAbort")


def commit_offset(context: Context, node_id: int, group: str, topic: str, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])])
    answer = context.at(node_id).ask(request, 8)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def test_offsets_that_were_answered_are_known_elsewhere_and_never_go_back(context: Context) -> None:
    topic, offset = context.topic(), 0
    group = context.id_at(1, OFFSETS_TOPIC)
    for killed in (1, 2, 3):
        leader = context.leader(OFFSETS_TOPIC, partition_for(group, 4))
        for _ in range(20):
            offset += 1
            commit = partial(commit_offset, context, leader, group, topic, offset)
            (code,) = until("the commit", lambda commit=commit: _loaded(commit()))
            assert code is ErrorCode.NONE
        context.cluster.brokers[leader].kill()
        elsewhere = new_leader(context, OFFSETS_TOPIC, partition_for(group, 4), leader)
        found = until("the offsets", lambda at=elsewhere: _position(context, at, group, topic))
        assert found == [offset], killed
        context.cluster.brokers[leader].start()
        until("all replicas", lambda: _in_sync(context, OFFSETS_TOPIC, partition_for(group, 4)))


def _loaded(code: ErrorCode) -> list[ErrorCode]:
    return [] if code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR) else [code]


def _position(context: Context, node_id: int, group: str, topic: str) -> list[int]:
    asked = OffsetFetchRequestGroup(group_id=group, topics=[OffsetFetchRequestTopics(topic, partition_indexes=[0])])
    (answer,) = context.at(node_id).ask(OffsetFetchRequest(groups=[asked]), 8).groups
    return [] if answer.error_code else [answer.topics[0].partitions[0].committed_offset]


def _in_sync(context: Context, topic: str, index: int) -> bool:
    states = [each.node.member.state.partition(topic, index) for each in context.cluster.brokers.values()]
    return all(each is not None and len(each.isr) == 3 for each in states)
