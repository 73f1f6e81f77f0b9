"""Groups: requests to find, list, describe and delete groups, and the membership in a classic group."""

from kbroker.protocol.schema import f, i8, i16, i32, i64, message, struct

# ListGroups (key 16): the groups that a broker coordinates, filtered by state (KIP-518) and type (KIP-848).


@message(key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    states_filter: list[str] = f("4+")
    types_filter: list[str] = f("5+")


@struct
class StuckPartition:
    """A record at which a group is stuck. Only kbroker sends it, in a tag that Kafka does not use."""

    topic: str = f()
    partition: i32 = f()
    offset: i64 = f()
    cause: str = f()
    times: i32 = f()
    since_ms: i64 = f()


@struct
class ListedGroup:
    group_id: str = f()
    protocol_type: str = f()
    group_state: str = f("4+")
    group_type: str = f("5+")
    stuck: list[StuckPartition] = f("3+", tag=1000)


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
    wants_rereads: bool = f("5+", tag=1000)


@struct
class Reread:
    """A client that repeatedly fetches the same record. Only kbroker sends this struct, from broker to broker."""

    topic: str = f()
    partition: i32 = f()
    offset: i64 = f()
    client_id: str = f()
    client_host: str = f()
    looks: i32 = f()


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
    rereads: list[Reread] = f("5+", tag=1000)


# DeleteGroups (key 42): delete empty groups (KIP-229).


@message(key=42, versions="0-3", flexible="2+")
class DeleteGroupsRequest:
    groups_names: list[str] = f()


@struct
class DeletableGroupResult:
    group_id: str = f()
    error_code: i16 = f()
    error_message: str | None = f("3+", nullable="3+", default=None)


@message(key=42, versions="0-3", flexible="2+")
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


# JoinGroup (key 11): join a group, or its next generation (KIP-345, KIP-394).


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
