"""Clients of a simulated cluster, which keep books of what they are told and judge it as they hear it.

Owns what producers were acknowledged, what consumers read, and what a group has committed. They speak the protocol over
the brokers' own way to each other (peers/connection.py), and ask again whatever was not answered. Never harms a broker.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kbroker.peers.connection import TcpPeer, TcpPeers
from kbroker.peers.interface import PeerGone
from kbroker.protocol.control_records import read_marker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from kbroker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kbroker.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kbroker.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from kbroker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from kbroker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from kbroker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.records import build_batch, iter_batches, read_records
from tests.simulation.brokers import PORT
from tests.simulation.invariants import Violation
from tests.simulation.loop import Life, SimLoop

TOPIC = "records"
PAIRED = "paired"
PARTITIONS = 3
GROUP = "readers"
_ASK_MS = 4000
_PRODUCE_MS = 3000
_BEHIND_S = 20.0
_TRANSACTION_MS = 900_000
"""No transaction is to be ended by its time: that is tried elsewhere."""
E = ErrorCode
AGAIN = frozenset(
    {
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.LEADER_NOT_AVAILABLE,
        E.NOT_LEADER_OR_FOLLOWER,
        E.REQUEST_TIMED_OUT,
        E.BROKER_NOT_AVAILABLE,
        E.REPLICA_NOT_AVAILABLE,
        E.NETWORK_EXCEPTION,
        E.COORDINATOR_LOAD_IN_PROGRESS,
        E.COORDINATOR_NOT_AVAILABLE,
        E.NOT_COORDINATOR,
        E.NOT_ENOUGH_REPLICAS,
        E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        E.KAFKA_STORAGE_ERROR,
        E.FENCED_LEADER_EPOCH,
        E.UNKNOWN_LEADER_EPOCH,
        E.CONCURRENT_TRANSACTIONS,
        E.NOT_CONTROLLER,
        E.UNSTABLE_OFFSET_COMMIT,
        E.INVALID_REPLICATION_FACTOR,
        E.UNKNOWN_TOPIC_ID,
    }
)


@dataclass
class Book:
    """What the clients of a world were told."""

    now_ms: Any
    over: bool = False
    """Whether producers are to come to an end."""
    finished: bool = False
    """Whether consumers are."""
    counts: Counter[str] = field(default_factory=Counter)
    acked: dict[tuple[int, str], dict[int, int]] = field(default_factory=dict)
    """(partition, producer) -> number -> offset, -1 where the answer did not tell."""
    read: dict[int, int] = field(default_factory=dict)
    """Partition -> up to where a consumer has read."""
    transactions: dict[int, str] = field(default_factory=dict)
    """Number -> what became of it, as its producer knows."""


class Unverified(Exception):  # noqa: N818
    """A leader did not find a partition in the transaction, or another epoch: it has to be aborted.

    One that was replaced, has not heard of it, and was the coordinator as well, asks itself; Apache Kafka's does, too.
    """


class Client:
    """One client: its ways to the brokers, and who leads what as far as it knows."""

    def __init__(self, loop: SimLoop, random: Random, book: Book, name: str, brokers: list[int]) -> None:
        self.loop, self.random, self.book, self.name = loop, random, book, name
        self.life = Life(name, 1)
        self._brokers = brokers
        self._peers: dict[int, TcpPeer] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self.coordinator = -1

    def begin(self) -> asyncio.Task[None]:
        return self.loop.create_task(self.work(), context=self.life.context)

    async def work(self) -> None:
        raise NotImplementedError

    async def ask(self, broker: int, request: Any, version: int, answer: Any, timeout_ms: float = _ASK_MS) -> Any:
        peer = self._peers.get(broker)
        if peer is None:
            peer = self._peers[broker] = TcpPeers().peer(f"broker{broker}", PORT, self.name)
        return await peer.ask(request, version, answer, timeout_ms)

    async def rest(self, seconds: float = 0.1) -> None:
        await asyncio.sleep(self.random.uniform(0.2, 1) * seconds)

    async def refresh(self, topic: str) -> None:
        """Ask some broker who leads."""
        request = MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        try:
            found = await self.ask(self.random.choice(self._brokers), request, 9, MetadataResponse)
        except PeerGone:
            await self.rest()
            return
        for each in found.topics[0].partitions:
            key = topic, each.partition_index
            if each.leader_epoch >= self._epochs.get(key, -1):  # as Java's clients: who is behind is not believed
                self.leaders[key], self._epochs[key] = each.leader_id, each.leader_epoch
        await self.rest()

    async def of_leader(self, topic: str, index: int, request: Any, version: int, answer: Any) -> Any:
        """Ask a partition's leader once; None where nothing came of it."""
        leader = self.leaders.get((topic, index), -1)
        if leader < 0:
            await self.refresh(topic)
            return None
        try:
            return await self.ask(leader, request, version, answer)
        except PeerGone:
            self.leaders.pop((topic, index), None)
            await self.rest()
            return None

    async def of_coordinator(self, key: str, kind: int, request: Any, version: int, answer: Any) -> Any:
        """Ask a coordinator once; None where nothing came of it."""
        try:
            if self.coordinator < 0:
                asked = FindCoordinatorRequest(key=key, key_type=kind)
                found = await self.ask(self.random.choice(self._brokers), asked, 3, FindCoordinatorResponse)
                if found.error_code:
                    self.expect_again(found.error_code, "FindCoordinator")
                    await self.rest()
                    return None
                self.coordinator = found.node_id
            return await self.ask(self.coordinator, request, version, answer)
        except PeerGone:
            self.coordinator = -1
            await self.rest()
            return None

    def expect_again(self, code: int, what: str) -> None:
        """Raise Violation for an error that a healthy client is never to see."""
        if code not in AGAIN:
            raise Violation(f"{self.name}: {what} was answered {ErrorCode(code).name}")
        self.book.counts[f"told {ErrorCode(code).name}"] += 1


class Creator(Client):
    """Creates the topics."""

    async def work(self) -> None:
        for topic in (TOPIC, PAIRED):
            while True:
                request = CreateTopicsRequest([CreatableTopic(topic, PARTITIONS, 3, [], [])], timeout_ms=5000)
                try:
                    answer = await self.ask(self.random.choice(self._brokers), request, 5, CreateTopicsResponse)
                except PeerGone:
                    await self.rest()
                    continue
                code = answer.topics[0].error_code
                if code in (E.NONE, E.TOPIC_ALREADY_EXISTS):
                    break
                self.expect_again(code, "CreateTopics")
                await self.rest()


class Producer(Client):
    """Idempotent, one batch under way at a time, asked again until it is acknowledged."""

    producer_id = producer_epoch = -1

    async def work(self) -> None:
        await self.begin_producer()
        next_number = [0] * PARTITIONS
        while not self.book.over:
            index = self.random.randrange(PARTITIONS)
            count = self.random.choice((1, 1, 1, 2, 5))
            first = next_number[index]
            next_number[index] += count
            await self._deliver(index, first, count)
            await self.rest(self.random.expovariate(1 / 0.1))

    async def begin_producer(self, transactional_id: str | None = None) -> None:
        while True:
            request = InitProducerIdRequest(transactional_id, _TRANSACTION_MS)
            if transactional_id is None:
                try:
                    answer = await self.ask(self.random.choice(self._brokers), request, 4, InitProducerIdResponse)
                except PeerGone:
                    await self.rest()
                    continue
            else:
                answer = await self.of_coordinator(transactional_id, 1, request, 4, InitProducerIdResponse)
                if answer is None:
                    continue
            if not answer.error_code:
                self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
                return
            self.coordinator = -1
            self.expect_again(answer.error_code, "InitProducerId")
            await self.rest()

    async def _deliver(self, index: int, first: int, count: int) -> None:
        values = [b"%s:%d" % (self.name.encode(), first + each) for each in range(count)]
        padding = bytes(self.random.randrange(400))
        base = await self.append(TOPIC, index, first, [value + b":" + padding for value in values])
        known = self.book.acked.setdefault((index, self.name), {})
        for each in range(count):
            known[first + each] = base + each if base >= 0 else -1
        self.book.counts["acknowledged"] += count

    async def append(
        self, topic: str, index: int, sequence: int, values: list[bytes], transactional_id: str | None = None
    ) -> int:
        """Have a batch acknowledged; return its offset, -1 where the answer does not tell."""
        now = self.book.now_ms()
        batch = build_batch(
            [(now, None, value, ()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
            transactional=transactional_id is not None,
        )
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(index, batch)])]
        request = ProduceRequest(transactional_id, -1, _PRODUCE_MS, data)
        while True:
            answer = await self.of_leader(topic, index, request, 9, ProduceResponse)
            if answer is None:
                continue
            found = answer.responses[0].partition_responses[0]
            if found.error_code == E.DUPLICATE_SEQUENCE_NUMBER:
                return -1
            if not found.error_code:
                return int(found.base_offset)
            if found.error_code in (E.INVALID_TXN_STATE, E.INVALID_PRODUCER_EPOCH) and transactional_id is not None:
                await self.refresh(topic)
                raise Unverified
            self.expect_again(found.error_code, f"Produce of {sequence} to {topic}-{index}")
            await self.refresh(topic)


class Reader(Client):
    """Reads a partition from its start up to the high watermark, and judges order and completeness as it goes."""

    def __init__(self, *args: Any, topic: str, index: int, committed: bool = False) -> None:
        super().__init__(*args)
        self.topic, self.index, self.isolation = topic, index, int(committed)
        self.position = 0
        self.offsets: dict[str, list[int]] = {}
        """By producer: the offset of each of its records, whose numbers are 0, 1, 2, ..."""
        self.mark = -1

    async def work(self) -> None:
        while not self.book.finished:
            wanted = FetchPartition(partition=self.index, fetch_offset=self.position, partition_max_bytes=8192)
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                isolation_level=self.isolation,
                topics=[FetchTopic(topic=self.topic, partitions=[wanted])],
            )
            answer = await self.of_leader(self.topic, self.index, request, 12, FetchResponse)
            if answer is None:
                continue
            found = answer.responses[0].partitions[0]
            if found.error_code:
                self.expect_again(found.error_code, f"Fetch of {self.topic}-{self.index} at {self.position}")
                await self.refresh(self.topic)
                continue
            self.mark = found.high_watermark
            if found.records:
                self.take(memoryview(found.records), found)
            await self.rest(0.05)

    def take(self, records: memoryview, found: Any) -> None:
        coming = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
        aborted: set[int] = set()
        for position, header in iter_batches(records):
            if header.last_offset < self.position:
                continue
            batch = records[position : position + header.size]
            while coming and coming[0][0] <= header.last_offset:
                aborted.add(coming.pop(0)[1])
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.commit:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                for record in read_records(batch, max_bytes=1 << 20):
                    if record.offset >= self.position:
                        self.hear(record.offset, bytes(record.value or b""))
            self.position = header.last_offset + 1
        if self.topic == TOPIC:
            self.book.read[self.index] = max(self.position, self.book.read.get(self.index, 0))

    def hear(self, offset: int, value: bytes) -> None:
        name, number = value.split(b":")[:2]
        offsets = self.offsets.setdefault(name.decode(), [])
        if int(number) != len(offsets):
            what = "twice, or out of order" if int(number) < len(offsets) else "and some before it are missing"
            raise Violation(f"{self.topic}-{self.index} at {offset}: {value[:30]!r} {what}")
        offsets.append(offset)
        self.book.counts["read"] += 1

    def missing(self) -> str:
        """Return what was acknowledged and has not been read; empty when nothing is."""
        for (index, name), numbers in self.book.acked.items():
            if index != self.index or self.topic != TOPIC or not numbers:
                continue
            offsets = self.offsets.get(name, [])
            for number, offset in numbers.items():
                if number >= len(offsets):
                    return f"{self.topic}-{index}: {name}:{number}, acknowledged at {offset}, is not there"
                if offset not in (-1, offsets[number]):
                    return f"{self.topic}-{index}: {name}:{number} is at {offsets[number]}, was told {offset}"
        return ""


class Committer(Client):
    """Commits what has been read for a group, and looks that it never goes back.

    A coordinator that was replaced and has not heard of it tells what it knows, as Apache Kafka's does: what is behind
    is asked for again, and must not stay so.
    """

    behind_since: float | None = None

    def missing(self) -> str:
        """Return that committed offsets are behind; empty when they are not."""
        return "" if self.behind_since is None else f"committed offsets are behind since {self.behind_since:.3f}"

    async def work(self) -> None:
        acked: dict[int, int] = {}
        while not self.book.finished:
            await self.rest(0.3)
            offsets = dict(self.book.read)
            if offsets and await self._commit(offsets):
                acked = offsets
                self.book.counts["commits"] += 1
            await self._look(acked)

    async def _commit(self, offsets: dict[int, int]) -> bool:
        parts = [
            OffsetCommitRequestPartition(index, offset, committed_metadata="") for index, offset in offsets.items()
        ]
        request = OffsetCommitRequest(GROUP, topics=[OffsetCommitRequestTopic(TOPIC, partitions=parts)])
        answer = await self.of_coordinator(GROUP, 0, request, 7, OffsetCommitResponse)
        if answer is None:
            return False
        codes = [each.error_code for each in answer.topics[0].partitions]
        if any(codes):
            self.coordinator = -1
            for code in filter(None, codes):
                self.expect_again(code, "OffsetCommit")
            return False
        return True

    async def _look(self, acked: dict[int, int]) -> None:
        topics = [OffsetFetchRequestTopic(TOPIC, list(range(PARTITIONS)))]
        answer = await self.of_coordinator(GROUP, 0, OffsetFetchRequest(GROUP, topics), 6, OffsetFetchResponse)
        if answer is None:
            return
        if answer.error_code:
            self.coordinator = -1
            self.expect_again(answer.error_code, "OffsetFetch")
            return
        behind = ""
        for each in answer.topics[0].partitions if answer.topics else ():
            known = acked.get(each.partition_index, -1)
            if each.error_code:
                self.expect_again(each.error_code, "OffsetFetch")
                return
            if each.committed_offset < known:
                behind = f"{each.partition_index} was committed at {known}, and is at {each.committed_offset}"
        if not behind:
            self.behind_since = None
            return
        self.coordinator = -1
        self.book.counts["offsets behind"] += 1
        now = self.loop.time()
        self.behind_since = now if self.behind_since is None else self.behind_since
        if now - self.behind_since > _BEHIND_S:
            raise Violation(f"R12: {behind}")


class Paired(Producer):
    """Transactional: a record in each partition, or in none."""

    ABORTED_EVERY = 4

    async def work(self) -> None:
        await self.begin_producer(self.name)
        sequences = [0] * PARTITIONS
        number = 0
        while not self.book.over:
            self.book.transactions[number] = "unknown"
            committed = False
            try:
                await self._add()
                for index in range(PARTITIONS):
                    await self.append(PAIRED, index, sequences[index], [b"%d" % number], self.name)
                    sequences[index] += 1
                committed = self.random.randrange(self.ABORTED_EVERY) > 0
                await self._end(committed)
            except Unverified:
                self.book.counts["aborted as not verified"] += 1
                await self.begin_producer(self.name)  # which aborts what is open
                sequences = [0] * PARTITIONS
            self.book.transactions[number] = "committed" if committed else "aborted"
            self.book.counts["transactions"] += 1
            number += 1
            await self.rest(0.6)

    async def _add(self) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(PAIRED, list(range(PARTITIONS)))],
        )
        while True:
            answer = await self.of_coordinator(self.name, 1, request, 3, AddPartitionsToTxnResponse)
            if answer is None:
                continue
            codes = [
                each.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            ]
            if not any(codes):
                return
            await self._again(codes, "AddPartitionsToTxn")

    async def _end(self, committed: bool) -> None:
        request = EndTxnRequest(self.name, self.producer_id, self.producer_epoch, committed)
        while True:
            answer = await self.of_coordinator(self.name, 1, request, 3, EndTxnResponse)
            if answer is None:
                continue
            if not answer.error_code:
                return
            await self._again([answer.error_code], "EndTxn")

    async def _again(self, codes: list[int], what: str) -> None:
        for code in filter(None, codes):
            if code not in (E.CONCURRENT_TRANSACTIONS, E.OPERATION_NOT_ATTEMPTED):
                self.coordinator = -1
            if code != E.OPERATION_NOT_ATTEMPTED:
                self.expect_again(code, what)
        await self.rest()


class PairedReader(Reader):
    """Reads what is committed of the transactions."""

    def __init__(self, *args: Any, index: int) -> None:
        super().__init__(*args, topic=PAIRED, index=index, committed=True)
        self.numbers: list[int] = []

    def hear(self, offset: int, value: bytes) -> None:
        number = int(value)
        if self.numbers and number <= self.numbers[-1]:
            raise Violation(f"{PAIRED}-{self.index} at {offset}: transaction {number} after {self.numbers[-1]}")
        self.numbers.append(number)

    def missing(self) -> str:
        known = set(self.numbers)
        for number, outcome in self.book.transactions.items():
            if outcome != "unknown" and (number in known) != (outcome == "committed"):
                return f"{PAIRED}-{self.index}: transaction {number} was {outcome}, and is there: {number in known}"
        return ""
