"""Log directories, and the replicas in them (KIP-113)."""

from kbroker.protocol.schema import f, i16, i32, i64, message, struct

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
