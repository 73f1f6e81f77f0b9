"""Membership in a classic group: joining, assignment, staying and leaving."""

from kbroker.protocol.schema import f, i16, i32, message, struct

# JoinGroup (key 11): enter a group or a new generation of it (KIP-345, KIP-394).


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


# SyncGroup (key 14): the leader sends the assignment, and every member receives its own part.


@struct
class SyncGroupRequestAssignment:
    member_id: str = f()
    assignment: bytes = f()


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    group_id: str = f()
    generation_id: i32 = f()
    member_id: str = f()
    group_instance_id: str | None = f("3+", nullable="3+", default=None)
    protocol_type: str | None = f("5+", nullable="5+", default=None)
    protocol_name: str | None = f("5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = f()


@message(key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    throttle_time_ms: i32 = f("1+")
    error_code: i16 = f()
    protocol_type: str | None = f("5+", nullable="5+", default=None)
    protocol_name: str | None = f("5+", nullable="5+", default=None)
    assignment: bytes = f()


# Heartbeat (key 12): keep a group membership alive.


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    group_id: str = f()
    generation_id: i32 = f()
    member_id: str = f()
    group_instance_id: str | None = f("3+", nullable="3+", default=None)


@message(key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    throttle_time_ms: i32 = f("1+")
    error_code: i16 = f()


# LeaveGroup (key 13): members leave a group; a list from v3 (KIP-345).


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
