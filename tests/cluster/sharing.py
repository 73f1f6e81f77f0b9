"""A share group in a cluster, at the level of messages: where its parts are, its members, and what is stored.

Owns the choice of names so that leader, group coordinator and share coordinator are on different brokers, and the wait
for the group's partitions. Never judges.
"""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from compat_tests.wire.client import DEADLINE_SECONDS, WireClient
from compat_tests.wire.exchanges.produce import batch
from kbroker.cluster_state import OFFSETS_TOPIC, SHARE_STATE_TOPIC
from kbroker.coordination.partitioning import partition_for
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.groups import FindCoordinatorRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupHeartbeatRequest,
)
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from kbroker.share_coordinator.coordinator import coordinator_key
from kbroker.share_coordinator.share_partition_state import SharePartition, SharePartitionState
from tests.share_partition.conversation import Member, acquired
from tests.txn.raw import until

from .test_transactions import FAST, Context

ACCEPT, RELEASE, REJECT = 1, 2, 3
LEADER, GROUP, STATES = 1, 2, 3
"""The brokers of the fixture's group: the partition's leader, the group coordinator, the share coordinator."""
STATE_PARTITIONS = 5
"""Not 4, as for `__consumer_offsets`: then the group's partition would determine that of its states."""
SETTINGS = {
    **FAST,
    "group.share.assignment.interval.ms": 0,
    "group.share.heartbeat.interval.ms": 500,
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.initialize.retry.interval.ms": 1000,
    "share.coordinator.state.topic.num.partitions": STATE_PARTITIONS,
    "min.insync.replicas": 2,
}


def fetched(member: Member, topic: str, **how: Any) -> list[tuple[int, int, int]]:
    """Fetch until there are records."""
    return list(until("records", lambda: acquired(member.fetch((topic, 0), wait_ms=500, **how))))


def codes(member: Member, topic: str, first: int, last: int, kind: int = ACCEPT) -> int:
    answer = member.acknowledge({(topic, 0): [(first, last, [kind])]})
    assert not answer.error_code
    return int(answer.responses[0].partitions[0].error_code)


class Client(WireClient):
    """A connection whose end is an error, also if the broker is gone."""

    def __init__(self, broker: Any) -> None:
        if not broker.is_running:
            raise ConnectionError(f"{broker} has gone")
        super().__init__(broker.bootstrap_servers)

    def finish(self, timeout: float = DEADLINE_SECONDS) -> Any:
        answer = super().finish(timeout)
        if isinstance(answer, str):
            raise ConnectionError(answer)
        return answer


class Sharing:
    """A topic whose partition 0 is led by broker 1, and a group on the given brokers; it begins at the first record.

    Broker `coordinator` coordinates the group, broker `states` has the state of partition 0.
    """

    def __init__(self, context: Context, coordinator: int, states: int) -> None:
        self.context = context
        self.cluster = context.cluster
        self.topic = context.topic()
        self.topic_id: bytes = self.any_node().member.state.topics[self.topic].topic_id
        self._find(0, "any")
        self._find(2, f"any:{coordinator_key(SharePartition('', self.topic_id, 0)).split(':')[1]}:0")
        self.group = self._name(coordinator, states)
        self.set_config("share.auto.offset.reset", "earliest")

    def any_node(self) -> Any:
        return next(each.node for each in self.cluster.brokers.values() if each.is_running)

    def _find(self, key_type: int, key: str) -> None:
        """Trigger the creation of a coordinator's topic."""

        def found() -> bool:
            with Client(self.cluster.brokers[1]) as client:
                (one,) = client.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 6).coordinators
            return not one.error_code

        until("a coordinator", found)

    def _name(self, coordinator: int, states: int) -> str:
        while True:
            self.group = self.context.id_at(coordinator, OFFSETS_TOPIC)
            if self.states_at() == states:
                return self.group

    # -- where the parts are

    def place(self, index: int = 0) -> SharePartition:
        return SharePartition(self.group, self.topic_id, index)

    def state_partition(self, index: int = 0) -> int:
        return partition_for(coordinator_key(self.place(index)), STATE_PARTITIONS)

    def states_at(self, index: int = 0) -> int:
        """Return the broker that stores the state of a partition."""
        return self.context.leader(SHARE_STATE_TOPIC, self.state_partition(index))

    def group_at(self) -> int:
        return self.context.leader(OFFSETS_TOPIC, partition_for(self.group, 4))

    def leader(self, index: int = 0) -> int:
        return self.context.leader(self.topic, index)

    def move(self, topic: str, index: int, replicas: list[int]) -> None:
        """Move a partition to these replicas, and let the first lead it; all brokers run."""
        moved = [ReassignableTopic(topic, [ReassignablePartition(index, replicas)])]
        elected = ElectLeadersRequest(0, [TopicPartitions(topic, [index])])

        def asked(request: Any, version: int) -> bool:
            active = [each for each in self.cluster.brokers.values() if each.node.controller.is_active]
            with suppress(ConnectionError), Client(active[0] if active else self.cluster.brokers[1]) as client:
                return not client.ask(request, version).error_code
            return False

        until("the reassignment", lambda: asked(AlterPartitionReassignmentsRequest(topics=moved), 0))
        until("the move", lambda: asked(elected, 2) and self.context.leader(topic, index) == replicas[0])

    # -- the group

    def set_config(self, key: str, value: str) -> None:
        """Set a config of the group at the controller; other brokers may learn of it slightly later."""
        resource = IncrementalResource(32, self.group, [IncrementalConfig(key, 0, value)])
        with Client(self.cluster.brokers[1]) as client:
            (answer,) = client.ask(IncrementalAlterConfigsRequest([resource]), 1).responses
        assert not answer.error_code, answer
        nodes = [each.node for each in self.cluster.brokers.values() if each.is_running]
        until(
            "a config", lambda: all(n.metadata.state.group_configs.get(self.group, {}).get(key) == value for n in nodes)
        )

    def beat(self, member: str, epoch: int, *topics: str) -> Any:
        request = ShareGroupHeartbeatRequest(self.group, member, epoch, None, list(topics) or None)
        with Client(self.cluster.brokers[self.group_at()]) as client:
            return client.ask(request, 1)

    def join(self, member: str = "m", partitions: int = 3) -> int:
        """Join, and wait until the member has partitions; return its epoch."""
        epoch = 0

        def assigned() -> bool:
            nonlocal epoch
            answer = self.beat(member, epoch, self.topic)
            if answer.error_code:
                return False
            epoch = answer.member_epoch
            found = answer.assignment.topic_partitions if answer.assignment else []
            return sum(len(each.partitions) for each in found) == partitions

        until("an assignment", assigned)
        return epoch

    def member(self, node_id: int, name: str = "m") -> Member:
        """Return a member's connection to a broker."""
        served: Any = SimpleNamespace(broker=self.cluster.brokers[node_id], topics={self.topic: self.topic_id})
        member = Member(served, name, self.group)
        member.client.close()
        member.client = Client(served.broker)
        return member

    def produce(self, count: int, index: int = 0) -> None:
        data = TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index, batch(count))])
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data])

        def produced() -> bool:
            with suppress(ConnectionError), Client(self.cluster.brokers[self.leader(index)]) as client:
                return not client.ask(request, 9).responses[0].partition_responses[0].error_code
            return False

        until("records", produced)

    def described(self, *indexes: int) -> dict[int, tuple[int, int, int]]:
        """Return error, start offset and lag of each partition."""
        topics = [DescribeShareGroupOffsetsRequestTopic(self.topic, list(indexes))]
        request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(self.group, topics)])
        with Client(self.cluster.brokers[self.group_at()]) as client:
            (group,) = client.ask(request, 1).groups
        return {
            each.partition_index: (each.error_code, each.start_offset, each.lag) for each in group.topics[0].partitions
        }

    def lag(self, index: int = 0) -> int:
        """Return how many records of a partition are neither accepted nor archived; -1 while that is unknown."""
        code, _, lag = self.described(index)[index]
        return -1 if code else lag

    # -- what is stored

    def stored(self, index: int = 0) -> SharePartitionState | None:
        """Return the state of a partition from the broker that stores it."""
        node = self.cluster.brokers[self.states_at(index)].node

        async def found() -> SharePartitionState | None:
            states = dict(each for shard in node.shares.loaded() for each in shard.states())
            return states.get(self.place(index))

        state: SharePartitionState | None = self.cluster.run(found())
        return state

    def hosted(self, node_id: int) -> int:
        """Return how many share partitions a broker has in use."""
        return len(self.cluster.brokers[node_id].node.services.share)
