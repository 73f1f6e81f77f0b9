"""Administrators of a simulated cluster: they create topics, move partitions, elect leaders and delete topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from kbroker.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)
from kbroker.protocol.records import build_batch, iter_batches, read_records
from tests.simulation.book import FLEETING, LOOSE, MOVED, PAIRED, PARTITIONS, TOPIC, Client, E
from tests.simulation.violation import Violation

REPLICAS = {TOPIC: 3, PAIRED: 3, MOVED: 2, LOOSE: 2, FLEETING: 3}
CONFIGS = {LOOSE: {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}}
_TIMEOUT_MS = 5000
_TRIES = 10
"""How many brokers are asked for the controller, one after the other."""


class Administrator(Client):
    """Sends requests to the broker that may be the controller."""

    controller = -1

    async def of_controller(self, request: Any, version: int, answer: Any) -> Any:
        """Send a request once to the last known controller, or to some broker; return None if nobody answered."""
        if self.controller < 0:
            self.controller = self.random.choice(self._brokers)
        try:
            return await self.ask(self.controller, request, version, answer, 2 * _TIMEOUT_MS)
        except PeerUnavailable:
            self.controller = -1
            await self.rest()
            return None

    def expect_again(self, code: int, what: str) -> None:
        if code == E.NOT_CONTROLLER:
            self.controller = -1
        super().expect_again(code, what)

    async def create(self, topic: str) -> bytes:
        """Create a topic; return its id, empty if another request, ours or another client's, has created it."""
        configs = [CreatableTopicConfig(name, value) for name, value in CONFIGS.get(topic, {}).items()]
        while True:
            wanted = CreatableTopic(topic, PARTITIONS, REPLICAS[topic], [], configs)
            answer = await self.of_controller(
                CreateTopicsRequest([wanted], timeout_ms=_TIMEOUT_MS), 7, CreateTopicsResponse
            )
            if answer is None:
                continue
            found = answer.topics[0]
            if found.error_code == E.TOPIC_ALREADY_EXISTS:
                return b""
            if not found.error_code:
                return bytes(found.topic_id)
            self.expect_again(found.error_code, "CreateTopics")
            await self.rest()


class Creator(Administrator):
    """Creates the topics that stay."""

    async def work(self) -> None:
        for topic in (TOPIC, PAIRED, MOVED, LOOSE):
            await self.create(topic)


class Mover(Administrator):
    """Moves the partitions of a topic to other brokers, cancels some moves, and has preferred leaders elected."""

    async def work(self) -> None:
        while not self.book.over:
            await asyncio.sleep(self.random.expovariate(1 / 2))
            index = self.random.randrange(PARTITIONS)
            if not self.random.randrange(4):
                await self._elect(self.random.choice((TOPIC, PAIRED, MOVED)), index)
                continue
            await self._move(index, self.random.sample(self._brokers, self.random.choice((2, 2, 3))))
            if not self.random.randrange(3):
                await self.rest(1.0)
                await self._move(index, None)

    async def _move(self, index: int, target: Sequence[int] | None) -> None:
        part = ReassignablePartition(index, None if target is None else list(target))
        request = AlterPartitionReassignmentsRequest(_TIMEOUT_MS, True, [ReassignableTopic(MOVED, [part])])
        for _ in range(_TRIES):
            answer = await self.of_controller(request, 1, AlterPartitionReassignmentsResponse)
            if answer is not None and answer.error_code != E.NOT_CONTROLLER:
                break
            self.controller = -1
        else:
            return
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if not code:
            self.book.counts["moves" if target is not None else "moves cancelled"] += 1
        else:
            self.book.counts[f"moves refused {E(code).name}"] += 1
        if code and code not in (
            E.INVALID_REPLICA_ASSIGNMENT,
            E.NO_REASSIGNMENT_IN_PROGRESS,
            E.UNKNOWN_TOPIC_OR_PARTITION,
        ):
            self.expect_again(code, "AlterPartitionReassignments")

    async def _elect(self, topic: str, index: int) -> None:
        request = ElectLeadersRequest(0, [TopicPartitions(topic, [index])], _TIMEOUT_MS)
        answer = await self.of_controller(request, 2, ElectLeadersResponse)
        if answer is None:
            return
        code = answer.error_code
        if not code and answer.replica_election_results:
            code = answer.replica_election_results[0].partition_result[0].error_code
        if not code:
            self.book.counts["elections"] += 1
        elif code not in (E.ELECTION_NOT_NEEDED, E.PREFERRED_LEADER_NOT_AVAILABLE, E.UNKNOWN_TOPIC_OR_PARTITION):
            self.expect_again(code, "ElectLeaders")


class Recreator(Administrator):
    """Creates a topic, fills it, reads it, deletes it, and creates it again: no old record is ever read (R18)."""

    async def work(self) -> None:
        number = 0
        while not self.book.over:
            number += 1
            topic_id = await self.create(FLEETING)
            if topic_id:
                self._epochs.clear()
                self.leaders.clear()
                for index in range(PARTITIONS):
                    await self._fill(index, number, topic_id)
                self.book.counts["topics created again"] += 1
            await self._delete()

    async def _fill(self, index: int, number: int, topic_id: bytes) -> None:
        """Have records acknowledged, and read them; records that may have been deleted meanwhile are skipped."""
        acked = 0
        for each in range(3):
            batch = build_batch([(self.book.now_ms(), None, b"%d:%d" % (number, each), ())])
            request = ProduceRequest(
                None, -1, 3000, [TopicProduceData(FLEETING, partition_data=[PartitionProduceData(index, batch)])]
            )
            while not await self._answered(index, request):
                if self.book.over:
                    return
            acked += 1
        found: set[int] = set()
        position = 0
        while len(found) < acked and not self.book.over:
            wanted = FetchPartition(partition=index, fetch_offset=position, partition_max_bytes=8192)
            fetch = FetchRequest(
                max_wait_ms=500, min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=[wanted])]
            )
            answer = await self.of_leader(FLEETING, index, fetch, 13, FetchResponse)
            if answer is None or not answer.responses:
                await self.refresh(FLEETING)
                continue
            part = answer.responses[0].partitions[0]
            if part.error_code:
                if part.error_code != E.INCONSISTENT_TOPIC_ID:
                    self.expect_again(part.error_code, f"Fetch of {FLEETING}-{index}")
                await self.refresh(FLEETING)
                continue
            records = memoryview(part.records or b"")
            for at, header in iter_batches(records):
                for record in read_records(records[at : at + header.size], max_bytes=1 << 20):
                    of, each = bytes(record.value or b"").split(b":")
                    if int(of) != number:
                        raise Violation(f"R18: {FLEETING}-{index} of {number} has a record of {int(of)}")
                    found.add(int(each))
                position = header.last_offset + 1
            if len(found) < acked and part.high_watermark <= position and found and max(found) == acked - 1:
                raise Violation(f"R18: {FLEETING}-{index} of {number} has {sorted(found)}, {acked} were acknowledged")

    async def _answered(self, index: int, request: ProduceRequest) -> bool:
        answer = await self.of_leader(FLEETING, index, request, 9, ProduceResponse)
        if answer is None:
            return False
        code = answer.responses[0].partition_responses[0].error_code
        if code:
            self.expect_again(code, f"Produce to {FLEETING}-{index}")
            await self.refresh(FLEETING)
        return not code

    async def _delete(self) -> None:
        request = DeleteTopicsRequest([DeleteTopicState(FLEETING)], timeout_ms=_TIMEOUT_MS)
        while not self.book.over:
            answer = await self.of_controller(request, 6, DeleteTopicsResponse)
            if answer is None:
                continue
            code = answer.responses[0].error_code
            if code in (E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION):
                return
            self.expect_again(code, "DeleteTopics")
            await self.rest()
