"""Brokers and topics of a cluster."""

from kbroker.protocol.schema import Uuid, f, i16, i32, message, struct

# Metadata (key 3).
#
# Brokers, topics, partitions and their leaders. Null topics (v1+) means all, topic ids from v10 (KIP-516).


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
