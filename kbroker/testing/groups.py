"""The groups of an embedded broker as Python values: members, offsets, lag, records in flight.

Owns a test's view of a group. Each access sends a request to the broker; nothing is cached.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kbroker.changes import GROUP_DELETE, GROUP_DELETE_OFFSETS
from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.protocol.compiler import decode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerProtocolAssignment,
)
from kbroker.protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from kbroker.protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse, ListedGroup
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponsePartition,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from kbroker.protocol.messages.streams_groups import StreamsGroupDescribeRequest, StreamsGroupDescribeResponse
from kbroker.share_partition.in_flight import InFlight
from kbroker.testing.asking import EARLIEST, LATEST, Asking
from kbroker.testing.changes import Changeable
from kbroker.testing.missing import MissingError, check, listing, visible

TopicPartition = tuple[str, int]
Answer = TypeVar(
    "Answer",
    DescribeGroupsResponse,
    ConsumerGroupDescribeResponse,
    ShareGroupDescribeResponse,
    StreamsGroupDescribeResponse,
    OffsetFetchResponse,
    DescribeShareGroupOffsetsResponse,
)
MOST_IN_FLIGHT: Final = 10_000
"""The default for the maximum number of runs of records in flight to return."""
_LOADING_S, _PAUSE_S = 10.0, 0.002
"""The maximum time in seconds to wait for a coordinator that still reads its log, and the pause between two tries.

A coordinator reads its log, for instance, after a reset.
"""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    assigned: tuple[TopicPartition, ...]
    """The assigned partitions, in order."""


def _member(described: Any, instance_id: str | None, assigned: Iterable[TopicPartition]) -> Member:
    return Member(described.member_id, described.client_id, described.client_host, instance_id, tuple(sorted(assigned)))


def _named(assignment: Any) -> Iterator[TopicPartition]:
    """Iterate over the partitions of a member of a consumer or share group."""
    for topic in assignment.topic_partitions:
        for index in topic.partitions:
            yield topic.topic_name, index


class Group(Changeable):
    """One group."""

    def __init__(self, group_id: str, asking: Asking) -> None:
        super().__init__(group_id, asking)
        self.id = group_id

    def __repr__(self) -> str:
        return f"<Group {self.id}>"

    def _ask(self, request: Any, kind: type[Answer]) -> Answer:
        return self._asking.ask_coordinator(self.id, request, kind, lambda answer: answer.groups[0].error_code)

    def _listed(self) -> ListedGroup | None:
        return self._asking.groups().get(self.id)

    @property
    def state(self) -> str:
        """Kafka's name of the group's state, like "Stable"; "Dead" if the group does not exist."""
        listed = self._listed()
        return "Dead" if listed is None else listed.group_state

    @property
    def coordinator(self) -> int | None:
        """The id of the group's coordinator; None if there is no coordinator, or if no group ever existed."""
        return self._asking.coordinator_of(self.id)

    @property
    def members(self) -> list[Member]:
        """The members of the group."""
        listed = self._listed()
        if listed is None:
            return []
        members = {"consumer": self._consumer_members, "share": self._share_members, "streams": self._streams_members}
        return members.get(listed.group_type.lower(), self._classic_members)()

    def _classic_members(self) -> list[Member]:
        (group,) = self._ask(DescribeGroupsRequest(groups=[self.id]), DescribeGroupsResponse).groups
        return [
            Member(
                each.member_id,
                each.client_id,
                each.client_host,
                each.group_instance_id,
                _assigned(each.member_assignment) if group.protocol_type == "consumer" else (),
            )
            for each in group.members
        ]

    def _consumer_members(self) -> list[Member]:
        request = ConsumerGroupDescribeRequest(group_ids=[self.id])
        (group,) = self._ask(request, ConsumerGroupDescribeResponse).groups
        return [_member(each, each.instance_id, _named(each.assignment)) for each in group.members]

    def _share_members(self) -> list[Member]:
        request = ShareGroupDescribeRequest(group_ids=[self.id])
        (group,) = self._ask(request, ShareGroupDescribeResponse).groups
        return [_member(each, None, _named(each.assignment)) for each in group.members]

    def _streams_members(self) -> list[Member]:
        """Return the members, with the source partitions of their active tasks."""
        request = StreamsGroupDescribeRequest(group_ids=[self.id])
        (group,) = self._ask(request, StreamsGroupDescribeResponse).groups
        sources: dict[str, list[str]] = {
            each.subtopology_id: [*each.source_topics, *(topic.name for topic in each.repartition_source_topics)]
            for each in (group.topology.subtopologies or () if group.topology else ())
        }
        return [
            _member(
                each,
                each.instance_id,
                (
                    (topic, index)
                    for task in each.assignment.active_tasks
                    for topic in sources.get(task.subtopology_id, ())
                    for index in task.partitions
                ),
            )
            for each in group.members
        ]

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The committed offsets. For a share group, the start offsets: all records below them are done."""
        if self._is_share():
            begun = {place: each.start_offset for place, each in self._share_offsets().items()}
            begun |= {(each.topic, each.partition): each.start_offset for each in self._asking.shares_in_use(self.id)}
            return {place: offset for place, offset in begun.items() if offset >= 0}
        if not self._asking.partitions_of(OFFSETS_TOPIC):  # no group has existed yet, so there is no coordinator
            return {}
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(self.id, topics=None)])
        deadline = time.monotonic() + _LOADING_S
        (group,) = self._ask(request, OffsetFetchResponse).groups
        while group.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            (group,) = self._ask(request, OffsetFetchResponse).groups
        if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(group.error_code, f"group {self.id}")
        return {
            (self._asking.name_of(topic.topic_id) or topic.name, each.partition_index): each.committed_offset
            for topic in group.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    def _is_share(self) -> bool:
        return self._asking.type_of(self.id) == "share"

    def _share_offsets(self) -> dict[TopicPartition, DescribeShareGroupOffsetsResponsePartition]:
        """Return the stored start offsets and lags. Both are -1 where nothing is stored yet."""
        request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(self.id, topics=None)])
        (group,) = self._ask(request, DescribeShareGroupOffsetsResponse).groups
        check(group.error_code, f"group {self.id}", group.error_message)
        return {
            (topic.topic_name, each.partition_index): each
            for topic in group.topics
            for each in topic.partitions
            if not each.error_code
        }

    def in_flight(
        self, topic: str | None = None, partition: int | None = None, *, count: int = MOST_IN_FLIGHT
    ) -> list[InFlight]:
        """Return at most `count` runs of a share group's records in flight, in order. A run has records of one state.

        Records are in flight from the start offset to the last delivered record. This includes a record that is done
        while an earlier record is not done. The result is empty while no member has a session, and for a group of
        another type.

        Raises KeyError for a topic that does not exist (yet).
        """
        if topic is not None and not self._asking.partitions_of(topic):
            raise MissingError("topic", topic, visible(self._asking.state))
        shares = self._asking.shares_in_use(self.id, count, topic, partition)
        return [each for one in shares for each in one.in_flight]

    def lag(self, topic: str | None = None) -> int:
        """Return the group's lag: the sum, over its partitions, of the end offset minus the committed offset.

        For a share group, the lag is the number of offsets, from the start offsets on, that are not done.

        Without `topic` the sum covers all topics with a committed offset or an assigned partition. A partition without
        a committed offset counts from its beginning. Raises KeyError for a topic that does not exist (yet). Without
        `topic` it also raises KeyError for a group that does not exist, because its topics are unknown.
        """
        if topic is not None and not self._asking.partitions_of(topic):
            raise MissingError("topic", topic, visible(self._asking.state))
        offsets = self.offsets
        topics = {name for name, _ in offsets} | {name for each in self.members for name, _ in each.assigned}
        if topic is None and not topics and self._listed() is None:
            raise MissingError("group", self.id, self._asking.groups())
        partitions = [
            (name, index)
            for name in (topics if topic is None else {topic})
            for index in range(self._asking.partitions_of(name))
        ]
        ends = self._asking.offsets_at(partitions, LATEST)
        begun = self._asking.offsets_at([each for each in partitions if each not in offsets], EARLIEST)
        lags = {each: ends.get(each, 0) - offsets.get(each, begun.get(each, 0)) for each in partitions}
        if self._is_share():
            lags = self._without_done(lags)
        return sum(max(0, each) for each in lags.values())

    def _without_done(self, lags: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the lags of a share group's partitions. Done records after the start offset do not count."""
        stored = {place: each.lag for place, each in self._share_offsets().items() if each.lag >= 0}
        done = {(each.topic, each.partition): each.done for each in self._asking.shares_in_use(self.id)}
        return {place: lag - done[place] if place in done else stored.get(place, lag) for place, lag in lags.items()}

    def delete(self) -> None:
        """Delete the group and its committed offsets. The group must have no members. Raises MissingError, ApiError."""
        self.change(GROUP_DELETE)

    def delete_offsets(self, topic: str, *more: str) -> None:
        """Delete the committed offsets of topics, given as "orders" or "orders:0,1". Raises MissingError, ApiError."""
        topics = [topic, *more]
        if not all(isinstance(each, str) for each in topics):
            raise TypeError(f"a topic is a str like 'orders' or 'orders:0,1', not {topics!r}")
        self.change(GROUP_DELETE_OFFSETS, topic=topics)


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Read an assignment of the classic protocol, whose first two bytes are its version."""
    if len(data) < 2:
        return ()
    found = decode(ConsumerProtocolAssignment, 0, memoryview(data)[2:])
    return tuple(sorted((each.topic, index) for each in found.assigned_partitions for index in each.partitions))


class Groups(Mapping[str, Group]):
    """The groups by id. A test may also inspect a group that does not exist (yet): it is "Dead" and has no members.

    `"billing" in broker.groups` is true only for a group that exists.
    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    def __getitem__(self, group_id: str) -> Group:
        return Group(group_id, self._asking)

    def __repr__(self) -> str:
        return listing("Groups", self)

    def __contains__(self, group_id: object) -> bool:
        return group_id in list(self)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._asking.groups()))

    def __len__(self) -> int:
        return sum(1 for _ in self)
