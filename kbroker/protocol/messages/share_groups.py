"""Share groups: membership and start offsets (KIP-932)."""

from kbroker.protocol.messages.consumer_groups import TopicPartitions
from kbroker.protocol.schema import Uuid, f, i16, i32, i64, message, struct

# ShareGroupHeartbeat (key 76): join, stay in, and leave a share group.
#
# Null means "as before". The member chooses its id. A member epoch of 0 joins, -1 leaves. Version 0 was never stable.


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest:
    group_id: str = f()
    member_id: str = f()
    member_epoch: i32 = f()
    rack_id: str | None = f(nullable="0+", default=None)
    subscribed_topic_names: list[str] | None = f(nullable="0+", default=None)


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = f()


@message(key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    member_id: str | None = f(nullable="0+", default=None)
    member_epoch: i32 = f()
    heartbeat_interval_ms: i32 = f()
    assignment: Assignment | None = f(nullable="0+", default=None)


# ShareGroupDescribe (key 77): state, epochs, members and assignments of share groups.


@message(key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest:
    group_ids: list[str] = f()
    include_authorized_operations: bool = f()


@struct
class DescribedPartitions:
    topic_id: Uuid = f()
    topic_name: str = f()
    partitions: list[i32] = f()


@struct
class DescribedAssignment:
    topic_partitions: list[DescribedPartitions] = f()


@struct
class Member:
    member_id: str = f()
    rack_id: str | None = f(nullable="0+", default=None)
    member_epoch: i32 = f()
    client_id: str = f()
    client_host: str = f()
    subscribed_topic_names: list[str] = f()
    assignment: DescribedAssignment = f()


@struct
class DescribedGroup:
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    group_id: str = f()
    group_state: str = f()
    group_epoch: i32 = f()
    assignment_epoch: i32 = f()
    assignor_name: str = f()
    members: list[Member] = f()
    authorized_operations: i32 = f(default=-2147483648)


@message(key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse:
    throttle_time_ms: i32 = f()
    groups: list[DescribedGroup] = f()


# DescribeShareGroupOffsets (key 90): start offsets of share partitions; from version 1 on also their lag (KIP-1226).


@struct
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = f()
    partitions: list[i32] = f()


@struct
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = f()
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = f(nullable="0+")


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest:
    groups: list[DescribeShareGroupOffsetsRequestGroup] = f()


@struct
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: i32 = f()
    start_offset: i64 = f()
    leader_epoch: i32 = f()
    lag: i64 = f("1+", default=-1)
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)


@struct
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = f()
    topic_id: Uuid = f()
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = f()


@struct
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = f()
    topics: list[DescribeShareGroupOffsetsResponseTopic] = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)


@message(key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse:
    throttle_time_ms: i32 = f()
    groups: list[DescribeShareGroupOffsetsResponseGroup] = f()


# AlterShareGroupOffsets (key 91): new start offsets for the share partitions of a group without members.


@struct
class AlterShareGroupOffsetsRequestPartition:
    partition_index: i32 = f()
    start_offset: i64 = f()


@struct
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = f()
    partitions: list[AlterShareGroupOffsetsRequestPartition] = f()


@message(key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest:
    group_id: str = f()
    topics: list[AlterShareGroupOffsetsRequestTopic] = f()


@struct
class AlterShareGroupOffsetsResponsePartition:
    partition_index: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)


@struct
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = f()
    topic_id: Uuid = f()
    partitions: list[AlterShareGroupOffsetsResponsePartition] = f()


@message(key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = f()


# DeleteShareGroupOffsets (key 92): delete the share partitions of topics, for a group without members.


@struct
class DeleteShareGroupOffsetsRequestTopic:
    topic_name: str = f()


@message(key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest:
    group_id: str = f()
    topics: list[DeleteShareGroupOffsetsRequestTopic] = f()


@struct
class DeleteShareGroupOffsetsResponseTopic:
    topic_name: str = f()
    topic_id: Uuid = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)


@message(key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = f()
