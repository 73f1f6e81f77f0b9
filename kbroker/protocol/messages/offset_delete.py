"""OffsetDelete (key 47): delete positions of a group (KIP-496); never flexible."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@struct
class OffsetDeleteRequestPartition:
    partition_index: i32 = f()


@struct
class OffsetDeleteRequestTopic:
    name: str = f()
    partitions: list[OffsetDeleteRequestPartition] = f()


@message(key=47, versions="0")
class OffsetDeleteRequest:
    group_id: str = f()
    topics: list[OffsetDeleteRequestTopic] = f()


@struct
class OffsetDeleteResponsePartition:
    partition_index: i32 = f()
    error_code: i16 = f()


@struct
class OffsetDeleteResponseTopic:
    name: str = f()
    partitions: list[OffsetDeleteResponsePartition] = f()


@message(key=47, versions="0")
class OffsetDeleteResponse:
    error_code: i16 = f()
    throttle_time_ms: i32 = f()
    topics: list[OffsetDeleteResponseTopic] = f()
