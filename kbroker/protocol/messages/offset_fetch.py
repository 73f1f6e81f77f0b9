"""OffsetFetch (key 9): read positions of groups; several groups from v8 (KIP-709), topic ids in v10."""

from kbroker.protocol.schema import Uuid, f, i16, i32, i64, message, struct


@struct
class OffsetFetchRequestTopic:
    name: str = f("0-7")
    partition_indexes: list[i32] = f("0-7")


@struct
class OffsetFetchRequestTopics:
    name: str = f("8-9")
    topic_id: Uuid = f("10+")
    partition_indexes: list[i32] = f("8+")


@struct
class OffsetFetchRequestGroup:
    group_id: str = f("8+")
    member_id: str | None = f("9+", nullable="9+", default=None)
    member_epoch: i32 = f("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = f("8+", nullable="8+")


@message(key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest:
    group_id: str = f("0-7")
    topics: list[OffsetFetchRequestTopic] | None = f("0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = f("8+")
    require_stable: bool = f("7+", default=False)


@struct
class OffsetFetchResponsePartition:
    partition_index: i32 = f("0-7")
    committed_offset: i64 = f("0-7")
    committed_leader_epoch: i32 = f("5-7", default=-1)
    metadata: str | None = f("0-7", nullable="0-7")
    error_code: i16 = f("0-7")


@struct
class OffsetFetchResponseTopic:
    name: str = f("0-7")
    partitions: list[OffsetFetchResponsePartition] = f("0-7")


@struct
class OffsetFetchResponsePartitions:
    partition_index: i32 = f("8+")
    committed_offset: i64 = f("8+")
    committed_leader_epoch: i32 = f("8+", default=-1)
    metadata: str | None = f("8+", nullable="8+")
    error_code: i16 = f("8+")


@struct
class OffsetFetchResponseTopics:
    name: str = f("8-9")
    topic_id: Uuid = f("10+")
    partitions: list[OffsetFetchResponsePartitions] = f("8+")


@struct
class OffsetFetchResponseGroup:
    group_id: str = f("8+")
    topics: list[OffsetFetchResponseTopics] = f("8+")
    error_code: i16 = f("8+")


@message(key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse:
    throttle_time_ms: i32 = f("3+")
    topics: list[OffsetFetchResponseTopic] = f("0-7")
    error_code: i16 = f("2-7")
    groups: list[OffsetFetchResponseGroup] = f("8+")
