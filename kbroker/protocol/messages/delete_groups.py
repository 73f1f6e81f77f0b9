"""DeleteGroups (key 42): delete empty groups (KIP-229)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@message(key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    groups_names: list[str] = f()


@struct
class DeletableGroupResult:
    group_id: str = f()
    error_code: i16 = f()


@message(key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    throttle_time_ms: i32 = f()
    results: list[DeletableGroupResult] = f()
