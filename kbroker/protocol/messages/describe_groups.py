"""DescribeGroups (key 15): state and members of classic groups."""

from kbroker.protocol.schema import f, i16, i32, message, struct


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    groups: list[str] = f()
    include_authorized_operations: bool = f("3+")


@struct
class DescribedGroupMember:
    member_id: str = f()
    group_instance_id: str | None = f("4+", nullable="4+", default=None)
    client_id: str = f()
    client_host: str = f()
    member_metadata: bytes = f()
    member_assignment: bytes = f()


@struct
class DescribedGroup:
    error_code: i16 = f()
    error_message: str | None = f("6+", nullable="6+", default=None)
    group_id: str = f()
    group_state: str = f()
    protocol_type: str = f()
    protocol_data: str = f()
    members: list[DescribedGroupMember] = f()
    authorized_operations: i32 = f("3+", default=-2147483648)


@message(key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    throttle_time_ms: i32 = f("1+")
    groups: list[DescribedGroup] = f()
