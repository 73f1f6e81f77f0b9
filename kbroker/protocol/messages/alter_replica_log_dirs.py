"""AlterReplicaLogDirs (key 34): which log directory each partition is to be in (KIP-113)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@struct
class AlterReplicaLogDirTopic:
    """Partitions of one topic."""

    name: str = f()
    partitions: list[i32] = f()


@struct
class AlterReplicaLogDir:
    """One directory, by absolute path, and what is to be in it."""

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
