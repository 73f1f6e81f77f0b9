"""DeleteRecords (key 21): move the log start offset up (KIP-107)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@struct
class DeleteRecordsPartition:
    """Delete records partition."""

    partition_index: i32 = f()
    offset: i64 = f()


@struct
class DeleteRecordsTopic:
    """Delete records topic."""

    name: str = f()
    partitions: list[DeleteRecordsPartition] = f()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    """Delete records request."""

    topics: list[DeleteRecordsTopic] = f()
    timeout_ms: i32 = f()


@struct
class DeleteRecordsPartitionResult:
    """Delete records partition result."""

    partition_index: i32 = f()
    low_watermark: i64 = f()
    error_code: i16 = f()


@struct
class DeleteRecordsTopicResult:
    """Delete records topic result."""

    name: str = f()
    partitions: list[DeleteRecordsPartitionResult] = f()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    """Delete records response."""

    throttle_time_ms: i32 = f()
    topics: list[DeleteRecordsTopicResult] = f()
