"""The classic group protocol: groups' lives, wrong states, static members, offsets, administration."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.session import Wire
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"


def join(
    group: str, member: str = "", instance: str | None = None, protocols: tuple[str, ...] = ("range",), **fields: Any
) -> JoinGroupRequest:
    defaults = {"session_timeout_ms": 30000, "rebalance_timeout_ms": 10000, "protocol_type": "consumer"}
    return JoinGroupRequest(
        group_id=group,
        member_id=member,
        group_instance_id=instance,
        protocols=[JoinGroupRequestProtocol(p, SUBSCRIPTION) for p in protocols],
        **{**defaults, **fields},
    )


def sync(group: str, generation: int, member: str, assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        assignments=[SyncGroupRequestAssignment(m, a) for m, a in (assignments or {}).items()],
        **fields,
    )


def enter(wire: Wire, group: str, client: WireClient | None = None, v: int = 5, instance: str | None = None) -> Any:
    """Join alone, as a client does, with the member id from the first response. Returns the response."""
    client = client or wire.main
    answer = client.ask(join(group, instance=instance), v)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = client.ask(join(group, answer.member_id, instance), v)
    assert answer.error_code == 0, answer
    return answer


def stable(wire: Wire, group: str, v: int = 5, instance: str | None = None) -> Any:
    """Create a stable group with one member; returns the JoinGroup response."""
    wire.coordinator(group)
    answer = enter(wire, group, v=v, instance=instance)
    assigned = wire.quiet(
        sync(group, answer.generation_id, answer.member_id, {answer.member_id: b"mine"}, group_instance_id=instance), 3
    )
    assert assigned.error_code == 0, assigned
    return answer


@sequence
def find_coordinator(wire: Wire) -> None:
    wire.coordinator("any")
    for v in versions(FindCoordinatorRequest):

        def ask(label: str, key: str, key_type: int = 0) -> None:
            single = FindCoordinatorRequest(key=key, key_type=key_type)
            several = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key, f"{key}-2"])
            wire.ask(label, single if v < 4 else several, v)  # noqa: B023

        ask("group", "g")
        ask("empty group", "")
        if v >= 1:
            ask("unknown type", "g", 9)
        if v >= 4:
            wire.ask("no keys", FindCoordinatorRequest(), v)


@sequence
def group_life(wire: Wire) -> None:
    """One member, from its first join until it leaves, in every version of JoinGroup."""
    for v in versions(JoinGroupRequest):
        group = f"{wire.name}-{v}"
        wire.coordinator(group)
        answer = wire.ask(f"join, joined by v{v}", join(group), v)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            answer = wire.ask(f"join with id, joined by v{v}", join(group, answer.member_id), v)
        member, generation = answer.member_id, answer.generation_id
        s = min(v, 5)
        named: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"} if s >= 5 else {}
        wire.ask(f"sync, joined by v{v}", sync(group, generation, member, {member: b"mine"}, **named), s)
        wire.ask(f"sync again, joined by v{v}", sync(group, generation, member, **named), s)
        wire.ask(f"heartbeat, joined by v{v}", HeartbeatRequest(group, generation, member), min(v, 4))
        wire.ask(f"commit, joined by v{v}", commit(group, [("g", 0, 5)], generation, member), max(2, min(v, 8)))
        wire.ask(f"describe, joined by v{v}", DescribeGroupsRequest(groups=[group]), min(v, 6))
        wire.ask(f"rejoin, joined by v{v}", join(group, member), v)
        wire.ask(f"heartbeat while syncing, joined by v{v}", HeartbeatRequest(group, generation + 1, member), min(v, 4))
        wire.ask(
            f"sync of the second, joined by v{v}", sync(group, generation + 1, member, {member: b"two"}, **named), s
        )
        leave_version = min(v, 5)
        leave = LeaveGroupRequest(group, member)
        if leave_version >= 3:
            leave = LeaveGroupRequest(group, members=[MemberIdentity(member_id=member)])
        wire.ask(f"leave, joined by v{v}", leave, leave_version)
        wire.ask(f"leave again, joined by v{v}", leave, leave_version)
        wire.ask(f"describe empty, joined by v{v}", DescribeGroupsRequest(groups=[group]), min(v, 6))


@sequence
def two_members(wire: Wire) -> None:
    """A second member joins and leaves: rebalances, assignments, the leader's list of members."""
    group = wire.name
    first, second = wire.main, wire.client("second")
    leader = stable(wire, group)
    second_id = second.ask(join(group), 5).member_id
    second.start(join(group, second_id), 5)
    wire.until(
        lambda: (
            first.ask(HeartbeatRequest(group, 1, leader.member_id), 4).error_code == ErrorCode.REBALANCE_IN_PROGRESS
        ),
        "the rebalance",
    )
    wire.ask("heartbeat in the rebalance", HeartbeatRequest(group, 1, leader.member_id), 4)
    wire.ask("sync in the rebalance", sync(group, 1, leader.member_id), 3)
    wire.ask("commit in the rebalance", commit(group, [("g", 0, 1)], 1, leader.member_id), 8)
    wire.ask("describe in the rebalance", DescribeGroupsRequest(groups=[group]), 5)
    wire.ask("leader rejoins", join(group, leader.member_id), 5)
    wire.finish("second joins", second, 5)
    second.start(sync(group, 2, second_id), 3)
    wire.ask("commit before the sync", commit(group, [("g", 0, 1)], 2, leader.member_id), 8)
    wire.ask("heartbeat before the sync", HeartbeatRequest(group, 2, leader.member_id), 4)
    wire.ask("leader syncs", sync(group, 2, leader.member_id, {leader.member_id: b"A", second_id: b"B"}), 3)
    wire.finish("second syncs", second, 3)
    wire.ask("describe", DescribeGroupsRequest(groups=[group]), 5)
    wire.ask("old generation", HeartbeatRequest(group, 1, leader.member_id), 4)
    wire.ask("commit of the old generation", commit(group, [("g", 0, 1)], 1, leader.member_id), 8)
    wire.ask("future generation", sync(group, 9, leader.member_id), 3)
    wire.ask("second leaves", LeaveGroupRequest(group, members=[MemberIdentity(member_id=second_id)]), 5, second)
    wire.ask("leader is told", HeartbeatRequest(group, 2, leader.member_id), 4)
    wire.ask("leader rejoins alone", join(group, leader.member_id), 5)
    wire.ask("leader syncs alone", sync(group, 3, leader.member_id, {leader.member_id: b"all"}), 3)


@sequence
def protocols(wire: Wire) -> None:
    group = wire.name
    wire.coordinator(group)
    wire.ask("no protocols", join(group, protocols=()), 5)
    wire.ask("no type", join(group, protocol_type=""), 5)
    wire.ask("session too short", join(group, session_timeout_ms=10), 5)
    wire.ask("session too long", join(group, session_timeout_ms=2**31 - 1), 5)
    wire.ask("empty group", join(""), 5)
    wire.ask("unknown member", join(group, "nobody-00000000-0000-0000-0000-000000000000"), 5)
    first = stable(wire, group)
    wire.ask("other type", join(group, protocol_type="connect"), 3)
    wire.ask("no protocol in common", join(group, protocols=("roundrobin",)), 3)
    wire.ask(
        "sync with another type", sync(group, 1, first.member_id, protocol_type="connect", protocol_name="range"), 5
    )
    wire.ask("sync with another name", sync(group, 1, first.member_id, protocol_type="consumer", protocol_name="x"), 5)
    wire.ask("leader again, the same", join(group, first.member_id), 5)
    second = wire.client()
    for label, names in [("both", ("sticky", "range")), ("neither first", ("cooperative", "range"))]:
        wire.ask(f"preference: {label}", join(f"{group}-{label}", protocols=names), 3, second)


@sequence
def unknown_groups(wire: Wire) -> None:
    wire.coordinator(wire.name)
    group, member = f"{wire.name}-none", "x-00000000-0000-0000-0000-000000000000"
    for v in versions(HeartbeatRequest):
        wire.ask("heartbeat", HeartbeatRequest(group, 1, member), v)
        wire.ask("heartbeat of no group", HeartbeatRequest("", 1, member), v)
    for v in versions(SyncGroupRequest):
        named: dict[str, Any] = {"protocol_type": "consumer", "protocol_name": "range"} if v >= 5 else {}
        wire.ask("sync", sync(group, 1, member, **named), v)
        wire.ask("sync of no group", sync("", 1, member, **named), v)
        if v >= 5:
            wire.ask("sync without protocol", sync(group, 1, member), v)
    for v in versions(LeaveGroupRequest):
        if v < 3:
            wire.ask("leave", LeaveGroupRequest(group, member), v)
            wire.ask("leave no group", LeaveGroupRequest("", member), v)
        else:
            wire.ask("leave", LeaveGroupRequest(group, members=[MemberIdentity(member_id=member)]), v)
            wire.ask("leave no group", LeaveGroupRequest("", members=[MemberIdentity(member_id=member)]), v)
            wire.ask("leave, nobody named", LeaveGroupRequest(group), v)
            wire.ask("leave, static", LeaveGroupRequest(group, members=[MemberIdentity("", "inst")]), v)
    for v in versions(DescribeGroupsRequest):
        wire.ask("describe", DescribeGroupsRequest(groups=[group, ""]), v)
        wire.ask("describe none", DescribeGroupsRequest(), v)
        if v >= 3:
            wire.ask("describe, operations", DescribeGroupsRequest([group], True), v)
    for v in versions(DeleteGroupsRequest):
        wire.ask("delete", DeleteGroupsRequest(groups_names=[group]), v)
        wire.ask("delete no name", DeleteGroupsRequest(groups_names=[""]), v)
        wire.ask("delete none", DeleteGroupsRequest(), v)


def commit(
    group: str, offsets: list[tuple[str, int, int]], generation: int = -1, member: str = "", **fields: Any
) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for topic, partition, offset in offsets:
        data = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=fields.get("metadata", "")
        )
        topics.setdefault(topic, []).append(data)
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=fields.get("instance"),
        topics=[OffsetCommitRequestTopic(name=t, partitions=p) for t, p in topics.items()],
    )


def fetch(group: str, topics: dict[str, list[int]] | None, v: int, **fields: Any) -> OffsetFetchRequest:
    if v >= 8:
        named = (
            None
            if topics is None
            else [OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in topics.items()]
        )
        return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=named)], **fields)
    plain = None if topics is None else [OffsetFetchRequestTopic(t, p) for t, p in topics.items()]
    return OffsetFetchRequest(group_id=group, topics=plain, **fields)


@sequence
def simple_offsets(wire: Wire) -> None:
    """Commits without membership, as manual assignment and tools send them, in every version."""
    topic = wire.topic("t", 3)
    topic_id = wire.topic_id(topic)
    wire.coordinator(wire.name)
    for v in range(2, 11):
        group = f"{wire.name}-{v}"

        def ask(label: str, request: OffsetCommitRequest) -> None:
            if v >= 10:  # noqa: B023
                for t in request.topics:
                    t.topic_id = topic_id if t.name == topic else bytes(range(16))
            wire.ask(label, request, v)  # noqa: B023

        ask("commit", commit(group, [(topic, 0, 5), (topic, 2, 7)]))
        ask("commit with metadata", commit(group, [(topic, 1, 1)], metadata="note"))
        ask("commit null metadata", commit(group, [(topic, 1, 2)], metadata=None))
        ask("long metadata", commit(group, [(topic, 0, 9)], metadata="x" * 4097))
        ask("longest metadata", commit(group, [(topic, 2, 9)], metadata="x" * 4096))
        ask("unknown topic", commit(group, [("no-such-topic", 0, 1)]))
        ask("unknown partition", commit(group, [(topic, 9, 1)]))
        ask("negative offset", commit(group, [(topic, 0, -5)]))
        ask("known and unknown", commit(group, [(topic, 0, 6), ("no-such-topic", 0, 1)]))
        ask("unknown member", commit(group, [(topic, 0, 1)], 1, "nobody"))
        ask("generation of a new group", commit(f"{group}-new", [(topic, 0, 1)], 1, "nobody"))
        ask("no topics", commit(group, []))
        ask("empty group name", commit("", [(topic, 0, 1)]))
    for v in range(1, 10):
        group = f"{wire.name}-5"
        wire.ask("fetch", fetch(group, {topic: [0, 1, 2, 9]}, v), v)
        wire.ask("fetch unknown topic", fetch(group, {"no-such-topic": [0]}, v), v)
        wire.ask("fetch nothing", fetch(group, {}, v), v)
        wire.ask("fetch of an unknown group", fetch("no-such-group", {topic: [0]}, v), v)
        wire.ask("fetch of no group", fetch("", {topic: [0]}, v), v)
        if v >= 2:
            wire.ask("fetch all", fetch(group, None, v), v)
            wire.ask("fetch all of an unknown group", fetch("no-such-group", None, v), v)
        if v >= 7:
            wire.ask("fetch stable", fetch(group, {topic: [0]}, v, require_stable=True), v)
    by_id = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=f"{wire.name}-5",
                topics=[
                    OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0, 9]),
                    OffsetFetchRequestTopics(topic_id=bytes(range(16)), partition_indexes=[0]),
                ],
            ),
            OffsetFetchRequestGroup(group_id=f"{wire.name}-6", topics=None),
        ]
    )
    wire.ask("fetch by id", by_id, 10)


@sequence
def static_members(wire: Wire) -> None:
    group = wire.name
    wire.coordinator(group)
    old = wire.ask("first", join(group, instance="one"), 7)
    wire.ask("first syncs", sync(group, 1, old.member_id, {old.member_id: b"S"}, group_instance_id="one"), 3)
    other = wire.client()
    new = wire.ask("comes back", join(group, instance="one"), 7, other)
    wire.ask("syncs again", sync(group, new.generation_id, new.member_id, group_instance_id="one"), 3, other)
    wire.ask("the old one is fenced", HeartbeatRequest(group, 1, old.member_id, "one"), 4)
    wire.ask("the old one syncs", sync(group, 1, old.member_id, group_instance_id="one"), 3)
    wire.ask("the old one commits", commit(group, [("t", 0, 1)], 1, old.member_id, instance="one"), 8)
    wire.ask("the old one joins", join(group, old.member_id, "one"), 7)
    wire.ask("unknown instance", HeartbeatRequest(group, 1, new.member_id, "two"), 4)
    wire.ask("right instance", HeartbeatRequest(group, new.generation_id, new.member_id, "one"), 4)
    wire.ask("skip assignment", join(group, instance="one"), 9)
    wire.ask("describe", DescribeGroupsRequest(groups=[group]), 5)
    wrong = [MemberIdentity("wrong", "one"), MemberIdentity("", "two"), MemberIdentity("nobody", None)]
    wire.ask("leave, wrongly", LeaveGroupRequest(group, members=wrong), 5)
    wire.ask("removed by an admin", LeaveGroupRequest(group, members=[MemberIdentity("", "one", "because")]), 5)
    wire.ask("describe empty", DescribeGroupsRequest(groups=[group]), 5)


LISTINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "stable": {"states_filter": ["Stable"]},
    "any case": {"states_filter": ["sTABLE"]},
    "no such state": {"states_filter": ["Odd"]},
    "classic": {"types_filter": ["classic"]},
    "no such type": {"types_filter": ["odd"]},
}


@sequence
def administration(wire: Wire) -> None:
    topic = wire.topic("t", 2)
    busy, idle = f"{wire.name}-busy", f"{wire.name}-idle"
    stable(wire, busy)
    wire.coordinator(idle)
    wire.quiet(commit(idle, [(topic, 0, 5), (topic, 1, 6)]), 8)

    def delete(label: str, group: str, name: str, *partitions: int) -> None:
        listed = [OffsetDeleteRequestTopic(name, [OffsetDeleteRequestPartition(p) for p in partitions])]
        wire.ask(label, OffsetDeleteRequest(group, listed), 0)

    delete("delete an offset", idle, topic, 0)
    delete("delete what is not there", idle, topic, 0)
    delete("of an unknown topic", idle, "no-such-topic", 0)
    delete("of an unknown partition", idle, topic, 9)
    delete("of an unknown group", "no-such-group", topic, 0)
    delete("of no group", "", topic, 0)
    delete("of a subscribed topic", busy, "t", 0)
    delete("of another topic", busy, topic, 0)
    wire.ask("left over", fetch(idle, None, 7), 7)
    for v in versions(DeleteGroupsRequest):
        wire.quiet(commit(idle, [(topic, 0, 5)]), 8)
        wire.ask("delete groups", DeleteGroupsRequest([busy, idle, "no-such-group"]), v)
        wire.ask("delete again", DeleteGroupsRequest([idle]), v)
    for v in versions(DescribeGroupsRequest):
        wire.ask("describe busy", DescribeGroupsRequest([busy, idle]), v)
    for v in versions(ListGroupsRequest):
        for label, fields in LISTINGS.items():
            if ("states_filter" in fields and v < 4) or ("types_filter" in fields and v < 5):
                continue
            answer = wire.quiet(ListGroupsRequest(**fields), v)
            answer.groups = [g for g in answer.groups if g.group_id.startswith(wire.name)]
            wire.record(f"list {label}", v, answer)
