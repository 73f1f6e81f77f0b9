"""Offsets of a log by time and by leader epoch."""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct

# ListOffsets (key 2): offsets by timestamp, or the special timestamps -1 to -6.


@struct
class ListOffsetsPartition:
    partition_index: i32 = f()
    current_leader_epoch: i32 = f("4+", default=-1)
    timestamp: i64 = f()


@struct
class ListOffsetsTopic:
    name: str = f()
    partitions: list[ListOffsetsPartition] = f()


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest:
    replica_id: i32 = f()
    isolation_level: i8 = f("2+")
    topics: list[ListOffsetsTopic] = f()
    timeout_ms: i32 = f("10+")


@struct
class ListOffsetsPartitionResponse:
    partition_index: i32 = f()
    error_code: i16 = f()
    timestamp: i64 = f("1+", default=-1)
    offset: i64 = f("1+", default=-1)
    leader_epoch: i32 = f("4+", default=-1)


@struct
class ListOffsetsTopicResponse:
    name: str = f()
    partitions: list[ListOffsetsPartitionResponse] = f()


@message(key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse:
    throttle_time_ms: i32 = f("2+")
    topics: list[ListOffsetsTopicResponse] = f()


# OffsetForLeaderEpoch (key 23): the end offset of a leader epoch (KIP-101, KIP-320).


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
