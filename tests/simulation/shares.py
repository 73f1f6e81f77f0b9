"""Members of a share group in a simulated cluster: a record whose acceptance was confirmed is never delivered again.

A replaced leader that does not know it yet delivers from its memory, as Apache Kafka's does; it refuses its members'
acknowledgements. So only a leader of the newest epoch that knows it is judged.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any

from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kbroker.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from kbroker.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest, ShareFetchResponse
from kbroker.protocol.messages.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from tests.simulation.book import PARTITIONS, TOPIC, Client, E
from tests.simulation.violation import Violation

GROUP = "workers"
LIMIT = 5
"""share.delivery.count.limit"""
_ACCEPT, _RELEASE = 1, 2
_REJOIN = frozenset({E.UNKNOWN_MEMBER_ID, E.FENCED_MEMBER_EPOCH})
_NO_SESSION = frozenset({E.SHARE_SESSION_NOT_FOUND, E.INVALID_SHARE_SESSION_EPOCH, E.SHARE_SESSION_LIMIT_REACHED})
_NOT_HELD = frozenset({E.INVALID_RECORD_STATE, E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_LEADER_OR_FOLLOWER})
"""Errors of an acknowledgement whose member's lock or session has ended, or whose leader has changed."""


@dataclass
class Story:
    """What the brokers answered to all members."""

    moments: Any = field(default_factory=itertools.count)
    accepted: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition, offset) -> the time when its acceptance was confirmed."""


class ShareMember(Client):
    """Joins a share group, and accepts or releases the records that it receives, one partition after the other."""

    _VANISHES_EVERY = 40

    def __init__(self, *args: Any, story: Story) -> None:
        super().__init__(*args)
        self._story = story
        self._member_id = ""
        self._epoch = 0
        self._topic_id = b""
        self._has_partitions = False
        self._lag: str = "the lag of a share group is unknown"

    def missing(self) -> str:
        """Return a text if records are neither accepted nor archived; empty if there are none."""
        return self._lag

    async def work(self) -> None:
        while not self.book.finished:
            if not self._topic_id:
                await self._learn_topic()
            elif not await self._beat() or not self._has_partitions:
                await self.rest(0.5)
            else:
                for index in range(PARTITIONS):
                    await self._consume(index)
                await self._look()
                if not self.random.randrange(self._VANISHES_EVERY):
                    self._member_id = ""  # the old member is removed once its session has timed out
                await self.rest(0.3)

    async def _learn_topic(self) -> None:
        request = MetadataRequest([MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
        try:
            found = await self.ask(self.random.choice(self._brokers), request, 10, MetadataResponse)
            if not found.topics[0].error_code:
                self._topic_id = bytes(found.topics[0].topic_id)
        except PeerUnavailable:
            pass
        await self.rest()

    async def _beat(self) -> bool:
        """Send a heartbeat; return whether it succeeded."""
        if not self._member_id:
            self._member_id, self._epoch = str(uuid.UUID(int=self.random.getrandbits(128))), 0
        names = None if self._epoch else [TOPIC]
        request = ShareGroupHeartbeatRequest(GROUP, self._member_id, self._epoch, None, names)
        answer = await self.of_coordinator(GROUP, 0, request, 1, ShareGroupHeartbeatResponse)
        if answer is None:
            return False
        if answer.error_code in _REJOIN:
            self._epoch = 0
            return False
        if answer.error_code:
            self.coordinator = -1
            self.expect_again(answer.error_code, "ShareGroupHeartbeat")
            return False
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._has_partitions = bool(answer.assignment.topic_partitions)
        return True

    async def _consume(self, index: int) -> None:
        """Fetch from a partition in a new session, and acknowledge."""
        leader, began = self.leaders.get((TOPIC, index), -1), next(self._story.moments)
        epoch = self.book.judge.leads(leader, TOPIC, index)
        request = ShareFetchRequest(
            group_id=GROUP,
            member_id=self._member_id,
            share_session_epoch=0,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=self.random.choice([5, 50, 500]),
            batch_size=500,
            topics=[FetchTopic(self._topic_id, [FetchPartition(index, [])])],
        )
        answer = await self.of_leader(TOPIC, index, request, 2, ShareFetchResponse)
        if answer is None:
            return
        if answer.error_code:
            if answer.error_code not in _NO_SESSION:
                self.expect_again(answer.error_code, "ShareFetch")
            return
        if self.book.judge.leads(leader, TOPIC, index) != epoch:
            epoch = -1
        session = itertools.count(1)
        for topic in answer.responses:
            for partition in topic.partitions:
                if partition.error_code:
                    self.leaders.pop((TOPIC, index), None)
                    self.expect_again(partition.error_code, "ShareFetch")
                    return
                for each in partition.acquired_records:
                    self._delivered(index, each, began, epoch)
                for each in partition.acquired_records:
                    if not await self._acknowledge(leader, index, each.first_offset, each.last_offset, next(session)):
                        return

    def _delivered(self, index: int, got: Any, began: int, epoch: int) -> None:
        self.book.counts["shared records"] += got.last_offset - got.first_offset + 1
        if got.delivery_count > LIMIT:
            raise Violation(f"share: {index} {got.first_offset} is delivered with count {got.delivery_count}")
        for offset in range(got.first_offset, got.last_offset + 1):
            at = self._story.accepted.get((index, offset))
            if at is not None and at < began and epoch >= 0:
                raise Violation(f"share: {offset} of {index} was accepted, and comes again in the newest epoch {epoch}")

    async def _acknowledge(self, leader: int, index: int, first: int, last: int, session: int) -> bool:
        """Accept or release records; return whether the session continues."""
        kind = _ACCEPT if self.random.random() < 0.85 else _RELEASE
        batches = [AcknowledgementBatch(first, last, [kind])]
        request = ShareAcknowledgeRequest(
            group_id=GROUP,
            member_id=self._member_id,
            share_session_epoch=session,
            topics=[AcknowledgeTopic(self._topic_id, [AcknowledgePartition(index, batches)])],
        )
        try:
            answer = await self.ask(leader, request, 2, ShareAcknowledgeResponse, 20_000)
        except PeerUnavailable:
            self.leaders.pop((TOPIC, index), None)
            return False
        if answer.error_code:
            if answer.error_code not in _NO_SESSION:
                self.expect_again(answer.error_code, "ShareAcknowledge")
            return False
        code = answer.responses[0].partitions[0].error_code
        if code:
            if code not in _NOT_HELD:
                self.expect_again(code, "ShareAcknowledge")
            return False
        if kind == _ACCEPT:
            self.book.counts["accepted"] += last - first + 1
            now = next(self._story.moments)
            for offset in range(first, last + 1):
                self._story.accepted.setdefault((index, offset), now)
        return True

    async def _look(self) -> None:
        """Check the group's lag, once no more records arrive."""
        if not self.book.over:
            return
        topics = [DescribeShareGroupOffsetsRequestTopic(TOPIC, list(range(PARTITIONS)))]
        request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(GROUP, topics)])
        answer = await self.of_coordinator(GROUP, 0, request, 1, DescribeShareGroupOffsetsResponse)
        if answer is None:
            return
        if answer.groups[0].error_code:
            self.coordinator = -1
            return
        found = answer.groups[0].topics[0].partitions
        left = {each.partition_index: each.lag for each in found if each.start_offset != -1 and each.lag}
        self._lag = f"the share group is behind: {left}" if left else ""
