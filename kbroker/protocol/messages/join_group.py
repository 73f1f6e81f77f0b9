"""JoinGroup (key 11): enter a group or a new generation of it (KIP-345, KIP-394)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@struct
class JoinGroupRequestProtocol:
    name: str = f()
    metadata: bytes = f()


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    group_id: str = f()
    session_timeout_ms: i32 = f()
    rebalance_timeout_ms: i32 = f("1+", default=-1)
    member_id: str = f()
    group_instance_id: str | None = f("5+", nullable="5+", default=None)
    protocol_type: str = f()
    protocols: list[JoinGroupRequestProtocol] = f()
    reason: str | None = f("8+", nullable="8+", default=None)


@struct
class JoinGroupResponseMember:
    member_id: str = f()
    group_instance_id: str | None = f("5+", nullable="5+", default=None)
    metadata: bytes = f()


@message(key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    throttle_time_ms: i32 = f("2+")
    error_code: i16 = f()
    generation_id: i32 = f(default=-1)
    protocol_type: str | None = f("7+", nullable="7+", default=None)
    protocol_name: str | None = f(nullable="7+")
    leader: str = f()
    skip_assignment: bool = f("9+", default=False)
    member_id: str = f()
    members: list[JoinGroupResponseMember] = f()
