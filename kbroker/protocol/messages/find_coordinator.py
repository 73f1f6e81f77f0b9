"""FindCoordinator (key 10): the broker that coordinates a group or a transactional id; batched from v4 (KIP-699)."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    key: str = f("0-3")
    key_type: i8 = f("1+")
    coordinator_keys: list[str] = f("4+")


@struct
class Coordinator:
    key: str = f("4+")
    node_id: i32 = f("4+")
    host: str = f("4+")
    port: i32 = f("4+")
    error_code: i16 = f("4+")
    error_message: str | None = f("4+", nullable="4+")


@message(key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    throttle_time_ms: i32 = f("1+")
    error_code: i16 = f("0-3")
    error_message: str | None = f("1-3", nullable="1-3")
    node_id: i32 = f("0-3")
    host: str = f("0-3")
    port: i32 = f("0-3")
    coordinators: list[Coordinator] = f("4+")
