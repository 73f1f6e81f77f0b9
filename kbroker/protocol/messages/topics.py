"""Topics: creation, growth and deletion, deletion of records; reassignments (KIP-455) and elections (KIP-460)."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct

# CreateTopics (key 19): create topics. Responses contain configs from v5 (KIP-525), and topic ids from v7.


@struct
class CreatableReplicaAssignment:
    partition_index: i32 = f()
    broker_ids: list[i32] = f()


@struct
class CreatableTopicConfig:
    name: str = f()
    value: str | None = f(nullable="0+")


@struct
class CreatableTopic:
    name: str = f()
    num_partitions: i32 = f()
    replication_factor: i16 = f()
    assignments: list[CreatableReplicaAssignment] = f()
    configs: list[CreatableTopicConfig] = f()


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsRequest:
    topics: list[CreatableTopic] = f()
    timeout_ms: i32 = f(default=60000)
    validate_only: bool = f("1+", default=False)


@struct
class CreatableTopicConfigs:
    name: str = f("5+")
    value: str | None = f("5+", nullable="5+")
    read_only: bool = f("5+")
    config_source: i8 = f("5+", default=-1)
    is_sensitive: bool = f("5+")


@struct
class CreatableTopicResult:
    name: str = f()
    topic_id: Uuid = f("7+")
    error_code: i16 = f()
    error_message: str | None = f("1+", nullable="0+")
    topic_config_error_code: i16 = f("5+", tag=0)
    num_partitions: i32 = f("5+", default=-1)
    replication_factor: i16 = f("5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = f("5+", nullable="5+")


@message(key=19, versions="2-7", flexible="5+")
class CreateTopicsResponse:
    throttle_time_ms: i32 = f("2+")
    topics: list[CreatableTopicResult] = f()


# CreatePartitions (key 37): raise the number of partitions (KIP-195).


@struct
class CreatePartitionsAssignment:
    broker_ids: list[i32] = f()


@struct
class CreatePartitionsTopic:
    name: str = f()
    count: i32 = f()
    assignments: list[CreatePartitionsAssignment] | None = f(nullable="0+")


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest:
    topics: list[CreatePartitionsTopic] = f()
    timeout_ms: i32 = f()
    validate_only: bool = f()


@struct
class CreatePartitionsTopicResult:
    name: str = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)


@message(key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse:
    throttle_time_ms: i32 = f()
    results: list[CreatePartitionsTopicResult] = f()


# DeleteTopics (key 20): delete topics, by name or, from v6, by id.


@struct
class DeleteTopicState:
    name: str | None = f("6+", nullable="6+", default=None)
    topic_id: Uuid = f("6+")


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsRequest:
    topics: list[DeleteTopicState] = f("6+")
    topic_names: list[str] = f("0-5")
    timeout_ms: i32 = f()


@struct
class DeletableTopicResult:
    name: str | None = f(nullable="6+")
    topic_id: Uuid = f("6+")
    error_code: i16 = f()
    error_message: str | None = f("5+", nullable="5+", default=None)


@message(key=20, versions="1-6", flexible="4+")
class DeleteTopicsResponse:
    throttle_time_ms: i32 = f("1+")
    responses: list[DeletableTopicResult] = f()


# DeleteRecords (key 21): move the log start offset up (KIP-107).


@struct
class DeleteRecordsPartition:
    partition_index: i32 = f()
    offset: i64 = f()


@struct
class DeleteRecordsTopic:
    name: str = f()
    partitions: list[DeleteRecordsPartition] = f()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest:
    topics: list[DeleteRecordsTopic] = f()
    timeout_ms: i32 = f()


@struct
class DeleteRecordsPartitionResult:
    partition_index: i32 = f()
    low_watermark: i64 = f()
    error_code: i16 = f()


@struct
class DeleteRecordsTopicResult:
    name: str = f()
    partitions: list[DeleteRecordsPartitionResult] = f()


@message(key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse:
    throttle_time_ms: i32 = f()
    topics: list[DeleteRecordsTopicResult] = f()


# AlterPartitionReassignments (key 45): move partitions to other replicas (KIP-455).


@struct
class ReassignablePartition:
    """One partition. If `replicas` is null, its reassignment is cancelled."""

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


# ElectLeaders (key 43): elect preferred leaders, or any leaders (KIP-183, KIP-460).


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
