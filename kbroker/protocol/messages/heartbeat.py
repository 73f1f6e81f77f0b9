"""Heartbeat (key 12): keep a group membership alive."""

from kbroker.protocol.schema import f, i16, i32, message


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
