"""ListGroups (key 16): the groups that a broker coordinates, filtered by state (KIP-518) and type (KIP-848)."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: list[str] = f("4+")
    types_filter: list[str] = f("5+")


@struct
class ListedGroup:
    group_id: str = f()
    protocol_type: str = f()
    group_state: str = f("4+")
    group_type: str = f("5+")


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    throttle_time_ms: i32 = f("1+")
    error_code: i16 = f()
    groups: list[ListedGroup] = f()
