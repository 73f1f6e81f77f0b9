"""Offsets that groups commit."""

from kbroker.protocol.schema import Uuid, f, i16, i32, i64, message, struct

# OffsetCommit (key 8): store positions of a group. Topic ids replace names in v10.


@struct
class OffsetCommitRequestPartition:
    partition_index: i32 = f()
    committed_offset: i64 = f()
    committed_leader_epoch: i32 = f("6+", default=-1)
    committed_metadata: str | None = f(nullable="0+")


@struct
class OffsetCommitRequestTopic:
    name: str = f("0-9")
    topic_id: Uuid = f("10+")
    partitions: list[OffsetCommitRequestPartition] = f()


@message(key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest:
    group_id: str = f()
    generation_id_or_member_epoch: i32 = f("1+", default=-1)
    member_id: str = f("1+")
    group_instance_id: str | None = f("7+", nullable="7+", default=None)
    retention_time_ms: i64 = f("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = f()


@struct
class OffsetCommitResponsePartition:
    partition_index: i32 = f()
    error_code: i16 = f()


@struct
class OffsetCommitResponseTopic:
    name: str = f("0-9")
    topic_id: Uuid = f("10+")
    partitions: list[OffsetCommitResponsePartition] = f()


@message(key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse:
    throttle_time_ms: i32 = f("3+")
    topics: list[OffsetCommitResponseTopic] = f()


# OffsetFetch (key 9): read positions of groups. v8 adds several groups in a request (KIP-709), v10 topic ids.


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


# OffsetDelete (key 47): delete positions of a group (KIP-496). This message is never flexible.


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


# TxnOffsetCommit (key 28): commit offsets as part of a transaction (KIP-98, KIP-447); topic ids in v6 (KIP-1319).


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: i32 = f()
    committed_offset: i64 = f()
    committed_leader_epoch: i32 = f("2+", default=-1)
    committed_metadata: str | None = f(nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    name: str = f("0-5")
    topic_id: Uuid = f("6+")
    partitions: list[TxnOffsetCommitRequestPartition] = f()


@message(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitRequest:
    transactional_id: str = f()
    group_id: str = f()
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    generation_id_or_member_epoch: i32 = f("3+", default=-1)
    member_id: str = f("3+", default="")
    group_instance_id: str | None = f("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = f()


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: i32 = f()
    error_code: i16 = f()


@struct
class TxnOffsetCommitResponseTopic:
    name: str = f("0-5")
    topic_id: Uuid = f("6+")
    partitions: list[TxnOffsetCommitResponsePartition] = f()


@message(key=28, versions="0-6", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: i32 = f()
    topics: list[TxnOffsetCommitResponseTopic] = f()
