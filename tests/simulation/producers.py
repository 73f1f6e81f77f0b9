"""Producers of a simulated cluster, which note acknowledgements and the outcomes of their transactions."""

from __future__ import annotations

from typing import Any

from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.protocol.records import build_batch
from tests.simulation.book import LOOSE, PAIRED, PARTITIONS, TOPIC, Client, E
from tests.simulation.violation import Violation

_PRODUCE_MS = 3000
_TRANSACTION_MS = 900_000
"""No transaction may time out: other tests try that."""


class Unverified(Exception):  # noqa: N818
    """A leader could not verify a partition in the transaction, or its epoch: the transaction must be aborted.

    A replaced leader that does not know it yet, and was the coordinator as well, asks itself; Apache Kafka's does so,
    too.
    """


class Producer(Client):
    """An idempotent producer with one batch in flight, which it retries until the batch is acknowledged."""

    producer_id = producer_epoch = -1

    def __init__(self, *args: Any, topic: str = TOPIC) -> None:
        super().__init__(*args)
        self.topic = topic

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
                except PeerUnavailable:
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
        base = await self.append(self.topic, index, first, [value + b":" + padding for value in values])
        known = self.book.acked.setdefault((self.topic, index, self.name), {})
        for each in range(count):
            known[first + each] = base + each if base >= 0 else -1
        self.book.counts["acknowledged"] += count

    async def append(
        self, topic: str, index: int, sequence: int, values: list[bytes], transactional_id: str | None = None
    ) -> int:
        """Send a batch until it is acknowledged; return its offset, -1 if the response does not contain it."""
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
                if found.base_offset >= 0:
                    self.book.judge.acknowledged(topic, index, found.base_offset, len(values))
                return int(found.base_offset)
            if found.error_code in (E.INVALID_TXN_STATE, E.INVALID_PRODUCER_EPOCH) and transactional_id is not None:
                await self.refresh(topic)
                raise Unverified
            self.expect_again(found.error_code, f"Produce of {sequence} to {topic}-{index}")
            await self.refresh(topic)


class Paired(Producer):
    """A transactional producer: it writes a record into each partition, or into none."""

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
                await self.begin_producer(self.name)  # which aborts the open transaction
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


class Hasty(Producer):
    """A producer with acks=1, whose topic may lose records instead of refusing them."""

    async def work(self) -> None:
        number = 0
        while not self.book.over:
            index = self.random.randrange(PARTITIONS)
            batch = build_batch([(self.book.now_ms(), None, b"%d" % number, ())])
            data = [TopicProduceData(LOOSE, partition_data=[PartitionProduceData(index, batch)])]
            answer = await self.of_leader(LOOSE, index, ProduceRequest(None, 1, _PRODUCE_MS, data), 9, ProduceResponse)
            number += 1
            if answer is None:
                continue
            code = answer.responses[0].partition_responses[0].error_code
            if not code:
                self.book.counts["acknowledged by the leader alone"] += 1
                await self.rest(0.2)
                continue
            if code in (E.NOT_ENOUGH_REPLICAS, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
                raise Violation(f"R5: acks=1 is refused with {E(code).name}")
            self.expect_again(code, f"Produce to {LOOSE}-{index}")
            await self.refresh(LOOSE)
