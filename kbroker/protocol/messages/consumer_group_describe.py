"""ConsumerGroupDescribe (key 69): state, epochs, members and assignments of consumer groups (KIP-848)."""

from kbroker.protocol.schema import Uuid, f, i8, i16, i32, message, struct


@message(key=69, versions="0-1", flexible="0+")
class ConsumerGroupDescribeRequest:
    group_ids: list[str] = f()
    include_authorized_operations: bool = f()


@struct
class TopicPartitions:
    topic_id: Uuid = f()
    topic_name: str = f()
    partitions: list[i32] = f()


@struct
class Assignment:
    topic_partitions: list[TopicPartitions] = f()


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
    assignment: Assignment = f()
    target_assignment: Assignment = f()
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
