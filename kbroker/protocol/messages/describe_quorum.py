"""DescribeQuorum (key 55): who votes on the cluster's metadata, and how far each has it (KIP-595, KIP-836, KIP-853)."""

from kbroker.protocol.schema import Uuid, f, i16, i32, i64, message, struct, u16


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
