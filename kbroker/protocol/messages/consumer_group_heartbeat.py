"""ConsumerGroupHeartbeat (key 68): join, stay in, and leave a consumer group (KIP-848).

Null or -1 means "as before". A member epoch of 0 joins, -1 leaves, -2 leaves for a while.
"""

from kbroker.protocol.schema import Uuid, f, i16, i32, message, struct


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
