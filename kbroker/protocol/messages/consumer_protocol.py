"""The contents of JoinGroup and SyncGroup from consumers (protocol type "consumer"): subscriptions and assignments.

Before each is an int16, its version.
"""

from kbroker.protocol.schema import f, i32, message, struct


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
