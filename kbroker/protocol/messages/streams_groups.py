"""Streams groups (KIP-1071): the requests of Kafka Streams applications, and descriptions of their groups."""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct, u16


@struct
class KeyValue:
    key: str = f()
    value: str = f()


@struct
class Endpoint:
    host: str = f()
    port: u16 = f()


@struct
class TaskIds:
    subtopology_id: str = f()
    partitions: list[i32] = f()


@struct
class TaskOffset:
    subtopology_id: str = f()
    partition: i32 = f()
    offset: i64 = f()


@struct
class TopicInfo:
    name: str = f()
    partitions: i32 = f()
    replication_factor: i16 = f()
    topic_configs: list[KeyValue] = f()


# StreamsGroupHeartbeat (key 88): join, stay in, and leave a streams group.
#
# Null or -1 means "as before". A member epoch of 0 joins, -1 leaves, -2 leaves temporarily (static members).


@struct
class CopartitionGroup:
    source_topics: list[i16] = f()
    source_topic_regex: list[i16] = f()
    repartition_source_topics: list[i16] = f()


@struct
class Subtopology:
    subtopology_id: str = f()
    source_topics: list[str] = f()
    source_topic_regex: list[str] = f()
    state_changelog_topics: list[TopicInfo] = f()
    repartition_sink_topics: list[str] = f()
    repartition_source_topics: list[TopicInfo] = f()
    copartition_groups: list[CopartitionGroup] = f()


@struct
class Topology:
    epoch: i32 = f()
    subtopologies: list[Subtopology] = f()


@message(key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatRequest:
    group_id: str = f()
    member_id: str = f()
    member_epoch: i32 = f()
    endpoint_information_epoch: i32 = f()
    instance_id: str | None = f(nullable="0+", default=None)
    rack_id: str | None = f(nullable="0+", default=None)
    rebalance_timeout_ms: i32 = f(default=-1)
    topology: Topology | None = f(nullable="0+", default=None)
    active_tasks: list[TaskIds] | None = f(nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = f(nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = f(nullable="0+", default=None)
    process_id: str | None = f(nullable="0+", default=None)
    user_endpoint: Endpoint | None = f(nullable="0+", default=None)
    client_tags: list[KeyValue] | None = f(nullable="0+", default=None)
    task_offsets: list[TaskOffset] | None = f(nullable="0+", default=None)
    task_end_offsets: list[TaskOffset] | None = f(nullable="0+", default=None)
    shutdown_application: bool = f()


@struct
class Status:
    status_code: i8 = f()
    status_detail: str = f()


@struct
class EndpointPartitions:
    topic: str = f()
    partitions: list[i32] = f()


@struct
class EndpointToPartitions:
    user_endpoint: Endpoint = f()
    active_partitions: list[EndpointPartitions] = f()
    standby_partitions: list[EndpointPartitions] = f()


@message(key=88, versions="0-1", flexible="0+")
class StreamsGroupHeartbeatResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    member_id: str = f()
    member_epoch: i32 = f()
    heartbeat_interval_ms: i32 = f()
    acceptable_recovery_lag_legacy: i32 = f("0")
    task_offset_interval_ms: i32 = f()
    acceptable_recovery_lag: i64 = f("1+", default=-1)
    status: list[Status] | None = f(nullable="0+")
    active_tasks: list[TaskIds] | None = f(nullable="0+", default=None)
    standby_tasks: list[TaskIds] | None = f(nullable="0+", default=None)
    warmup_tasks: list[TaskIds] | None = f(nullable="0+", default=None)
    topology_description_required: bool = f("1+")
    endpoint_information_epoch: i32 = f()
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = f(nullable="0+", default=None)


# StreamsGroupDescribe (key 89): state, topology, members and tasks of streams groups.


@message(key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeRequest:
    group_ids: list[str] = f()
    include_authorized_operations: bool = f()
    include_topology_description: bool = f("1+")


@struct
class DescribedSubtopology:
    subtopology_id: str = f()
    source_topics: list[str] = f()
    repartition_sink_topics: list[str] = f()
    state_changelog_topics: list[TopicInfo] = f()
    repartition_source_topics: list[TopicInfo] = f()


@struct
class DescribedTopology:
    epoch: i32 = f()
    subtopologies: list[DescribedSubtopology] | None = f(nullable="0+", default=None)


@struct
class DescribedTasks:
    active_tasks: list[TaskIds] = f()
    standby_tasks: list[TaskIds] = f()
    warmup_tasks: list[TaskIds] = f()


@struct
class DescribedMember:
    member_id: str = f()
    member_epoch: i32 = f()
    instance_id: str | None = f(nullable="0+", default=None)
    rack_id: str | None = f(nullable="0+", default=None)
    client_id: str = f()
    client_host: str = f()
    topology_epoch: i32 = f()
    process_id: str = f()
    user_endpoint: Endpoint | None = f(nullable="0+", default=None)
    client_tags: list[KeyValue] = f()
    task_offsets: list[TaskOffset] = f()
    task_end_offsets: list[TaskOffset] = f()
    assignment: DescribedTasks = f()
    target_assignment: DescribedTasks = f()
    is_classic: bool = f()


@struct
class TopologyDescriptionNode:
    name: str = f("1+")
    node_type: i8 = f("1+")
    source_topics: list[str] = f("1+")
    sink_topic: str | None = f("1+", nullable="1+", default=None)
    stores: list[str] = f("1+")
    successors: list[str] = f("1+")


@struct
class TopologyDescriptionSubtopology:
    subtopology_id: str = f("1+")
    nodes: list[TopologyDescriptionNode] = f("1+")


@struct
class TopologyDescriptionGlobalStore:
    source: TopologyDescriptionNode = f("1+")
    processor: TopologyDescriptionNode = f("1+")


@struct
class TopologyDescription:
    subtopologies: list[TopologyDescriptionSubtopology] = f("1+")
    global_stores: list[TopologyDescriptionGlobalStore] = f("1+")


@struct
class DescribedStreamsGroup:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    group_id: str = f()
    group_state: str = f()
    group_epoch: i32 = f()
    assignment_epoch: i32 = f()
    topology: DescribedTopology | None = f(nullable="0+", default=None)
    members: list[DescribedMember] = f()
    authorized_operations: i32 = f(default=-2147483648)
    topology_description: TopologyDescription | None = f("1+", nullable="1+", default=None)
    topology_description_status: i8 = f("1+")
    assignor_name: str | None = f("1+", nullable="1+", default=None)


@message(key=89, versions="0-1", flexible="0+")
class StreamsGroupDescribeResponse:
    throttle_time_ms: i32 = f()
    groups: list[DescribedStreamsGroup] = f()


# StreamsGroupTopologyDescriptionUpdate (key 93): an application describes its topology to a plugin of the broker.


@struct
class DescribedNode:
    name: str = f()
    node_type: i8 = f()
    source_topics: list[str] = f()
    sink_topic: str | None = f(nullable="0+", default=None)
    stores: list[str] = f()
    successors: list[str] = f()


@struct
class DescribedNodes:
    subtopology_id: str = f()
    nodes: list[DescribedNode] = f()


@struct
class DescribedGlobalStore:
    source: DescribedNode = f()
    processor: DescribedNode = f()


@struct
class ToldTopology:
    subtopologies: list[DescribedNodes] = f()
    global_stores: list[DescribedGlobalStore] = f()


@message(key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateRequest:
    group_id: str = f()
    member_id: str = f()
    topology_epoch: i32 = f()
    topology_description: ToldTopology = f()


@message(key=93, versions="0", flexible="0+")
class StreamsGroupTopologyDescriptionUpdateResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
