"""AlterPartitionReassignments (key 45): partitions are moved to other replicas (KIP-455)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@struct
class ReassignablePartition:
    """One partition; without replicas its reassignment is cancelled."""

    partition_index: i32 = f()
    replicas: list[i32] | None = f(nullable="0+", default=None)


@struct
class ReassignableTopic:
    name: str = f()
    partitions: list[ReassignablePartition] = f()


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest:
    timeout_ms: i32 = f(default=60000)
    allow_replication_factor_change: bool = f("1+", default=True)
    topics: list[ReassignableTopic] = f()


@struct
class ReassignablePartitionResponse:
    partition_index: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@struct
class ReassignableTopicResponse:
    name: str = f()
    partitions: list[ReassignablePartitionResponse] = f()


@message(key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: i32 = f()
    allow_replication_factor_change: bool = f("1+", default=True)
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    responses: list[ReassignableTopicResponse] = f()
