"""The controller's messages to brokers: LeaderAndIsr 7, UpdateMetadata 8 and StopReplica 4.

Owns the fields of these requests in Apache Kafka 3.9's versions, and the construction of a request from the parts of
its partitions. Pure. (ControllerChannelManager.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.cluster_state import NO_LEADER
from kbroker.controller.cluster.assigned_replicas import Replicas
from kbroker.controller.cluster.context import Context, LiveBroker, Partition, State
from kbroker.controller.pacing import paced
from kbroker.controller.znodes import RECOVERING
from kbroker.protocol.messages.inter_broker import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from kbroker.protocol.wire import ZERO_UUID

LEADER_AND_ISR: Final = 7
UPDATE_METADATA: Final = 8
STOP_REPLICA: Final = 4

DELETED_LEADER: Final = -2
"""The leader that UpdateMetadata has for a partition whose topic is being deleted."""
EPOCH_OF_DELETION: Final = -2
"""The leader epoch in StopReplica for a topic that is being deleted. It overrides all other epochs."""
NO_EPOCH: Final = -1
_SECURITY_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def leadership(index: int, state: State, replicas: Replicas, *, is_new: bool) -> LeaderAndIsrPartitionState:
    """Return the part of a LeaderAndIsr for a partition."""
    value = state.value
    return LeaderAndIsrPartitionState(
        partition_index=index,
        controller_epoch=value.controller_epoch,
        leader=value.leader,
        leader_epoch=value.leader_epoch,
        isr=list(value.isr),
        partition_epoch=state.version,
        replicas=list(replicas.replicas),
        adding_replicas=list(replicas.adding),
        removing_replicas=list(replicas.removing),
        is_new=is_new,
        leader_recovery_state=RECOVERING if value.recovering else 0,
    )


def metadata(context: Context, partition: Partition) -> UpdateMetadataPartitionState | None:
    """Return the part of an UpdateMetadata for a partition; None if the partition has no state yet.

    A view's only partition has no state and no replicas: members know the state and replicas of its source.
    """
    state = context.states.get(partition)
    deleted = context.is_deleted(partition[0])
    known = context.replicas(partition)
    if known is not None and not known.replicas:  # the topic is a view
        leader = DELETED_LEADER if deleted else NO_LEADER
        return UpdateMetadataPartitionState(partition_index=partition[1], leader=leader)
    if state is None:
        return None
    value = state.value
    replicas = context.assigned(partition)
    return UpdateMetadataPartitionState(
        partition_index=partition[1],
        controller_epoch=value.controller_epoch,
        leader=DELETED_LEADER if deleted else value.leader,
        leader_epoch=0 if deleted else value.leader_epoch,
        isr=list(value.isr),
        zk_version=0 if deleted else state.version,
        replicas=list(replicas),
        offline_replicas=[each for each in replicas if not context.is_online(each, partition)],
    )


def stop(context: Context, partition: Partition, *, delete: bool) -> StopReplicaPartitionState:
    """Return the part of a StopReplica for a partition."""
    if context.is_deleted(partition[0]):
        epoch = EPOCH_OF_DELETION
    else:
        state = context.states.get(partition)
        epoch = NO_EPOCH if state is None else state.value.leader_epoch
    return StopReplicaPartitionState(partition_index=partition[1], leader_epoch=epoch, delete_partition=delete)


def live_brokers(brokers: Mapping[int, LiveBroker]) -> list[UpdateMetadataBroker]:
    """Return the live brokers for an UpdateMetadata."""
    return [
        UpdateMetadataBroker(
            id=number,
            endpoints=[
                UpdateMetadataEndpoint(
                    port=each.port,
                    host=each.host,
                    listener=each.listener,
                    security_protocol=_SECURITY_PROTOCOLS.get(broker.registration.protocols.get(each.listener, ""), 0),
                )
                for each in broker.registration.endpoints
            ],
            rack=broker.registration.rack,
        )
        for number, broker in sorted(brokers.items())
    ]


async def leader_and_isr_request(
    sender: tuple[int, int, int],
    context: Context,
    listener: str,
    parts: Mapping[Partition, LeaderAndIsrPartitionState],
) -> LeaderAndIsrRequest:
    """Return a LeaderAndIsr; `sender` is the controller, its epoch, and the receiver's broker epoch."""
    topics: dict[str, LeaderAndIsrTopicState] = {}
    leaders = set()
    async for (name, _), part in paced(parts.items()):
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = LeaderAndIsrTopicState(name, _topic_id(context, name))
        topic.partition_states.append(part)
        leaders.add(part.leader)
    reached = []
    for number in sorted(leaders):
        broker = context.brokers.get(number)
        endpoint = None if broker is None else broker.at(listener)
        if endpoint is not None:
            reached.append(LeaderAndIsrLiveLeader(number, endpoint.host, endpoint.port))
    return LeaderAndIsrRequest(
        controller_id=sender[0],
        controller_epoch=sender[1],
        broker_epoch=sender[2],
        topic_states=list(topics.values()),
        live_leaders=reached,
    )


async def update_metadata_request(
    sender: tuple[int, int, int],
    context: Context,
    live: list[UpdateMetadataBroker],
    parts: Mapping[Partition, UpdateMetadataPartitionState],
) -> UpdateMetadataRequest:
    """Return an UpdateMetadata; see leader_and_isr_request."""
    topics: dict[str, UpdateMetadataTopicState] = {}
    async for (name, _), part in paced(parts.items()):
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = UpdateMetadataTopicState(name, _topic_id(context, name))
        topic.partition_states.append(part)
    return UpdateMetadataRequest(
        controller_id=sender[0],
        controller_epoch=sender[1],
        broker_epoch=sender[2],
        topic_states=list(topics.values()),
        live_brokers=live,
    )


async def stop_replica_request(
    sender: tuple[int, int, int], parts: Mapping[Partition, StopReplicaPartitionState]
) -> StopReplicaRequest:
    """Return a StopReplica; see leader_and_isr_request."""
    topics: dict[str, StopReplicaTopicState] = {}
    async for (name, _), part in paced(parts.items()):
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = StopReplicaTopicState(name)
        topic.partition_states.append(part)
    return StopReplicaRequest(
        controller_id=sender[0], controller_epoch=sender[1], broker_epoch=sender[2], topic_states=list(topics.values())
    )


def _topic_id(context: Context, name: str) -> bytes:
    topic = context.topics.get(name)
    return ZERO_UUID if topic is None else topic.topic_id
