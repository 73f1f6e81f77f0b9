"""Reassignments of replicas (KIP-455), and elections of leaders (KIP-460)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct

# AlterPartitionReassignments (key 45): move partitions to other replicas (KIP-455).


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


# ListPartitionReassignments (key 46): the partitions that are being moved, and their targets (KIP-455).


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


# ElectLeaders (key 43): elect preferred leaders, or any (KIP-183, KIP-460).


@struct
class TopicPartitions:
    topic: str = f()
    partitions: list[i32] = f()


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest:
    election_type: i8 = f("1+")
    topic_partitions: list[TopicPartitions] | None = f(nullable="0+")
    timeout_ms: i32 = f(default=60000)


@struct
class PartitionResult:
    partition_id: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+")


@struct
class ReplicaElectionResult:
    topic: str = f()
    partition_result: list[PartitionResult] = f()


@message(key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f("1+")
    replica_election_results: list[ReplicaElectionResult] = f()
