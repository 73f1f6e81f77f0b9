"""DescribeTopicPartitions (key 75): partitions of topics, page by page (KIP-966)."""

from kbroker.protocol.schema import Uuid, f, i16, i32, message, struct


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
