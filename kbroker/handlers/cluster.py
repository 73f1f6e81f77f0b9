"""The APIs that describe the cluster.

DescribeCluster (key 60), versions 0-2: the cluster's id, controller and brokers (KIP-700).

DescribeQuorum (key 55), versions 0-2: the voters of the metadata quorum, and the progress of each voter (KIP-595).

Behaviour: a single node answers like a Kafka node that is its own controller. The node is the only voter, and the
leader. Its metadata log is the journal (controller/embedded_store.py); an offset is the number of changes since the
start. Requests use Kafka's name of the metadata log. In a cluster ZooKeeper stores the metadata, so the API is neither
served nor advertised.

UpdateFeatures (key 57), versions 0-2: change finalized feature levels (KIP-584, `kafka-features.sh`).

Behaviour: applies all updates or none. The rules and the table of features are in controller/features.py. In a cluster
the controller checks the levels that the other brokers have registered, and responds once its own broker has the
change.

Version notes: v0-1 also return a result for each feature; v0 has no upgrade type and always means an upgrade, as in
Kafka's controller.
"""

from __future__ import annotations

from typing import Final

from kbroker.cluster_state import BrokerEndpoint
from kbroker.controller.features import UPGRADE, FeatureUpdate
from kbroker.handlers.metadata import CLUSTER_OPERATIONS, NOT_ASKED
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.services import Services
from kbroker.long_work import turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    PartitionData,
    ReplicaState,
    TopicData,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_BROKERS, _CONTROLLERS = 1, 2
TOPIC: Final = "__cluster_metadata"
_EPOCH: Final = 1
"""The leader's epoch. It never changes, because no other node can become the leader."""
_LAST_WITH_RESULTS = 1


@handles(DescribeClusterRequest, DescribeClusterResponse, "0-2")
def describe_cluster(ctx: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Return the brokers. A request for the endpoints of controllers is an error (KIP-919)."""
    if request.endpoint_type != _BROKERS:
        known = request.endpoint_type == _CONTROLLERS
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        text = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            if known
            else f"Unsupported endpoint type {request.endpoint_type}"
        )
        return DescribeClusterResponse(
            error_code=code, error_message=text, cluster_authorized_operations=NOT_ASKED, controller_id=-1
        )
    state = ctx.services.controller.state
    return DescribeClusterResponse(
        cluster_id=state.cluster_id,
        controller_id=state.controller_id,
        brokers=[DescribeClusterBroker(b.node_id, b.host, b.port, b.rack) for b in state.reached_by(ctx.listener)],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _is_alone(services: Services) -> bool:
    return services.cluster is None


def _refused(_request: DescribeQuorumRequest, code: int, message: str | None) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=code, error_message=message or DEFAULT_MESSAGES.get(ErrorCode(code)))


@handles(DescribeQuorumRequest, DescribeQuorumResponse, "0-2", _refused, advertised=_is_alone)
async def describe_quorum(ctx: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Describe the metadata log's only partition."""
    services = ctx.services
    if not _is_alone(services):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if not _is_metadata(request):
        return await _unknown(request)
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
    """Whether the request names exactly one partition: the single partition of the metadata log."""
    if len(request.topics) != 1 or request.topics[0].topic_name != TOPIC:
        return False
    partitions = request.topics[0].partitions
    return len(partitions) == 1 and partitions[0].partition_index == 0


async def _unknown(request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topics = []
    for topic in request.topics:
        topic_answer = TopicData(topic.topic_name)
        for each in topic.partitions:
            topic_answer.partitions.append(PartitionData(each.partition_index, code, DEFAULT_MESSAGES[code]))
            await turn
        topics.append(topic_answer)
        await turn
    return DescribeQuorumResponse(topics=topics)


def _node(broker: BrokerEndpoint) -> Node:
    listeners = broker.listeners or {"PLAINTEXT": (broker.host, broker.port)}
    return Node(broker.node_id, [Listener(name, host, port) for name, (host, port) in listeners.items()])


@handles(UpdateFeaturesRequest, UpdateFeaturesResponse, "0-2")
async def update_features(ctx: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    """Change levels. If a request names a feature more than once, its last update counts, as in Kafka's controller."""
    by_name: dict[str, FeatureUpdate] = {}
    for asked in request.feature_updates:
        kind = asked.upgrade_type if ctx.version else UPGRADE
        by_name[asked.feature] = FeatureUpdate(asked.feature, asked.max_version_level, kind)
        await turn
    services = ctx.services
    # This loop needs no yield: the first fault ends the request, and there are only a few features.
    await services.controller.update_features(
        list(by_name.values()), validate_only=request.validate_only, timeout_ms=request.timeout_ms
    )
    results: list[UpdatableFeatureResult] = []
    if ctx.version <= _LAST_WITH_RESULTS:
        results = [UpdatableFeatureResult(name, 0, "NONE") for name in by_name]
    return await ctx.services.in_effect(UpdateFeaturesResponse(error_message=None, results=results))
