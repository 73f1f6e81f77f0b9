"""Logs: offsets by time and by leader epoch, log directories, and the replicas in log directories (KIP-113)."""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct

# ListOffsets (key 2): offsets by timestamp, or for one of the special timestamps -1 to -6.


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


# DescribeLogDirs (key 35): sizes of partitions and of their disks (KIP-113, KIP-827).


@struct
class DescribableLogDirTopic:
    topic: str = f()
    partitions: list[i32] = f()


@message(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsRequest:
    topics: list[DescribableLogDirTopic] | None = f(nullable="0+")


@struct
class DescribeLogDirsPartition:
    partition_index: i32 = f()
    partition_size: i64 = f()
    offset_lag: i64 = f()
    is_future_key: bool = f()


@struct
class DescribeLogDirsTopic:
    name: str = f()
    partitions: list[DescribeLogDirsPartition] = f()


@struct
class DescribeLogDirsResult:
    error_code: i16 = f()
    log_dir: str = f()
    topics: list[DescribeLogDirsTopic] = f()
    total_bytes: i64 = f("4+", default=-1)
    usable_bytes: i64 = f("4+", default=-1)
    is_cordoned: bool = f("5+", default=False)


@message(key=35, versions="1-5", flexible="2+")
class DescribeLogDirsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f("3+")
    results: list[DescribeLogDirsResult] = f()


# AlterReplicaLogDirs (key 34): move partitions to log directories (KIP-113).


@struct
class AlterReplicaLogDirTopic:
    """Partitions of one topic."""

    name: str = f()
    partitions: list[i32] = f()


@struct
class AlterReplicaLogDir:
    """One directory, by absolute path, and the partitions to move to it."""

    path: str = f()
    topics: list[AlterReplicaLogDirTopic] = f()


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest:
    dirs: list[AlterReplicaLogDir] = f()


@struct
class AlterReplicaLogDirPartitionResult:
    """Whether a move has begun."""

    partition_index: i32 = f()
    error_code: i16 = f()


@struct
class AlterReplicaLogDirTopicResult:
    topic_name: str = f()
    partitions: list[AlterReplicaLogDirPartitionResult] = f()


@message(key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse:
    throttle_time_ms: i32 = f()
    results: list[AlterReplicaLogDirTopicResult] = f()
