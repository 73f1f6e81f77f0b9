"""The records of `__consumer_offsets` and `__transaction_state`: keys and values, by record type.

On disk an int16 precedes each key and value: the record type before a key, the value's version before a value.
"""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, i64, message, struct

# Offsets, and the metadata of classic groups, in `__consumer_offsets`.


@message(key=1, versions="0")
class OffsetCommitKey:
    group: str = f("0")
    topic: str = f("0")
    partition: i32 = f("0")


@message(key=1, versions="0-4", flexible="4+")
class OffsetCommitValue:
    offset: i64 = f()
    leader_epoch: i32 = f("3+", default=-1)
    metadata: str = f()
    commit_timestamp: i64 = f()
    expire_timestamp: i64 = f("1", default=-1)
    topic_id: Uuid = f("4+", tag=0)


@message(key=2, versions="0")
class GroupMetadataKey:
    group: str = f("0")


@struct
class MemberMetadata:
    member_id: str = f()
    group_instance_id: str | None = f("3+", nullable="3+", default=None)
    client_id: str = f()
    client_host: str = f()
    rebalance_timeout: i32 = f("1+", default=-1)
    session_timeout: i32 = f()
    subscription: bytes = f()
    assignment: bytes = f()


@message(key=2, versions="0-4", flexible="4+")
class GroupMetadataValue:
    protocol_type: str = f()
    generation: i32 = f()
    protocol: str | None = f(nullable="0+")
    leader: str | None = f(nullable="0+")
    current_state_timestamp: i64 = f("2+", default=-1)
    members: list[MemberMetadata] = f()


@message(key=0, versions="0")
class LegacyOffsetCommitKey:
    group: str = f("0")
    topic: str = f("0")
    partition: i32 = f("0")


@message(key=0, versions="0")
class LegacyOffsetCommitValue:
    offset: i64 = f("0")
    metadata: str = f("0")
    commit_timestamp: i64 = f("0")


# Consumer groups (KIP-848), in `__consumer_offsets`.


@message(key=3, versions="0")
class ConsumerGroupMetadataKey:
    group_id: str = f("0")


@message(key=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    epoch: i32 = f()
    metadata_hash: i64 = f(tag=0)


@message(key=4, versions="0")
class ConsumerGroupPartitionMetadataKey:
    """The key of consumer group partition metadata.

    Apache Kafka wrote such keys before 4.1. Now they are only deleted.
    """

    group_id: str = f("0")


@struct
class PartitionMetadata:
    partition: i32 = f()
    racks: list[str] = f()


@struct
class TopicMetadata:
    topic_id: Uuid = f()
    topic_name: str = f()
    num_partitions: i32 = f()
    partition_metadata: list[PartitionMetadata] = f()


@message(key=4, versions="0", flexible="0+")
class ConsumerGroupPartitionMetadataValue:
    topics: list[TopicMetadata] = f()


@message(key=5, versions="0")
class ConsumerGroupMemberMetadataKey:
    group_id: str = f("0")
    member_id: str = f("0")


@struct
class ClassicProtocol:
    name: str = f()
    metadata: bytes = f()


@struct
class ClassicMemberMetadata:
    """The metadata of a member that uses the classic protocol within a consumer group."""

    session_timeout_ms: i32 = f()
    supported_protocols: list[ClassicProtocol] = f()


@message(key=5, versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    instance_id: str | None = f(nullable="0+")
    rack_id: str | None = f(nullable="0+")
    client_id: str = f()
    client_host: str = f()
    subscribed_topic_names: list[str] = f()
    subscribed_topic_regex: str | None = f(nullable="0+")
    rebalance_timeout_ms: i32 = f(default=-1)
    server_assignor: str | None = f(nullable="0+")
    classic_member_metadata: ClassicMemberMetadata | None = f(nullable="0+", tag=0, default=None)


@message(key=6, versions="0")
class ConsumerGroupTargetAssignmentMetadataKey:
    group_id: str = f("0")


@message(key=6, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue:
    assignment_epoch: i32 = f()
    assignment_timestamp: i64 = f(tag=0)


@message(key=7, versions="0")
class ConsumerGroupTargetAssignmentMemberKey:
    group_id: str = f("0")
    member_id: str = f("0")


@struct
class TopicPartition:
    topic_id: Uuid = f()
    partitions: list[i32] = f()


@message(key=7, versions="0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue:
    topic_partitions: list[TopicPartition] = f()


@message(key=8, versions="0")
class ConsumerGroupCurrentMemberAssignmentKey:
    group_id: str = f("0")
    member_id: str = f("0")


@struct
class TopicPartitions:
    """The partitions of a topic, and the epochs at which they were assigned, if known."""

    topic_id: Uuid = f()
    partitions: list[i32] = f()
    assignment_epochs: list[i32] | None = f(nullable="0+", tag=0)


@message(key=8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue:
    member_epoch: i32 = f()
    previous_member_epoch: i32 = f()
    state: i8 = f()
    assigned_partitions: list[TopicPartitions] = f()
    partitions_pending_revocation: list[TopicPartitions] = f()


@message(key=16, versions="0")
class ConsumerGroupRegularExpressionKey:
    group_id: str = f("0")
    regular_expression: str = f("0")


@message(key=16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue:
    topics: list[str] = f()
    version: i64 = f()
    timestamp: i64 = f()


# A transactional id and the state of its transaction, in `__transaction_state`.


@message(key=0, versions="0")
class TransactionLogKey:
    transactional_id: str = f("0")


@struct
class PartitionsSchema:
    topic: str = f()
    partition_ids: list[i32] = f()


@message(key=0, versions="0-1", flexible="1+")
class TransactionLogValue:
    producer_id: i64 = f()
    previous_producer_id: i64 = f("1+", tag=0, default=-1)
    next_producer_id: i64 = f("1+", tag=1, default=-1)
    producer_epoch: i16 = f()
    next_producer_epoch: i16 = f("1+", tag=3, default=-1)
    transaction_timeout_ms: i32 = f()
    transaction_status: i8 = f()
    transaction_partitions: list[PartitionsSchema] | None = f(nullable="0+")
    transaction_last_update_timestamp_ms: i64 = f()
    transaction_start_timestamp_ms: i64 = f()
    client_transaction_version: i16 = f("1+", tag=2, default=0)
