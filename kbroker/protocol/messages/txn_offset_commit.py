"""TxnOffsetCommit (key 28): commit offsets as part of a transaction (KIP-98, KIP-447)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@struct
class TxnOffsetCommitRequestPartition:
    partition_index: i32 = f()
    committed_offset: i64 = f()
    committed_leader_epoch: i32 = f("2+", default=-1)
    committed_metadata: str | None = f(nullable="0+")


@struct
class TxnOffsetCommitRequestTopic:
    name: str = f()
    partitions: list[TxnOffsetCommitRequestPartition] = f()


@message(key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitRequest:
    transactional_id: str = f()
    group_id: str = f()
    producer_id: i64 = f()
    producer_epoch: i16 = f()
    generation_id: i32 = f("3+", default=-1)
    member_id: str = f("3+", default="")
    group_instance_id: str | None = f("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = f()


@struct
class TxnOffsetCommitResponsePartition:
    partition_index: i32 = f()
    error_code: i16 = f()


@struct
class TxnOffsetCommitResponseTopic:
    name: str = f()
    partitions: list[TxnOffsetCommitResponsePartition] = f()


@message(key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse:
    throttle_time_ms: i32 = f()
    topics: list[TxnOffsetCommitResponseTopic] = f()
