"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments on a single node."""

from __future__ import annotations

from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)


@sequence
def elections_alone(wire: Wire) -> None:
    topic = wire.topic("elected", partitions=2)
    for v in versions(ElectLeadersRequest):
        for kind in (0, 1):
            answer = wire.quiet(ElectLeadersRequest(kind, None, 5000), v)
            own = [each for each in answer.replica_election_results if each.topic == topic]
            wire.record(f"all, type {kind}", v, own)
            several = [TopicPartitions(topic, [0, 1, 7]), TopicPartitions("nowhere", [0])]
            wire.ask(f"some, type {kind}", ElectLeadersRequest(kind, several, 5000), v)
        wire.ask("none", ElectLeadersRequest(0, [], 5000), v)
        if v:  # earlier versions have no types
            wire.ask("bad type", ElectLeadersRequest(9, None, 5000), v)


@sequence
def reassignments_alone(wire: Wire) -> None:
    topic = wire.topic("moved", partitions=2)
    own = wire.quiet(MetadataRequest(topics=[]), 9).brokers[0].node_id
    targets = {
        "there already": [own],
        "cancelled": None,
        "nobody": [],
        "another": [own + 7],
        "one more": [own, own + 7],
        "twice": [own, own],
        "negative": [-3],
        "own and negative": [own, -3],
        "another and twice": [own + 7, own, own],
        "two others and own": [own + 9, own + 7, own],
    }
    for v in versions(AlterPartitionReassignmentsRequest):
        for may_change in (True, False) if v else (True,):
            for what, target in targets.items():
                parts = [ReassignablePartition(0, target)]
                request = AlterPartitionReassignmentsRequest(5000, may_change, [ReassignableTopic(topic, parts)])
                wire.ask(f"{what}, {may_change}", request, v)
            for name, index in ((topic, 9), ("nowhere", 0)):
                for wish in ([own], None, []):
                    parts = [ReassignablePartition(index, wish)]
                    request = AlterPartitionReassignmentsRequest(5000, may_change, [ReassignableTopic(name, parts)])
                    wire.ask(f"{name} {index} to {wish}, {may_change}", request, v)
        wire.ask("none", AlterPartitionReassignmentsRequest(5000, True, []), v)
    for v in versions(ListPartitionReassignmentsRequest):
        wire.ask("all", ListPartitionReassignmentsRequest(5000, None), v)
        named = [ListPartitionReassignmentsTopics(topic, [0, 9]), ListPartitionReassignmentsTopics("nowhere", [0])]
        wire.ask("some", ListPartitionReassignmentsRequest(5000, named), v)
