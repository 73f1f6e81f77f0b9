"""Streams groups (KIP-1071): requests, members' lives, topologies and their topics, static members, offsets."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.exchanges.groups import commit, join, sync
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from kbroker.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kbroker.protocol.messages.streams_groups import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
    Subtopology,
    TaskIds,
    TaskOffset,
    ToldTopology,
    TopicInfo,
    Topology,
)

GROUP = 32


def beat(group: str, member: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)


def enter(group: str, member: str, *subtopologies: Subtopology, **fields: Any) -> StreamsGroupHeartbeatRequest:
    """Return the heartbeat of a member that joins."""
    no_tasks: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    asked = {"rebalance_timeout_ms": 10_000, "process_id": f"process-{member}", **no_tasks}
    topology = Topology(fields.pop("epoch", 1), list(subtopologies))
    return beat(group, member, 0, **{**asked, "topology": topology, **fields})


def owning(group: str, member: str, epoch: int, answer: Any, **fields: Any) -> StreamsGroupHeartbeatRequest:
    """Return the heartbeat of a member that owns what a response assigned to it."""
    held = {
        "active_tasks": answer.active_tasks or [],
        "standby_tasks": answer.standby_tasks or [],
        "warmup_tasks": answer.warmup_tasks or [],
    }
    return beat(group, member, epoch, **held, **fields)


def reading(*topics: str, name: str = "0", store: str = "") -> Subtopology:
    changelogs = [TopicInfo(store, 0, 1, [KeyValue("cleanup.policy", "compact")])] if store else []
    return Subtopology(name, list(topics), state_changelog_topics=changelogs)


def configure(wire: Wire, group: str, **configs: str) -> None:
    """Set configs of a group, written with "_" for ".", and wait until its coordinator has them."""
    at_once = {"streams_initial_rebalance_delay_ms": "0", "streams_assignment_interval_ms": "0", **configs}
    changes = [IncrementalConfig(name.replace("_", "."), 0, value) for name, value in at_once.items()]
    answer = wire.quiet(IncrementalAlterConfigsRequest([IncrementalResource(GROUP, group, changes)]), 1)
    assert answer.responses[0].error_code == 0, answer


def known(wire: Wire, group: str, *topics: str, **configs: str) -> None:
    """Wait until the coordinator of a group that does not exist yet knows topics and configs; leave no group."""
    wire.coordinator(group)
    configure(wire, group, **configs)

    def gets_tasks() -> bool:
        answer = wire.quiet(enter(group, "probe", reading(*topics)), 1)
        got = bool(answer.active_tasks)
        wire.quiet(beat(group, "probe", -1), 1)
        wire.quiet(DeleteGroupsRequest(groups_names=[group]), 2)
        return got

    wire.until(gets_tasks, f"tasks of {topics}")


def describe(wire: Wire, label: str, group: str, version: int = 1) -> None:
    wire.ask(label, StreamsGroupDescribeRequest([group]), version)


@sequence
def streams_group_requests(wire: Wire) -> None:
    """Heartbeats that are invalid regardless of the group's state, and impossible topologies."""
    group, topic = wire.name, wire.topic()
    known(wire, group, topic)
    for v in versions(StreamsGroupHeartbeatRequest):
        wire.ask("no member id", enter(group, "", reading(topic)), v)
        wire.ask("no group id", enter("", "m", reading(topic)), v)
        wire.ask("blank instance id", enter(group, "m", reading(topic), instance_id=""), v)
        wire.ask("blank rack", enter(group, "m", reading(topic), rack_id=""), v)
        wire.ask("no rebalance timeout", enter(group, "m", reading(topic), rebalance_timeout_ms=-1), v)
        for role in ("active_tasks", "standby_tasks", "warmup_tasks"):
            wire.ask(f"joins with {role}", enter(group, "m", reading(topic), **{role: [TaskIds("0", [0])]}), v)
            wire.ask(f"{role} null", enter(group, "m", reading(topic), **{role: None}), v)
        wire.ask("no topology", enter(group, "m", topology=None), v)
        wire.ask("epoch -3", beat(group, "m", -3), v)
        wire.ask("epoch -2 without instance", beat(group, "m", -2), v)
        wire.ask("one role of three", beat(group, "m", 1, active_tasks=[]), v)
        wire.ask("a topology later", beat(group, "m", 1, topology=Topology(1, [])), v)
        wire.ask("unknown group", beat(group, "m", 1), v)
        wire.ask("leaves an unknown group", beat(group, "m", -1), v)
        regex = Subtopology("0", [topic], source_topic_regex=["a.*"])
        wire.ask("a pattern", enter(group, "m", regex), v)
        fixed = Subtopology("0", [topic], state_changelog_topics=[TopicInfo("c", 3, 0, [])])
        wire.ask("a changelog with partitions", enter(group, "m", fixed), v)
        wire.ask("an internal topic", enter(group, "m", reading("__consumer_offsets", topic)), v)
        wire.ask("impossible names", enter(group, "m", reading("a b", topic, "a/b")), v)
        wire.ask("no sources", enter(group, "m", Subtopology("0")), v)
        loop = Subtopology("0", [], [], [], ["r"], [TopicInfo("r", 0, 0, [])], [])
        wire.ask("a loop", enter(group, "m", loop), v)
        never = Subtopology("0", [], [], [], [], [TopicInfo("r", 0, 0, [])], [])
        wire.ask("a repartition topic without a sink", enter(group, "m", never), v)
    told = StreamsGroupTopologyDescriptionUpdateRequest(group, "m", 1, ToldTopology())
    wire.ask("description of a topology", told, 0)
    for v in versions(StreamsGroupDescribeRequest):
        wire.ask("describe unknown and empty", StreamsGroupDescribeRequest([f"{group}-none", ""]), v)


@sequence
def streams_group_life(wire: Wire) -> None:
    """Two members join, revoke and receive tasks, are fenced, and leave."""
    group, topic = wire.name, wire.topic(partitions=4)
    known(wire, group, topic)
    asked = reading(topic)
    first = wire.ask("first joins", enter(group, "a", asked, user_endpoint=Endpoint("h", 1)), 1)
    wire.ask("first has its tasks", owning(group, "a", 2, first), 1)
    wire.ask("version 0", owning(group, "a", 2, first), 0)
    wire.ask("first is told of endpoints", beat(group, "a", 2, endpoint_information_epoch=-1), 1)
    wire.ask("a later epoch", beat(group, "a", 9), 1)
    wire.ask("an earlier epoch", beat(group, "a", 1), 1)
    wire.ask("a stranger", beat(group, "z", 1), 1)
    wire.ask("a strange instance", beat(group, "z", 1, instance_id="i"), 1)
    no_tasks: dict[str, Any] = {"standby_tasks": [], "warmup_tasks": []}
    wire.ask("a strange subtopology", beat(group, "a", 2, active_tasks=[TaskIds("7", [0])], **no_tasks), 1)
    wire.ask("a task too many", beat(group, "a", 2, active_tasks=[TaskIds("0", [4])], **no_tasks), 1)
    twice = [TaskOffset("0", 0, 1), TaskOffset("0", 0, 2)]
    wire.ask("an offset twice", beat(group, "a", 2, task_offsets=twice), 1)
    wire.ask("offsets", beat(group, "a", 2, task_offsets=twice[:1], task_end_offsets=twice[1:]), 1)
    for v in versions(StreamsGroupDescribeRequest):
        wire.ask("describe", StreamsGroupDescribeRequest([group], True), v)
    wire.ask("describe as classic", DescribeGroupsRequest([group]), 6)
    wire.ask("describe as a consumer group", ConsumerGroupDescribeRequest([group]), 1)
    listed = wire.quiet(ListGroupsRequest(types_filter=["Streams"], states_filter=["stable"]), 5)
    wire.record("listed", None, [g for g in listed.groups if g.group_id == group])
    wire.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)
    second: WireClient = wire.client("second")
    wire.ask("second joins", enter(group, "b", asked), 1, second)
    kept = wire.ask("first must give up", owning(group, "a", 2, first), 1)
    describe(wire, "describe while giving up", group)
    wire.ask("second waits", beat(group, "b", 3), 1, second)
    wire.ask("first has given up", owning(group, "a", 2, kept), 1)
    got = wire.ask("second has some", beat(group, "b", 3), 1, second)
    describe(wire, "describe two", group)
    wire.ask("a classic member", join(group), 5)
    wire.ask("a classic member of that name", join(group, "a"), 5)
    wire.ask("a classic member syncs", sync(group, 2, "a"), 5)
    wire.ask("second shuts all down", owning(group, "b", 3, got, shutdown_application=True), 1, second)
    wire.ask("first hears it", owning(group, "a", 3, kept), 1)
    wire.ask("second leaves", beat(group, "b", -1), 1, second)
    wire.ask("second is unknown", beat(group, "b", 3), 1, second)
    wire.ask("first gets all", owning(group, "a", 3, kept), 1)
    wire.ask("first leaves", beat(group, "a", -1), 1)
    describe(wire, "describe empty", group)
    wire.ask("delete empty", DeleteGroupsRequest(groups_names=[group]), 2)
    describe(wire, "describe deleted", group)


@sequence
def streams_group_topics(wire: Wire) -> None:
    """Topics that are missing, that the group creates, or that do not match."""
    group, topic, other = wire.name, wire.topic(partitions=4), wire.topic("other", partitions=3)
    known(wire, group, topic, other)
    wire.ask("no source", enter(group, "m", reading(topic, f"{topic}-none", f"{topic}-neither")), 1)
    describe(wire, "describe without a source", group)
    wire.quiet(beat(group, "m", -1), 1)
    wire.quiet(DeleteGroupsRequest(groups_names=[group]), 2)
    together = reading(topic, other)
    together.copartition_groups = [CopartitionGroup([0, 1], [], [])]
    wire.ask("not copartitioned", enter(group, "m", together), 1)
    wire.quiet(beat(group, "m", -1), 1)
    wire.quiet(DeleteGroupsRequest(groups_names=[group]), 2)
    wire.ask("a changelog that does not fit", enter(group, "m", reading(topic, store=other)), 1)
    wire.quiet(beat(group, "m", -1), 1)
    wire.quiet(DeleteGroupsRequest(groups_names=[group]), 2)
    first = Subtopology("0", [topic], [], [], [f"{topic}-r"], [], [])
    repartition = TopicInfo(f"{topic}-r", 0, 0, [KeyValue("retention.ms", "-1")])
    changelog = TopicInfo(f"{topic}-c", 0, 1, [KeyValue("cleanup.policy", "compact")])
    second = Subtopology("1", [], [], [changelog], [], [repartition], [])
    joined = wire.ask("internal topics", enter(group, "m", first, second), 1)
    epoch = joined.member_epoch
    describe(wire, "describe before they exist", group)

    def has_tasks() -> bool:
        nonlocal epoch
        answer = wire.quiet(beat(group, "m", epoch, active_tasks=[], standby_tasks=[], warmup_tasks=[]), 1)
        epoch = answer.member_epoch or epoch
        return bool(answer.active_tasks)

    wire.until(has_tasks, "tasks of internal topics")
    answer = wire.quiet(StreamsGroupDescribeRequest([group]), 1)
    wire.record("described topology", None, answer.groups[0].topology)
    wire.record("described tasks", None, answer.groups[0].members[0].assignment)
    wire.quiet(beat(group, "m", -1), 1)


@sequence
def streams_group_static(wire: Wire) -> None:
    """Static members, standbys, and client tags."""
    group, topic, changelog = wire.name, wire.topic(partitions=2), wire.topic("changelog", partitions=2)
    known(wire, group, topic, streams_num_standby_replicas="1", streams_rack_aware_assignment_tags="zone")
    asked = reading(topic, store=changelog)
    tags = [KeyValue("zone", "1")]
    first = wire.ask("joins", enter(group, "a", asked, instance_id="i", rack_id="r", client_tags=tags), 1)
    wire.ask("another with its instance", enter(group, "b", asked, instance_id="i"), 1)
    wire.ask("another id", beat(group, "b", 2, instance_id="i"), 1)
    wire.ask("leaves for a while, another id", beat(group, "b", -2, instance_id="i"), 1)
    wire.ask("a second", enter(group, "c", asked), 1)
    kept = wire.ask("first gives up", owning(group, "a", 2, first, instance_id="i"), 1)
    held = wire.ask("first has given up", owning(group, "a", 2, kept, instance_id="i"), 1)
    wire.ask("second gets some", beat(group, "c", 3), 1)
    wire.ask("first gets a standby", owning(group, "a", 3, held if held.active_tasks else kept, instance_id="i"), 1)
    describe(wire, "describe two", group)
    wire.ask("leaves for a while", beat(group, "a", -2, instance_id="i"), 1)
    describe(wire, "describe away", group)
    back = enter(group, "d", asked, instance_id="i", rack_id="r", client_tags=tags, process_id="process-a")
    wire.ask("is back", back, 1)
    describe(wire, "describe back", group)
    wire.ask("old id", beat(group, "a", 3, instance_id="i"), 1)
    wire.ask("leaves", beat(group, "d", -1, instance_id="i"), 1)
    wire.ask("other leaves", beat(group, "c", -1), 1)


@sequence
def streams_group_offsets(wire: Wire) -> None:
    """Commits and fetches by members, and by other clients."""
    group, topic, other = wire.name, wire.topic(partitions=2), wire.topic("other")
    known(wire, group, topic)
    first = wire.ask("joins", enter(group, "a", reading(topic)), 1)
    epoch = first.member_epoch
    wire.ask("commit", commit(group, [(topic, 0, 1)], epoch, "a"), 9)
    wire.ask("commit by a stranger", commit(group, [(topic, 0, 1)], epoch, "z"), 9)
    wire.ask("commit of another topic", commit(group, [(other, 0, 1)], epoch, "a"), 9)
    wire.ask("commit before", commit(group, [(topic, 0, 1)], epoch - 1, "a"), 9)
    wire.ask("commit ahead", commit(group, [(topic, 0, 1)], epoch + 1, "a"), 9)
    wire.ask("commit in an old version", commit(group, [(topic, 0, 1)], epoch, "a"), 8)
    wire.ask("commit without a member", commit(group, [(topic, 0, 1)]), 9)
    for member, at in (("a", epoch), ("a", epoch - 1), ("z", epoch)):
        asked = OffsetFetchRequestGroup(group, member_id=member, member_epoch=at)
        wire.ask(f"fetch by {member} at {at - epoch}", OffsetFetchRequest(groups=[asked]), 9)
    wire.ask("leaves", beat(group, "a", -1), 1)
    wire.ask("commit of an empty group", commit(group, [(topic, 0, 1)]), 9)
    wire.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)
