"""The records of `__consumer_offsets`: keys and values of offsets and of group metadata.

On disk a key or value is preceded by an int16: the record type for keys, the value's version for values.
"""

from kbroker.protocol.schema import Uuid, f, i32, i64, message, struct


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
