"""Consumer groups (KIP-848), and the data that consumers in classic groups exchange."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, message, struct

# ConsumerGroupHeartbeat (key 68): join, stay in, and leave a consumer group (KIP-848).
#
# Null or -1 means "as before". A member epoch of 0 joins, -1 leaves, -2 leaves temporarily (static members).


@struct
class TopicPartitions:
    topic_id: Uuid = f()
    partitions: list[i32] = f()


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest:
    group_id: str = f()
    member_id: str = f()
    member_epoch: i32 = f()
    instance_id: str | None = f(nullable="0+", default=None)
    rack_id: str | None = f(nullable="0+", default=None)
    rebalance_timeout_ms: i32 = f(default=-1)
    subscribed_topic_names: list[str] | None = f(nullable="0+", default=None)
    subscribed_topic_regex: str | None = f("1+", nullable="1+", default=None)
    server_assignor: str | None = f(nullable="0+", default=None)
    topic_partitions: list[TopicPartitions] | None = f(nullable="0+", default=None)


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = f()


@message(key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse:
    throttle_time_ms: i32 = f()
    error_code: i16 = f()
    error_message: str | None = f(nullable="0+", default=None)
    member_id: str | None = f(nullable="0+", default=None)
    member_epoch: i32 = f()
    heartbeat_interval_ms: i32 = f()
    assignment: Assignment | None = f(nullable="0+", default=None)


# ConsumerGroupDescribe (key 69): state, epochs, members and assignments of consumer groups (KIP-848).


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
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
    instance_id: str | None = f(nullable="0+", default=None)
    rack_id: str | None = f(nullable="0+", default=None)
    member_epoch: i32 = f()
    client_id: str = f()
    client_host: str = f()
    subscribed_topic_names: list[str] = f()
    subscribed_topic_regex: str | None = f(nullable="0+", default=None)
    assignment: DescribedAssignment = f()
    target_assignment: DescribedAssignment = f()
    member_type: i8 = f("1+", default=-1)


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


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeResponse:
    throttle_time_ms: i32 = f()
    groups: list[DescribedGroup] = f()


# The contents of JoinGroup and SyncGroup from consumers (protocol type "consumer"): subscriptions and assignments.
#
# An int16 with the version precedes each of them.


@struct
class TopicPartition:
    topic: str = f("1+")
    partitions: list[i32] = f("1+")


@message(key=-1, versions="0-3")
class ConsumerProtocolSubscription:
    topics: list[str] = f()
    user_data: bytes | None = f(nullable="0+", default=None)
    owned_partitions: list[TopicPartition] = f("1+")
    generation_id: i32 = f("2+", default=-1)
    rack_id: str | None = f("3+", nullable="3+", default=None)


@struct
class AssignedPartitions:
    topic: str = f()
    partitions: list[i32] = f()


@message(key=-1, versions="0-3")
class ConsumerProtocolAssignment:
    assigned_partitions: list[AssignedPartitions] = f()
    user_data: bytes | None = f(nullable="0+", default=None)
