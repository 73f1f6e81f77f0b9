"""The latest offsets of partitions on this broker and on other brokers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from kbroker.broker.latest_offsets import LatestOffsets
from kbroker.clock import SystemClock
from kbroker.cluster_state import ClusterState, PartitionState, TopicState
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
