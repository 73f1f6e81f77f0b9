"""ListPartitionReassignments (key 46): which partitions are being moved, and where to (KIP-455)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@struct
class ListPartitionReassignmentsTopics:
    name: str = f()
    partition_indexes: list[i32] = f()


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest:
    timeout_ms: i32 = f(default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = f(nullable="0+", default=None)


@struct
class OngoingPartitionReassignment:
    partition_index: i32 = f()
    replicas: list[i32] = f()
    adding_replicas: list[i32] = f()
    removing_replicas: list[i32] = f()


@struct
class OngoingTopicReassignment:
    name: str = f()
    partitions: list[OngoingPartitionReassignment] = f()


@message(key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")
    topics: list[OngoingTopicReassignment] = f()
