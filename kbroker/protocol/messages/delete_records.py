"""DeleteRecords (key 21): move the log start offset up (KIP-107)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@struct
class DeleteRecordsPartition:
    partition_index: i32 = f()
    offset: i64 = f()


@struct
class DeleteRecordsTopic:
    name: str = f()
    partitions: list[DeleteRecordsPartition] = f()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = f()
    timeout_ms: i32 = f()


@struct
class DeleteRecordsPartitionResult:
    partition_index: i32 = f()
    low_watermark: i64 = f()
    error_code: i16 = f()


@struct
class DeleteRecordsTopicResult:
    name: str = f()
    partitions: list[DeleteRecordsPartitionResult] = f()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: i32 = f()
    topics: list[DeleteRecordsTopicResult] = f()
