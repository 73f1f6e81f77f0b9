"""SyncGroup (key 14): the leader hands in the assignment, every member receives its own."""

from kbroker.protocol.schema import f, i16, i32, message, struct


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
