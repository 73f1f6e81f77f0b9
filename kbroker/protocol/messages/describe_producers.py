"""DescribeProducers (key 61): producers with state in a partition (KIP-664)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@struct
class TopicRequest:
    name: str = f()
    partition_indexes: list[i32] = f()


@message(key=61, versions="0", flexible="0+")
class DescribeProducersRequest:
    topics: list[TopicRequest] = f()


@struct
class ProducerState:
    producer_id: i64 = f()
    producer_epoch: i32 = f()
    last_sequence: i32 = f(default=-1)
    last_timestamp: i64 = f(default=-1)
    coordinator_epoch: i32 = f()
    current_txn_start_offset: i64 = f(default=-1)


@struct
class PartitionResponse:
    partition_index: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    active_producers: list[ProducerState] = f()


@struct
class TopicResponse:
    name: str = f()
    partitions: list[PartitionResponse] = f()


@message(key=61, versions="0", flexible="0+")
class DescribeProducersResponse:
    throttle_time_ms: i32 = f()
    topics: list[TopicResponse] = f()
