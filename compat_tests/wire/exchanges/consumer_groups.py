"""Consumer groups (KIP-848): members' lives, fencing, static members, migration, offsets, administration."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.exchanges.groups import commit, join, sync
from compat_tests.wire.session import Wire
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from kbroker.protocol.messages.group_offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kbroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
)


def beat(group: str, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)


def enter(group: str, member: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    names = fields.pop("subscribed_topic_names", list(topics))
    return beat(
        group,
        member,
        0,
        **{"rebalance_timeout_ms": 10_000, "topic_partitions": [], "subscribed_topic_names": names, **fields},
    )


def owned(answer: Any) -> list[TopicPartitions]:
    return answer.assignment.topic_partitions if answer.assignment is not None else []


def known(wire: Wire, group: str, topic: str) -> None:
    """Wait until the coordinator of a group that does not exist yet knows a topic, and leave no group.

    Kafka's coordinator learns of a new topic some time after its leaders serve it, and does not assign its partitions
    before.
    """
    wire.coordinator(group)
    wire.until(lambda: bool(owned(wire.quiet(enter(group, "probe", topic), 1))), f"{topic} is assigned")
    left = wire.quiet(beat(group, "probe", -1), 1)
    assert left.error_code == ErrorCode.NONE, left
    gone = wire.quiet(DeleteGroupsRequest(groups_names=[group]), 2)
    assert gone.results[0].error_code == ErrorCode.NONE, gone


@sequence
def consumer_group_requests(wire: Wire) -> None:
    """Heartbeats that are invalid regardless of the group's state."""
    group, topic = wire.name, wire.topic()
    wire.coordinator(group)
    for v in versions(ConsumerGroupHeartbeatRequest):
        wire.ask("no member id", enter(group, "", topic, server_assignor="none"), v)
        wire.ask("no group id", enter("", "m", topic), v)
        wire.ask("blank group id", enter(" ", "m", topic), v)
        wire.ask("blank instance id", enter(group, "m", topic, instance_id=""), v)
        wire.ask("blank rack", enter(group, "m", topic, rack_id=""), v)
        wire.ask("no rebalance timeout", enter(group, "m", topic, rebalance_timeout_ms=-1), v)
        wire.ask("partitions null", enter(group, "m", topic, topic_partitions=None), v)
        held = [TopicPartitions(topic_id=wire.topic_id(topic), partitions=[0])]
        wire.ask("joins with partitions", enter(group, "m", topic, topic_partitions=held), v)
        wire.ask("no subscription", enter(group, "m", subscribed_topic_names=None), v)
        wire.ask("unknown assignor", enter(group, "m", topic, server_assignor="best"), v)
        wire.ask("epoch -3", beat(group, "m", -3), v)
        wire.ask("epoch -2 without instance", beat(group, "m", -2), v)
        wire.ask("unknown group", beat(group, "m", 1), v)
        wire.ask("leaves an unknown group", beat(group, "m", -1), v)
        wire.ask("leaves without an id", beat(group, "", -1), v)
    for pattern in ("(", "a++*(", "[", "*", r"(a)\1", "[z-a]", "a{1001}", "\\", "(?P<n", "[[:x:]]", "(?i", r"\pX"):
        asked = enter(group, "m", subscribed_topic_names=None, subscribed_topic_regex=pattern)
        wire.ask(f"pattern {pattern}", asked, 1)


@sequence
def consumer_group_life(wire: Wire) -> None:
    """Two members join, reconcile, are fenced, and leave."""
    group, topic = wire.name, wire.topic(partitions=4)
    known(wire, group, topic)
    first = wire.ask("first joins", enter(group, "a", topic), 1)
    have = owned(first)
    wire.ask("first again", beat(group, "a", first.member_epoch), 1)
    wire.ask("a full request", beat(group, "a", 2, rebalance_timeout_ms=10_000, subscribed_topic_names=[topic],
                                    topic_partitions=have), 1)  # fmt: skip
    wire.ask("a later epoch", beat(group, "a", 9), 1)
    wire.ask("an earlier epoch", beat(group, "a", 1), 1)
    wire.ask("a stranger", beat(group, "z", 1), 1)
    wire.ask("a strange instance", beat(group, "z", 1, instance_id="i"), 1)
    for v in versions(ConsumerGroupDescribeRequest):
        wire.ask("describe", ConsumerGroupDescribeRequest([group], True), v)
        wire.ask("describe unknown and empty", ConsumerGroupDescribeRequest([f"{group}-none", ""]), v)
    for v in versions(DescribeGroupsRequest):
        wire.ask("described as classic", DescribeGroupsRequest([group]), v)
    listed = wire.quiet(ListGroupsRequest(types_filter=["Consumer"], states_filter=["stable"]), 5)
    wire.record("listed", None, [g for g in listed.groups if g.group_id == group])
    wire.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)
    second = wire.client("second")
    wire.until(lambda: wire.quiet(enter(group, "b", topic), 1).member_epoch == 3, "a target for two")
    wire.ask("second waits", beat(group, "b", 3), 1, second)
    left = owned(wire.ask("first must give up", beat(group, "a", 2, topic_partitions=have), 1))
    wire.ask("describe while reconciling", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("first has given up", beat(group, "a", 2, topic_partitions=left), 1)
    wire.ask("second has some", beat(group, "b", 3), 1, second)
    wire.ask("describe two", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("second leaves", beat(group, "b", -1), 1, second)
    wire.ask("second is unknown", beat(group, "b", 3), 1, second)
    wire.ask("first leaves", beat(group, "a", -1), 1)
    wire.ask("describe empty", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("delete empty", DeleteGroupsRequest(groups_names=[group]), 2)
    wire.ask("describe deleted", ConsumerGroupDescribeRequest([group]), 1)


@sequence
def consumer_group_static(wire: Wire) -> None:
    group, topic = wire.name, wire.topic(partitions=2)
    known(wire, group, topic)
    wire.ask("joins", enter(group, "a", topic, instance_id="i", rack_id="r"), 1)
    wire.ask("another with its instance", enter(group, "b", topic, instance_id="i"), 1)
    wire.ask("another id", beat(group, "b", 2, instance_id="i"), 1)
    wire.ask("leaves for a while, another id", beat(group, "b", -2, instance_id="i"), 1)
    wire.ask("leaves for a while", beat(group, "a", -2, instance_id="i"), 1)
    wire.ask("describe away", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("returns", enter(group, "c", topic, instance_id="i", rack_id="r"), 1)
    wire.ask("describe returned", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("the old id", beat(group, "a", 2, instance_id="i"), 1)
    wire.ask("the old id, no instance", beat(group, "a", 2), 1)
    removed = [MemberIdentity(member_id="", group_instance_id="i"), MemberIdentity("", "j"), MemberIdentity("z")]
    wire.ask("an administrator removes it", LeaveGroupRequest(group, members=removed), 5)
    wire.ask("describe removed", ConsumerGroupDescribeRequest([group]), 1)


def fetch_of(group: str, topic: str, member: str | None, epoch: int) -> OffsetFetchRequest:
    wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=wanted)]
    )


@sequence
def consumer_group_offsets(wire: Wire) -> None:
    group, topic = wire.name, wire.topic(partitions=2)
    known(wire, group, topic)
    wire.ask("commit to no group", commit(group, [(topic, 0, 1)], 1, "a"), 9)
    wire.quiet(enter(group, "a", topic), 1)
    for v in (2, 8, 9):
        wire.ask("commit", commit(group, [(topic, 0, 5), (topic, 1, 6)], 2, "a"), v)
        wire.ask("commit of a later epoch", commit(group, [(topic, 0, 7)], 3, "a"), v)
        wire.ask("commit of an earlier epoch", commit(group, [(topic, 0, 8)], 1, "a"), v)
        wire.ask("commit of a stranger", commit(group, [(topic, 0, 9)], 2, "z"), v)
        wire.ask("commit of nobody", commit(group, [(topic, 0, 9)]), v)
    wire.ask("fetch", fetch_of(group, topic, "a", 2), 9)
    wire.ask("fetch of another epoch", fetch_of(group, topic, "a", 1), 9)
    wire.ask("fetch of a stranger", fetch_of(group, topic, "z", 2), 9)
    wire.ask("fetch of nobody", fetch_of(group, topic, None, -1), 9)
    delete = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(0)])]
    )
    wire.ask("delete a consumed one", delete, 0)
    wire.quiet(beat(group, "a", 2, topic_partitions=[], subscribed_topic_names=[]), 1)
    wire.ask("delete one no longer consumed", delete, 0)
    wire.quiet(beat(group, "a", -1), 1)
    wire.ask("commit to an empty group", commit(group, [(topic, 0, 10)]), 9)
    wire.ask("fetch of an empty group", fetch_of(group, topic, None, -1), 9)


def subscription(topic: str, partitions: list[int] | None = None) -> bytes:
    name = len(topic).to_bytes(2, "big") + topic.encode()
    out = b"\0\1\0\0\0\1" + name + b"\xff\xff\xff\xff"
    if partitions is None:
        return out + b"\0\0\0\0"
    indexes = b"".join(index.to_bytes(4, "big") for index in partitions)
    return out + b"\0\0\0\1" + name + len(partitions).to_bytes(4, "big") + indexes


def classic_join(group: str, topic: str, member: str = "", partitions: list[int] | None = None, **fields: Any) -> Any:
    request = join(group, member, **fields)
    for protocol in request.protocols:
        protocol.metadata = subscription(topic, partitions)
    return request


def assignment(topic: str, partitions: list[int]) -> bytes:
    name = len(topic).to_bytes(2, "big") + topic.encode()
    indexes = b"".join(index.to_bytes(4, "big") for index in partitions)
    return b"\0\1\0\0\0\1" + name + len(partitions).to_bytes(4, "big") + indexes + b"\xff\xff\xff\xff"


def classic_member(wire: Wire, group: str, topic: str, client: WireClient) -> Any:
    """Create a classic group with one stable member; returns its JoinGroup response."""
    wire.coordinator(group)
    member = client.ask(classic_join(group, topic), 5).member_id
    answer = client.ask(classic_join(group, topic, member), 5)
    done = client.ask(sync(group, answer.generation_id, member, {member: assignment(topic, [0, 1])}), 3)
    assert done.error_code == ErrorCode.NONE, done
    return answer


@sequence
def consumer_group_migration(wire: Wire) -> None:
    """A classic group becomes a consumer group when a consumer member joins, and classic again when it leaves."""
    group, topic = wire.name, wire.topic(partitions=2)
    known(wire, group, topic)
    old = wire.client("old")
    classic = classic_member(wire, group, topic, old)
    member = classic.member_id
    wire.ask("consumer joins", enter(group, "a", topic), 1)
    wire.ask("describe both", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("described as classic", DescribeGroupsRequest([group]), 6)
    wire.ask("classic heartbeat", HeartbeatRequest(group, 1, member), 4, old)
    wire.ask("classic commit", commit(group, [(topic, 0, 1)], 1, member), 8, old)
    wire.ask("classic sync", sync(group, 1, member), 3, old)
    wire.ask("classic heartbeat of another generation", HeartbeatRequest(group, 7, member), 4, old)
    wire.ask("classic heartbeat of a consumer", HeartbeatRequest(group, 2, "a"), 4, old)
    wire.ask("another protocol joins", classic_join(group, topic, protocols=("roundrobin",)), 5, wire.client())
    wire.ask("another type joins", classic_join(group, topic, protocol_type="connect"), 5, wire.client())
    other = classic_join(group, topic, member, protocols=("roundrobin",))
    wire.ask("a known member joins with another protocol", other, 5, wire.client())
    again = wire.ask("classic joins again", classic_join(group, topic, member, [0, 1]), 5, old)
    wire.ask("classic syncs", sync(group, again.generation_id, member), 3, old)
    wire.ask("classic heartbeat to give up", HeartbeatRequest(group, again.generation_id, member), 4, old)
    third = wire.ask("classic has given up", classic_join(group, topic, member, [0]), 5, old)
    wire.ask("classic syncs what is left", sync(group, third.generation_id, member), 3, old)
    wire.ask("classic is at rest", HeartbeatRequest(group, third.generation_id, member), 4, old)
    wire.ask("consumer has the other", beat(group, "a", 2), 1)
    wire.ask("describe at rest", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("consumer leaves", beat(group, "a", -1), 1)
    wire.ask("describe classic again", DescribeGroupsRequest([group]), 6)
    wire.ask("classic is told", HeartbeatRequest(group, third.generation_id, member), 4, old)
    wire.ask("not a consumer group", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("a steady heartbeat", beat(group, "a", 2), 1)


@sequence
def consumer_group_of_empty_ones(wire: Wire) -> None:
    """Groups without members change their protocol with their next member, and keep their offsets."""
    group, topic = wire.name, wire.topic()
    known(wire, group, topic)
    wire.ask("commit without a group", commit(group, [(topic, 0, 3)]), 8)
    wire.ask("consumer joins", enter(group, "a", topic), 1)
    wire.ask("offsets are kept", fetch_of(group, topic, "a", 2), 9)
    wire.ask("consumer leaves", beat(group, "a", -1), 1)
    client = wire.client()
    needs = wire.ask("classic joins", classic_join(group, topic), 5, client)
    wire.ask("classic joins with its id", classic_join(group, topic, needs.member_id), 5, client)
    wire.ask("offsets are kept again", fetch_of(group, topic, None, -1), 9)
    wire.ask("connect group", join(f"{group}-connect", protocol_type="connect"), 3, wire.client())
    wire.ask("consumer joins connect", enter(f"{group}-connect", "a", topic), 1)


@sequence
def consumer_group_patterns(wire: Wire) -> None:
    group, topic = wire.name, wire.topic(partitions=2)
    wire.topic("other")
    wire.coordinator(group)
    pattern = f"{topic}-o.*"
    joined = wire.ask("joins", enter(group, "a", subscribed_topic_names=None, subscribed_topic_regex=pattern), 1)
    epoch, have = joined.member_epoch, list[TopicPartitions]()

    def resolved() -> bool:
        nonlocal epoch, have
        answer = wire.quiet(beat(group, "a", epoch, topic_partitions=have), 1)
        epoch, have = answer.member_epoch, owned(answer) or have
        return bool(have)

    wire.until(resolved, "the pattern's topics")
    wire.ask("describe", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("a bad pattern", beat(group, "a", epoch, subscribed_topic_regex="["), 1)


@sequence
def consumer_group_changes(wire: Wire) -> None:
    """Subscriptions and topics change: epochs, partitions that are revoked immediately, assignors."""
    group, one, two = wire.name, wire.topic("one"), wire.topic("two")
    for topic in (one, two):
        known(wire, group, topic)
    joined = wire.ask("joins", enter(group, "a", one, server_assignor="range"), 1)
    more = beat(group, "a", 2, topic_partitions=owned(joined), subscribed_topic_names=[one, "none"])
    wire.ask("subscribes to a topic that is not there", more, 1)
    epoch = joined.member_epoch

    def in_epoch(wanted: int) -> bool:
        nonlocal epoch
        epoch = wire.quiet(beat(group, "a", epoch, topic_partitions=owned(joined)), 1).member_epoch
        return bool(epoch == wanted)

    wire.until(lambda: in_epoch(3), "a target for that")
    wire.ask("describe", ConsumerGroupDescribeRequest([group]), 1)
    both = beat(group, "a", 3, topic_partitions=owned(joined), subscribed_topic_names=[two], server_assignor="uniform")
    wire.ask("changes its topic and its assignor", both, 1)
    wire.ask("says nothing", beat(group, "a", 3), 1)
    released = wire.ask("gives up", beat(group, "a", 3, topic_partitions=[]), 1)
    wire.until(
        lambda: (
            wire.quiet(ConsumerGroupDescribeRequest([group]), 1).groups[0].assignment_epoch == 4
            or wire.quiet(beat(group, "a", released.member_epoch, topic_partitions=[]), 1) is None
        ),
        "a target for the other topic",
    )
    wire.ask("describe the change", ConsumerGroupDescribeRequest([group]), 1)
    listed = wire.quiet(ListGroupsRequest(), 5)
    wire.record("listed", None, [g for g in listed.groups if g.group_id == group])


@sequence
def consumer_group_classic_static(wire: Wire) -> None:
    """Static members change their protocol, in both directions."""
    group, topic = wire.name, wire.topic(partitions=2)
    old = wire.client("old")
    known(wire, group, topic)
    first = old.ask(classic_join(group, topic, instance="i"), 5)
    done = old.ask(
        sync(
            group,
            first.generation_id,
            first.member_id,
            {first.member_id: assignment(topic, [0, 1])},
            group_instance_id="i",
        ),
        3,
    )
    assert done.error_code == ErrorCode.NONE, done
    wire.ask("returns as a consumer", enter(group, "a", topic, instance_id="i"), 1)
    wire.ask("describe the consumer", ConsumerGroupDescribeRequest([group]), 1)
    wire.ask("the old id", HeartbeatRequest(group, 1, first.member_id, "i"), 4, old)
    back = wire.ask("returns as a classic member", classic_join(group, topic, instance="i"), 5, old)
    wire.ask("describe the classic group", DescribeGroupsRequest([group]), 5)
    again = sync(group, back.generation_id, back.member_id, group_instance_id="i")
    wire.ask("syncs", again, 3, old)
    wire.ask("the consumer is gone", beat(group, "a", 2, instance_id="i"), 1)


@sequence
def repeated_group_ids(wire: Wire) -> None:
    """Requests that name a group twice: whether there are two answers."""
    consumer, classic, none, topic = wire.name, f"{wire.name}-classic", f"{wire.name}-none", wire.topic(partitions=2)
    for group in (consumer, classic, none):
        wire.coordinator(group)
    known(wire, consumer, topic)
    wire.quiet(enter(consumer, "a", topic), 1)
    wire.quiet(commit(classic, [(topic, 0, 1), (topic, 1, 2)]), 9)
    for v in versions(ConsumerGroupDescribeRequest):
        wire.ask("describe consumer groups", ConsumerGroupDescribeRequest([consumer, consumer, none, none, ""] * 2), v)
    for v in versions(DescribeGroupsRequest):
        wire.ask("describe groups", DescribeGroupsRequest([classic, classic, classic]), v)
    wire.ask("describe no group", DescribeGroupsRequest([none, none]), 6)
    whole = OffsetFetchRequestGroup(group_id=classic, topics=None)
    one = OffsetFetchRequestGroup(
        group_id=classic, topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 0])] * 2
    )
    for v in (8, 9):
        wire.ask("fetch all twice", OffsetFetchRequest(groups=[whole, whole]), v)
        wire.ask("fetch a partition four times, twice", OffsetFetchRequest(groups=[one, one]), v)
    wire.ask("delete", DeleteGroupsRequest([classic, classic]), 2)


@sequence
def consumer_group_of_odd_assignments(wire: Wire) -> None:
    """A consumer member joins classic groups whose leader made an assignment that it must not make."""
    group, topic = wire.name, wire.topic(partitions=2)
    old, second = wire.client("old"), wire.client("second")
    wire.coordinator(group)
    member = old.ask(classic_join(group, topic), 5).member_id
    generation = old.ask(classic_join(group, topic, member), 5).generation_id
    done = old.ask(sync(group, generation, member, {member: assignment(topic, [0, 1, 7])}), 3)
    assert done.error_code == ErrorCode.NONE, done
    wire.ask("a partition that does not exist", enter(group, "a", topic), 1)

    group = f"{wire.name}-twice"
    leader = classic_member(wire, group, topic, old).member_id
    other = second.ask(classic_join(group, topic), 5).member_id
    second.start(classic_join(group, topic, other), 5)
    wire.until(lambda: old.ask(HeartbeatRequest(group, 1, leader), 4).error_code != ErrorCode.NONE, "a rebalance")
    old.ask(classic_join(group, topic, leader), 5)
    generation = second.finish().generation_id
    both = {leader: assignment(topic, [0, 1]), other: assignment(topic, [1])}
    done = old.ask(sync(group, generation, leader, both), 3)
    assert done.error_code == ErrorCode.NONE, done
    wire.ask("a partition that two have", enter(group, "a", topic), 1)
    wire.ask("describe the classic group", DescribeGroupsRequest([group]), 6)


@sequence
def consumer_group_refused_conversion(wire: Wire) -> None:
    """A consumer member that is refused joins a classic group in which a JoinGroup waits."""
    group, topic = wire.name, wire.topic(partitions=2)
    old, second = wire.client("old"), wire.client("second")
    leader = classic_member(wire, group, topic, old).member_id
    other = second.ask(classic_join(group, topic), 5).member_id
    second.start(classic_join(group, topic, other), 5)
    wire.until(lambda: old.ask(HeartbeatRequest(group, 1, leader), 4).error_code != ErrorCode.NONE, "a rebalance")
    bad = enter(group, "a", subscribed_topic_names=None, subscribed_topic_regex="(")
    wire.ask("a pattern that is none", bad, 1)
    wire.ask("still a classic group", ConsumerGroupDescribeRequest([group]), 1)
    old.start(classic_join(group, topic, leader), 5)
    answer = wire.finish("the member that waited", second, 5)
    if answer.error_code != ErrorCode.NONE:
        second.ask(classic_join(group, topic, other), 5)
    assert old.finish().generation_id == 2
