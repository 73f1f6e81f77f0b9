"""The brokers and topics of a cluster, its quorum and its features."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct, u16

# Metadata (key 3).
#
# Brokers, topics, partitions and their leaders. Null topics (v1+) mean all topics. Topic ids are used from v10
# (KIP-516).


@struct
class MetadataRequestTopic:
    topic_id: Uuid = f("10+")
    name: str | None = f(nullable="10+")


@message(key=3, versions="0-13", flexible="9+")
class MetadataRequest:
    topics: list[MetadataRequestTopic] | None = f(nullable="1+")
    allow_auto_topic_creation: bool = f("4+", default=True)
    include_cluster_authorized_operations: bool = f("8-10")
    include_topic_authorized_operations: bool = f("8+")


@struct
class MetadataResponseBroker:
    node_id: i32 = f()
    host: str = f()
    port: i32 = f()
    rack: str | None = f("1+", nullable="1+", default=None)


@struct
class MetadataResponsePartition:
    error_code: i16 = f()
    partition_index: i32 = f()
    leader_id: i32 = f()
    leader_epoch: i32 = f("7+", default=-1)
    replica_nodes: list[i32] = f()
    isr_nodes: list[i32] = f()
    offline_replicas: list[i32] = f("5+")


@struct
class MetadataResponseTopic:
    error_code: i16 = f()
    name: str | None = f(nullable="12+")
    topic_id: Uuid = f("10+")
    is_internal: bool = f("1+", default=False)
    partitions: list[MetadataResponsePartition] = f()
    topic_authorized_operations: i32 = f("8+", default=-2147483648)


@message(key=3, versions="0-13", flexible="9+")
class MetadataResponse:
    throttle_time_ms: i32 = f("3+")
    brokers: list[MetadataResponseBroker] = f()
    cluster_id: str | None = f("2+", nullable="2+", default=None)
    controller_id: i32 = f("1+", default=-1)
    topics: list[MetadataResponseTopic] = f()
    cluster_authorized_operations: i32 = f("8-10", default=-2147483648)
    error_code: i16 = f("13+")


# DescribeTopicPartitions (key 75): partitions of topics, page by page (KIP-966).


@struct
class TopicRequest:
    name: str = f()


@struct
class Cursor:
    topic_name: str = f()
    partition_index: i32 = f()


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest:
    topics: list[TopicRequest] = f()
    response_partition_limit: i32 = f(default=2000)
    cursor: Cursor | None = f(nullable="0+", default=None)


@struct
class DescribeTopicPartitionsResponsePartition:
    error_code: i16 = f()
    partition_index: i32 = f()
    leader_id: i32 = f()
    leader_epoch: i32 = f(default=-1)
    replica_nodes: list[i32] = f()
    isr_nodes: list[i32] = f()
    eligible_leader_replicas: list[i32] | None = f(nullable="0+", default=None)
    last_known_elr: list[i32] | None = f(nullable="0+", default=None)
    offline_replicas: list[i32] = f()


@struct
class DescribeTopicPartitionsResponseTopic:
    error_code: i16 = f()
    name: str | None = f(nullable="0+")
    topic_id: Uuid = f()
    is_internal: bool = f(default=False)
    partitions: list[DescribeTopicPartitionsResponsePartition] = f()
    topic_authorized_operations: i32 = f(default=-2147483648)


@message(key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse:
    throttle_time_ms: i32 = f()
    topics: list[DescribeTopicPartitionsResponseTopic] = f()
    next_cursor: Cursor | None = f(nullable="0+", default=None)


# DescribeCluster (key 60): cluster id, controller and brokers (KIP-700).


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = f()
    endpoint_type: i8 = f("1+", default=1)
    include_fenced_brokers: bool = f("2+")


@struct
class DescribeClusterBroker:
    broker_id: i32 = f()
    host: str = f()
    port: i32 = f()
    rack: str | None = f(nullable="0+", default=None)
    is_fenced: bool = f("2+")


@message(key=60, versions="0-2", flexible="0+")
class DescribeClusterResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    endpoint_type: i8 = f("1+", default=1)
    cluster_id: str = f()
    controller_id: i32 = f(default=-1)
    brokers: list[DescribeClusterBroker] = f()
    cluster_authorized_operations: i32 = f(default=-2147483648)


# DescribeQuorum (key 55): the voters of the metadata quorum, and their progress (KIP-595, KIP-836, KIP-853).


@struct
class PartitionRequest:
    partition_index: i32 = f()


@struct
class QuorumTopicRequest:
    topic_name: str = f()
    partitions: list[PartitionRequest] = f()


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    topics: list[QuorumTopicRequest] = f()


@struct
class ReplicaState:
    replica_id: i32 = f()
    replica_directory_id: Uuid = f("2+")
    log_end_offset: i64 = f()
    last_fetch_timestamp: i64 = f("1+", default=-1)
    last_caught_up_timestamp: i64 = f("1+", default=-1)


@struct
class PartitionData:
    partition_index: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f("2+", nullable="2+")
    leader_id: i32 = f()
    leader_epoch: i32 = f()
    high_watermark: i64 = f()
    current_voters: list[ReplicaState] = f()
    observers: list[ReplicaState] = f()


@struct
class TopicData:
    topic_name: str = f()
    partitions: list[PartitionData] = f()


@struct
class Listener:
    name: str = f("2+")
    host: str = f("2+")
    port: u16 = f("2+")


@struct
class Node:
    node_id: i32 = f("2+")
    listeners: list[Listener] = f("2+")


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: i16 = f()
    error_message: str | None = f("2+", nullable="2+")
    topics: list[TopicData] = f()
    nodes: list[Node] = f("2+")


# UpdateFeatures (key 57): change finalized feature levels (KIP-584, KIP-778).


@struct
class FeatureUpdateKey:
    feature: str = f()
    max_version_level: i16 = f()
    allow_downgrade: bool = f("0")
    upgrade_type: i8 = f("1+", default=1)


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesRequest:
    timeout_ms: i32 = f(default=60000)
    feature_updates: list[FeatureUpdateKey] = f()
    validate_only: bool = f("1+", default=False)


@struct
class UpdatableFeatureResult:
    feature: str = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@message(key=57, versions="0-2", flexible="0+")
class UpdateFeaturesResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    results: list[UpdatableFeatureResult] = f("0-1")
