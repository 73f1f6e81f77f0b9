"""DescribeQuorum (key 55), versions 0-2: who votes on the cluster's metadata, and how far each has it (KIP-595).

Behaviour: of a node alone, as a Kafka that is one node and its own controller: it is the one voter, and leads. Its log
of metadata is the journal (controller/embedded_store.py), whose changes since the start count as offsets; it is asked
for by Kafka's name of it. In a cluster ZooKeeper has the metadata: not served, nor advertised.
"""

from __future__ import annotations

from typing import Final

from kbroker.cluster_state import BrokerEndpoint
from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import Services
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
)

TOPIC: Final = "__cluster_metadata"
_EPOCH: Final = 1
"""Of the leader: there is no other who could have led."""


def _is_alone(services: Services) -> bool:
    return services.cluster is None


def _refused(_request: DescribeQuorumRequest, code: int, message: str | None) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=code, error_message=message or DEFAULT_MESSAGES.get(ErrorCode(code)))


@handles(DescribeQuorumRequest, DescribeQuorumResponse, "0-2", _refused, advertised=_is_alone)
def describe_quorum(ctx: RequestContext, request: DescribeQuorumRequest) -> Divided[DescribeQuorumResponse]:
    """Answer for the one partition that there is."""
    services = ctx.services
    if not _is_alone(services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if not _is_metadata(request):
        return (yield from _unknown(request))
    state, now_ms = services.controller.state, services.clock.now_ms()
    me = ReplicaState(
        services.node_id,
        log_end_offset=state.version,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )
    partition = PartitionData(
        leader_id=services.node_id, leader_epoch=_EPOCH, high_watermark=state.version, current_voters=[me]
    )
    nodes = [_node(each) for each in state.brokers.values()]
    return DescribeQuorumResponse(topics=[TopicData(TOPIC, [partition])], nodes=nodes)


def _is_metadata(request: DescribeQuorumRequest) -> bool:
    """Tell whether the one partition is asked for, and nothing else."""
    if len(request.topics) != 1 or request.topics[0].topic_name != TOPIC:
        return False
    partitions = request.topics[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == 0


def _unknown(request: DescribeQuorumRequest) -> Divided[DescribeQuorumResponse]:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = []
    for topic in request.topics:
        told = TopicData(topic.topic_name)
        for each in topic.partitions:
            told.partitions.append(PartitionData(each.partition_index, code, DEFAULT_MESSAGES[code]))
            yield
        topics.append(told)
        yield
    return DescribeQuorumResponse(topics=topics)


def _node(broker: BrokerEndpoint) -> Node:
    listeners = broker.listeners or {"PLAINTEXT": (broker.host, broker.port)}
    return Node(broker.node_id, [Listener(name, host, port) for name, (host, port) in listeners.items()])
