"""The latest offsets of partitions on this broker and on other brokers."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace

from kbroker.broker.latest_offsets import LatestOffsets
from kbroker.broker.stuck_groups import ENDS_MS, StuckGroups
from kbroker.clock import SystemClock
from kbroker.cluster_state import ClusterState, PartitionState, TopicState
from kbroker.group_coordinator.groups.store import Departure
from kbroker.group_coordinator.stuck_offsets import OWNERS
from kbroker.long_work import in_slices
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.logs import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

E = ErrorCode
HERE = 1


class Brokers:
    """Broker 1, and the other brokers' answers: by broker and partition, a code and an offset; None for no answer."""

    def __init__(self, leaders, answers):
        partitions = tuple(PartitionState((1, 2, 3), (1, 2, 3), each, 0) for each in leaders)
        self.state = ClusterState("c").with_topic(TopicState("t", b"t" * 16, partitions))
        self.answers = answers
        self.asked = []

    def leader(self, _topic, index):
        if index == 9:
            raise ApiError(E.NOT_LEADER_OR_FOLLOWER)

        async def readable_end(_now_ms):
            return 100 + index

        return SimpleNamespace(log=SimpleNamespace(readable_end=readable_end))

    async def ask(self, node_id, request, version, answer, timeout_ms):
        assert timeout_ms == 1000
        request = decode(ListOffsetsRequest, version, encode(request, version))
        (topic,) = request.topics
        self.asked.append((node_id, topic.name, [(e.partition_index, e.timestamp) for e in topic.partitions]))
        found = self.answers[node_id]
        if found is None:
            raise PeerUnavailable("gone")
        parts = [ListOffsetsPartitionResponse(at, code, offset=offset) for at, (code, offset) in found.items()]
        return decode(
            answer, version, encode(ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", parts)]), version)
        )

    def of(self, *indexes, alone=False):
        offsets = LatestOffsets(HERE, self, SystemClock(), lambda: self.state, None if alone else self, 1000)
        return asyncio.run(offsets.of("t", indexes))


def test_each_leader_is_asked_once_and_every_partition_has_an_answer():
    brokers = Brokers([1, 2, 2, 3, -1, 2], {2: {1: (0, 7), 2: (E.NOT_LEADER_OR_FOLLOWER, -1), 5: (9999, -1)}, 3: None})
    assert brokers.of(0, 1, 2, 3, 4, 5, 6) == {
        0: (E.NONE, 100),
        1: (E.NONE, 7),
        2: (E.NOT_LEADER_OR_FOLLOWER, -1),
        3: (E.LEADER_NOT_AVAILABLE, -1),
        4: (E.LEADER_NOT_AVAILABLE, -1),
        5: (E.UNKNOWN_SERVER_ERROR, -1),
        6: (E.LEADER_NOT_AVAILABLE, -1),
    }
    assert brokers.asked == [(2, "t", [(1, -1), (2, -1), (5, -1)]), (3, "t", [(3, -1)])]


def test_a_node_alone_answers_by_itself():
    brokers = Brokers([1, -1], {})
    assert brokers.of(0, 1, 9, alone=True) == {0: (E.NONE, 100), 1: (E.NONE, 101), 9: (E.NOT_LEADER_OR_FOLLOWER, -1)}
    assert brokers.asked == []


def test_leaders_of_several_topics_are_asked_at_once_with_one_deadline():
    brokers = Brokers([1, 2, 3], {})
    brokers.state = brokers.state.with_topic(TopicState("u", b"u" * 16, brokers.state.topics["t"].partitions))
    asked = {}

    async def ask(node_id, request, _version, _answer, timeout_ms):
        asked[node_id] = [(topic.name, [each.partition_index for each in topic.partitions]) for topic in request.topics]
        if node_id == 2:
            await asyncio.sleep(timeout_ms / 1000)
            raise PeerUnavailable("dead")
        assert asked.keys() == {2, 3}, "nobody waits for the dead one"
        parts = [ListOffsetsPartitionResponse(2, 0, offset=7), ListOffsetsPartitionResponse(5, 0, offset=1)]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(topic, parts) for topic in ("t", "u")])

    brokers.ask = ask
    offsets = LatestOffsets(HERE, brokers, SystemClock(), lambda: brokers.state, brokers, 60_000)
    keys = [("t", 0), ("t", 1), ("u", 1), ("t", 2), ("u", 2)]
    found = asyncio.run(asyncio.wait_for(in_slices(offsets.of_all(keys, 1)), 10))
    assert found == {
        ("t", 0): (E.NONE, 100),
        ("t", 1): (E.LEADER_NOT_AVAILABLE, -1),
        ("u", 1): (E.LEADER_NOT_AVAILABLE, -1),
        ("t", 2): (E.NONE, 7),
        ("u", 2): (E.NONE, 7),
    }
    assert asked == {2: [("t", [1]), ("u", [1])], 3: [("t", [2]), ("u", [2])]}


def test_the_ends_of_all_that_members_left_are_asked_for_together():
    brokers = Brokers([2, 3], {})
    calls = []

    class Latest:
        async def of_all(self, keys, timeout_ms):
            calls.append((list(keys), timeout_ms))
            return dict.fromkeys(calls[-1][0], (E.NONE, 5))

    held = {"t": {index: (0, SimpleNamespace(offset=4 + index)) for index in (0, 1)}}
    departed = deque(Departure("g", {b"t" * 16: [0, 1]}) for _ in range(OWNERS))
    shard = SimpleNamespace(
        groups=SimpleNamespace(departed=departed), offsets=SimpleNamespace(of_group=lambda _group: (held, {}))
    )
    groups = SimpleNamespace(loaded=lambda: [shard])
    search = StuckGroups(HERE, groups, None, Latest(), None, lambda: brokers.state, SystemClock(), brokers)
    asyncio.run(in_slices(search._note_departures()))
    assert calls == [([("t", 0), ("t", 1)] * OWNERS, ENDS_MS)]
    assert [(each.partition, each.offset, each.times) for each in search.stuck()["g"]] == [(0, 4, OWNERS)]
