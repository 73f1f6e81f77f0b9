"""A cluster's brokers, quorum and features."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct, u16

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


# DescribeQuorum (key 55): the voters on the cluster's metadata, and their progress (KIP-595, KIP-836, KIP-853).


@struct
class PartitionRequest:
    partition_index: i32 = f()


@struct
class TopicRequest:
    topic_name: str = f()
    partitions: list[PartitionRequest] = f()


@message(key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    topics: list[TopicRequest] = f()


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
