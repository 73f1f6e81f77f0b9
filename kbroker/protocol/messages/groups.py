"""Groups: their coordinators, their listing and description, and their deletion."""

from kbroker.protocol.schema import f, i8, i16, i32, message, struct

# ListGroups (key 16): the groups that a broker coordinates, filtered by state (KIP-518) and type (KIP-848).


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


# DescribeGroups (key 15): state and members of classic groups.


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


# DeleteGroups (key 42): delete empty groups (KIP-229).


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


# FindCoordinator (key 10): the broker that coordinates a group or a transactional id; batched from v4 (KIP-699).


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
