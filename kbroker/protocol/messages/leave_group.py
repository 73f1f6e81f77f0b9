"""LeaveGroup (key 13): members leave a group; a list from v3 (KIP-345)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@struct
class MemberIdentity:
    member_id: str = f("3+")
    group_instance_id: str | None = f("3+", nullable="3+", default=None)
    reason: str | None = f("5+", nullable="5+", default=None)


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    group_id: str = f()
    member_id: str = f("0-2")
    members: list[MemberIdentity] = f("3+")


@struct
class MemberResponse:
    member_id: str = f("3+")
    group_instance_id: str | None = f("3+", nullable="3+")
    error_code: i16 = f("3+")


@message(key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    throttle_time_ms: i32 = f("1+")
    error_code: i16 = f()
    members: list[MemberResponse] = f("3+")
