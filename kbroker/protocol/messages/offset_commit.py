"""OffsetCommit (key 8): store positions of a group. Topic ids replace names in v10."""

from kbroker.protocol.schema import Uuid, f, i16, i32, i64, message, struct


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
