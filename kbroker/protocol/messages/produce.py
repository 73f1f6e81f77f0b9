"""Produce (key 0).

Appends record batches to partitions. Topic ids replace names in v13. Responses have leader hints from v10 (KIP-951).
"""

from kbroker.protocol.schema import Records, Uuid, f, i16, i32, i64, message, struct


@struct
class PartitionProduceData:
    index: i32 = f()
    records: Records = f(nullable="0+")


@struct
class TopicProduceData:
    name: str = f("0-12")
    topic_id: Uuid = f("13+")
    partition_data: list[PartitionProduceData] = f()


@message(key=0, versions="3-13", flexible="9+")
class ProduceRequest:
    transactional_id: str | None = f("3+", nullable="3+", default=None)
    acks: i16 = f()
    timeout_ms: i32 = f()
    topic_data: list[TopicProduceData] = f()


@struct
class BatchIndexAndErrorMessage:
    batch_index: i32 = f("8+")
    batch_index_error_message: str | None = f("8+", nullable="8+", default=None)


@struct
class LeaderIdAndEpoch:
    leader_id: i32 = f("10+", default=-1)
    leader_epoch: i32 = f("10+", default=-1)


@struct
class PartitionProduceResponse:
    index: i32 = f()
    error_code: i16 = f()
    base_offset: i64 = f()
    log_append_time_ms: i64 = f("2+", default=-1)
    log_start_offset: i64 = f("5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = f("8+")
    error_message: str | None = f("8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch | None = f("10+", tag=0)


@struct
class TopicProduceResponse:
    name: str = f("0-12")
    topic_id: Uuid = f("13+")
    partition_responses: list[PartitionProduceResponse] = f()


@struct
class NodeEndpoint:
    node_id: i32 = f("10+")
    host: str = f("10+")
    port: i32 = f("10+")
    rack: str | None = f("10+", nullable="10+", default=None)


@message(key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    responses: list[TopicProduceResponse] = f()
    throttle_time_ms: i32 = f("1+")
    node_endpoints: list[NodeEndpoint] = f("10+", tag=0)
