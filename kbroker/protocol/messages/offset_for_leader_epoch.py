"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch (KIP-101, KIP-320)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct


@struct
class OffsetForLeaderPartition:
    partition: i32 = f()
    current_leader_epoch: i32 = f("2+", default=-1)
    leader_epoch: i32 = f()


@struct
class OffsetForLeaderTopic:
    topic: str = f()
    partitions: list[OffsetForLeaderPartition] = f()


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest:
    replica_id: i32 = f("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = f()


@struct
class EpochEndOffset:
    error_code: i16 = f()
    partition: i32 = f()
    leader_epoch: i32 = f("1+", default=-1)
    end_offset: i64 = f(default=-1)


@struct
class OffsetForLeaderTopicResult:
    topic: str = f()
    partitions: list[EpochEndOffset] = f()


@message(key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse:
    throttle_time_ms: i32 = f("2+")
    topics: list[OffsetForLeaderTopicResult] = f()
