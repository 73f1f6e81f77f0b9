"""Share groups (KIP-932): members, share sessions, acquired and acknowledged records, offsets of groups."""

from __future__ import annotations

from typing import Any

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges import sequence, versions
from compat_tests.wire.exchanges.groups import commit, join
from compat_tests.wire.exchanges.produce import batch, put
from compat_tests.wire.session import Wire
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from kbroker.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from kbroker.protocol.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kbroker.protocol.messages.share_acknowledge import AcknowledgementBatch as AckBatch
from kbroker.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from kbroker.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
)
from kbroker.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)

GROUP = 32
ACCEPT, RELEASE, REJECT, RENEW, GAP = 1, 2, 3, 4, 0


def beat(group: str, member: str, epoch: int, *topics: str) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(group, member, epoch, subscribed_topic_names=list(topics) or None)


def configure(wire: Wire, group: str, **configs: str) -> None:
    changes = [IncrementalConfig(name.replace("_", "."), 0, value) for name, value in configs.items()]
    answer = wire.quiet(IncrementalAlterConfigsRequest([IncrementalResource(GROUP, group, changes)]), 1)
    assert answer.responses[0].error_code == 0, answer


def joined(wire: Wire, group: str, member: str, *topics: str) -> int:
    """Join, and send heartbeats until the member has all partitions; return its epoch."""
    epoch = wire.quiet(beat(group, member, 0, *topics), 1).member_epoch
    got: Any = None

    def assigned() -> bool:
        nonlocal epoch, got
        answer = wire.quiet(beat(group, member, epoch, *topics), 1)
        epoch = answer.member_epoch or epoch
        if answer.assignment is not None:
            got = answer.assignment
        return got is not None and len(got.topic_partitions) == len(topics)

    wire.until(assigned, f"{member} has {topics}")
    return int(epoch)


class Member:
    """A member's share session: its epoch increases with each request."""

    def __init__(self, wire: Wire, group: str, member: str, topic: str, client: WireClient | None = None) -> None:
        self.wire = wire
        self.group = group
        self.member = member
        self.topic_id = wire.topic_id(topic)
        self.client = client or wire.client(member)
        self.epoch = 0

    def fetch(self, label: str, *acks: tuple[int, int, list[int]], version: int = 2, **fields: Any) -> Any:
        """Fetch from partition 0, and acknowledge (first offset, last offset, types) before that."""
        partitions = [FetchPartition(0, [AcknowledgementBatch(*each) for each in acks])]
        topics = [FetchTopic(self.topic_id, partitions)] if acks or self.epoch == 0 else []
        asked = {"max_wait_ms": 500, "min_bytes": 1, "max_records": 500, "batch_size": 500, "topics": topics}
        epoch = fields.pop("epoch", self.epoch)
        request = ShareFetchRequest(self.group, self.member, epoch, **{**asked, **fields})
        answer = self.wire.ask(label, request, version, self.client)
        self.epoch = 0 if epoch == -1 else epoch + 1
        return answer

    def acknowledge(self, label: str, *acks: tuple[int, int, list[int]], version: int = 2, **fields: Any) -> Any:
        partitions = [AcknowledgePartition(0, [AckBatch(*each) for each in acks])]
        topics = fields.pop("topics", [AcknowledgeTopic(self.topic_id, partitions)])
        epoch = fields.pop("epoch", self.epoch)
        request = ShareAcknowledgeRequest(self.group, self.member, epoch, topics=topics, **fields)
        answer = self.wire.ask(label, request, version, self.client)
        self.epoch = 0 if epoch == -1 else epoch + 1
        return answer


@sequence
def share_group_requests(wire: Wire) -> None:
    """Requests that are invalid regardless of the group's state."""
    group, topic = wire.name, wire.topic()
    wire.coordinator(group)
    wire.ask("no member id", beat(group, "", 0, topic), 1)
    wire.ask("no group id", beat("", "m", 0, topic), 1)
    wire.ask("a long member id", beat(group, "m" * 37, 0, topic), 1)
    wire.ask("no subscription", beat(group, "m", 0), 1)
    wire.ask("epoch -2", beat(group, "m", -2), 1)
    wire.ask("unknown group", beat(group, "m", 1), 1)
    wire.ask("leaves an unknown group", beat(group, "m", -1), 1)
    wire.ask("describe unknown and empty", ShareGroupDescribeRequest([f"{group}-none", ""]), 1)
    for v in versions(DescribeShareGroupOffsetsRequest):
        asked = [DescribeShareGroupOffsetsRequestGroup(f"{group}-none", None)]
        wire.ask("offsets of an unknown group", DescribeShareGroupOffsetsRequest(asked), v)
    wire.ask("alter without a group", AlterShareGroupOffsetsRequest("", []), 0)
    deleted = [DeleteShareGroupOffsetsRequestTopic(topic)]
    wire.ask("delete offsets of an unknown group", DeleteShareGroupOffsetsRequest(f"{group}-none", deleted), 0)
    for v in versions(ShareFetchRequest):
        wire.ask("fetch without a group", ShareFetchRequest(None, "m", 0), v)
        wire.ask("fetch without a member", ShareFetchRequest(group, None, 0), v)
        wire.ask("fetch in an unknown session", ShareFetchRequest(group, "m", 5), v)
        wire.ask("acknowledge without a group", ShareAcknowledgeRequest(None, "m", 1), v)
        wire.ask("acknowledge in an unknown session", ShareAcknowledgeRequest(group, "m", 5), v)
        wire.ask("acknowledge in a new session", ShareAcknowledgeRequest(group, "m", 0), v)


@sequence
def share_group_life(wire: Wire) -> None:
    """Two members join, are fenced, and leave; and how others see the group."""
    group, topic = wire.name, wire.topic(partitions=4)
    wire.coordinator(group)
    configure(wire, group, share_assignment_interval_ms="0")
    epoch = joined(wire, group, "a", topic)
    wire.ask("again", beat(group, "a", epoch), 1)
    wire.ask("a later epoch", beat(group, "a", epoch + 5), 1)
    wire.ask("an epoch long ago", beat(group, "a", 1), 1)
    wire.ask("a stranger", beat(group, "z", 1), 1)
    described = wire.quiet(ShareGroupDescribeRequest([group], True), 1).groups[0]
    wire.record("described", None, [described.group_state, described.assignor_name, described.authorized_operations])
    wire.record("described members", None, [each.assignment for each in described.members])
    wire.ask("described as classic", DescribeGroupsRequest([group]), 6)
    wire.ask("described as a consumer group", ConsumerGroupDescribeRequest([group]), 1)
    listed = wire.quiet(ListGroupsRequest(types_filter=["Share"], states_filter=["stable"]), 5)
    wire.record("listed", None, [g for g in listed.groups if g.group_id == group])
    wire.ask("delete", DeleteGroupsRequest(groups_names=[group]), 2)
    wire.ask("a classic member", join(group), 5)
    wire.ask("a commit", commit(group, [(topic, 0, 1)], epoch, "a"), 9)
    wire.ask("a fetch of offsets", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group)]), 9)
    joined(wire, group, "b", topic)
    second = wire.quiet(ShareGroupDescribeRequest([group]), 1).groups[0]
    shares = [sum(len(each.partitions) for each in m.assignment.topic_partitions) for m in second.members]
    wire.record("two members", None, [second.group_state, sorted(shares)])
    wire.ask("second leaves", beat(group, "b", -1), 1)
    wire.ask("second is unknown", beat(group, "b", 3), 1)
    wire.ask("first leaves", beat(group, "a", -1), 1)
    empty = wire.quiet(ShareGroupDescribeRequest([group]), 1).groups[0]
    wire.record("empty", None, [empty.group_state, empty.members])
    wire.ask("delete empty", DeleteGroupsRequest(groups_names=[group]), 2)
    wire.ask("describe deleted", ShareGroupDescribeRequest([group]), 1)


@sequence
def share_records(wire: Wire) -> None:
    """Records are acquired, accepted, released, rejected, renewed; which are delivered again, and which never."""
    group, topic = wire.name, wire.topic()
    wire.coordinator(group)
    configure(wire, group, share_auto_offset_reset="earliest")
    joined(wire, group, "a", topic)
    for _ in range(4):
        put(wire, topic, batch(5))
    one, two = Member(wire, group, "a", topic), Member(wire, group, "b", topic)
    one.fetch("opens a session")
    two.fetch("another finds nothing left")
    one.acknowledge("accepts some", (0, 4, [ACCEPT]))
    one.acknowledge("accepts again", (0, 4, [ACCEPT]))
    two.acknowledge("accepts what another has", (5, 5, [ACCEPT]))
    one.acknowledge("each its own", (5, 9, [ACCEPT, RELEASE, REJECT, RELEASE, GAP]))
    two.fetch("gets what was released")
    two.fetch("gives back and fetches", (6, 6, [RELEASE]), (8, 8, [ACCEPT]))
    one.acknowledge("a type that is none", (10, 10, [9]))
    one.acknowledge("too many types", (10, 10, [ACCEPT, ACCEPT]))
    one.acknowledge("too few types", (10, 14, [ACCEPT, ACCEPT]))
    one.acknowledge("backwards", (14, 10, [ACCEPT]))
    one.acknowledge("overlapping", (10, 12, [ACCEPT]), (11, 14, [ACCEPT]))
    one.acknowledge("never given", (100, 104, [ACCEPT]))
    one.acknowledge("renews", (15, 19, [RENEW]), is_renew_ack=True)
    one.acknowledge("renews without saying so", (15, 19, [RENEW]))
    one.acknowledge("an old session epoch", (15, 15, [ACCEPT]), epoch=1)
    offsets = [DescribeShareGroupOffsetsRequestGroup(group, [DescribeShareGroupOffsetsRequestTopic(topic, [0])])]
    wire.ask("offsets", DescribeShareGroupOffsetsRequest(offsets), 1)
    one.epoch = 0
    one.fetch("a new session")
    one.acknowledge("ends its session", epoch=-1, topics=[])
    two.fetch("gets what the other had", max_wait_ms=5000)
    two.fetch("the other ends its session", epoch=-1)


@sequence
def share_limits(wire: Wire) -> None:
    """The delivery limit, fewer records than a batch, and acquire modes."""
    group, topic = wire.name, wire.topic()
    wire.coordinator(group)
    configure(wire, group, share_auto_offset_reset="earliest", share_delivery_count_limit="2")
    joined(wire, group, "a", topic)
    put(wire, topic, batch(10))
    put(wire, topic, batch(3))
    one = Member(wire, group, "a", topic)
    one.fetch("at most 4 records, whole batches", max_records=4, batch_size=4)
    one.acknowledge("releases all", (0, 9, [RELEASE]))
    one.fetch("the first batch again", max_records=4, batch_size=4)
    one.acknowledge("releases all for the last time", (0, 9, [RELEASE]))
    one.fetch("at most 2 records, exactly", max_records=2, batch_size=2, share_acquire_mode=1)
    one.fetch("a mode that is none", share_acquire_mode=7)


@sequence
def share_offsets(wire: Wire) -> None:
    """Offsets of a group are described, altered and deleted."""
    group, topic = wire.name, wire.topic(partitions=2)
    wire.coordinator(group)
    configure(wire, group, share_auto_offset_reset="earliest")
    joined(wire, group, "a", topic)
    put(wire, topic, batch(6))
    one = Member(wire, group, "a", topic)
    one.fetch("reads")
    one.acknowledge("accepts", (0, 2, [ACCEPT]))
    both = [DescribeShareGroupOffsetsRequestGroup(group, [DescribeShareGroupOffsetsRequestTopic(topic, [0, 1])])]
    for v in versions(DescribeShareGroupOffsetsRequest):
        wire.ask("some offsets", DescribeShareGroupOffsetsRequest(both), v)
    to = [AlterShareGroupOffsetsRequestTopic(topic, [AlterShareGroupOffsetsRequestPartition(0, 1)])]
    wire.ask("alter with members", AlterShareGroupOffsetsRequest(group, to), 0)
    gone = [DeleteShareGroupOffsetsRequestTopic(topic)]
    wire.ask("delete with members", DeleteShareGroupOffsetsRequest(group, gone), 0)
    one.fetch("ends its session", epoch=-1)
    wire.quiet(beat(group, "a", -1), 1)
    other = [AlterShareGroupOffsetsRequestTopic(f"{topic}-none", [AlterShareGroupOffsetsRequestPartition(0, 1)])]
    wire.ask("alter an unknown topic", AlterShareGroupOffsetsRequest(group, other), 0)
    wire.ask("alter", AlterShareGroupOffsetsRequest(group, to), 0)
    wire.ask("altered", DescribeShareGroupOffsetsRequest(both), 1)
    wire.ask("delete", DeleteShareGroupOffsetsRequest(group, gone), 0)
    wire.ask("deleted", DescribeShareGroupOffsetsRequest(both), 1)
    wire.ask("delete the group", DeleteGroupsRequest(groups_names=[group]), 2)
