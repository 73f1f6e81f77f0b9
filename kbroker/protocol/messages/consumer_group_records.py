"""The records of `__consumer_offsets` for consumer groups (KIP-848): keys and values, by record type.

On disk a key or value is preceded by an int16: the record type for keys, the value's version for values.
"""

from kbroker.protocol.schema import Uuid, f, i8, i32, i64, message, struct


@message(key=3, versions="0")
class ConsumerGroupMetadataKey:
    group_id: str = f("0")


@message(key=3, versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    epoch: i32 = f()
    metadata_hash: i64 = f(tag=0)


@message(key=4, versions="0")
class ConsumerGroupPartitionMetadataKey:
    """Consumer group partition metadata key; written before Apache Kafka 4.1, since then only deleted."""

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
    """Classic member metadata: of a member that uses the classic protocol within a consumer group."""

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
    """Topic partitions, and the epochs at which they were assigned, if known."""

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
