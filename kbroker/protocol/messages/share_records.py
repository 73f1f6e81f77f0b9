"""The records of share groups: in `__share_group_state` (the state of share partitions) and `__consumer_offsets`.

On disk an int16 precedes each key and value: the record type before a key, the value's version before a value
(KIP-932).
"""

from kbroker.protocol.messages.coordinator_records import TopicPartition
from kbroker.protocol.messages.share_state import StateBatch
from kbroker.protocol.schema import Uuid, f, i8, i32, i64, message, struct

# The state of share partitions, in `__share_group_state`: a snapshot, then the changes since the snapshot.


@message(key=0, versions="0")
class ShareSnapshotKey:
    group_id: str = f("0")
    topic_id: Uuid = f("0")
    partition: i32 = f("0")


@message(key=0, versions="0", flexible="0+")
class ShareSnapshotValue:
    snapshot_epoch: i32 = f()
    state_epoch: i32 = f()
    leader_epoch: i32 = f()
    start_offset: i64 = f()
    delivery_complete_count: i32 = f(tag=0, default=-1)
    create_timestamp: i64 = f()
    write_timestamp: i64 = f()
    state_batches: list[StateBatch] = f()


@message(key=1, versions="0")
class ShareUpdateKey:
    group_id: str = f("0")
    topic_id: Uuid = f("0")
    partition: i32 = f("0")


@message(key=1, versions="0", flexible="0+")
class ShareUpdateValue:
    snapshot_epoch: i32 = f()
    leader_epoch: i32 = f()
    start_offset: i64 = f()
    delivery_complete_count: i32 = f(tag=0, default=-1)
    state_batches: list[StateBatch] = f()


# Share groups, in `__consumer_offsets`.


@message(key=10, versions="0")
class ShareGroupMemberMetadataKey:
    group_id: str = f("0")
    member_id: str = f("0")


@message(key=10, versions="0", flexible="0+")
class ShareGroupMemberMetadataValue:
    rack_id: str | None = f(nullable="0+")
    client_id: str = f()
    client_host: str = f()
    subscribed_topic_names: list[str] = f()


@message(key=11, versions="0")
class ShareGroupMetadataKey:
    group_id: str = f("0")


@message(key=11, versions="0", flexible="0+")
class ShareGroupMetadataValue:
    epoch: i32 = f()
    metadata_hash: i64 = f()


@message(key=12, versions="0")
class ShareGroupTargetAssignmentMetadataKey:
    group_id: str = f("0")


@message(key=12, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue:
    assignment_epoch: i32 = f()
    assignment_timestamp: i64 = f(tag=0)


@message(key=13, versions="0")
class ShareGroupTargetAssignmentMemberKey:
    group_id: str = f("0")
    member_id: str = f("0")


@message(key=13, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue:
    topic_partitions: list[TopicPartition] = f()


@message(key=14, versions="0")
class ShareGroupCurrentMemberAssignmentKey:
    group_id: str = f("0")
    member_id: str = f("0")


@message(key=14, versions="0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue:
    member_epoch: i32 = f()
    previous_member_epoch: i32 = f()
    state: i8 = f()
    assigned_partitions: list[TopicPartition] = f()


@message(key=15, versions="0")
class ShareGroupStatePartitionMetadataKey:
    group_id: str = f("0")


@struct
class TopicPartitionsInfo:
    topic_id: Uuid = f()
    topic_name: str = f()
    partitions: list[i32] = f()


@struct
class TopicInfo:
    topic_id: Uuid = f()
    topic_name: str = f()


@message(key=15, versions="0", flexible="0+")
class ShareGroupStatePartitionMetadataValue:
    """Share partitions that are being initialised or are initialised, and topics whose state is being deleted."""

    initializing_topics: list[TopicPartitionsInfo] = f()
    initialized_topics: list[TopicPartitionsInfo] = f()
    deleting_topics: list[TopicInfo] = f()
