"""Produce with a transactional id: verify every partition with the transaction coordinator, then append.

Owns the order of these two steps; transaction_verification.py translates the coordinator's errors. Serves no API:
produce.py calls this module.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Mapping
from typing import NamedTuple

from kbroker.handlers.produce_answers import (
    HEADER_BYTES,
    TRANSACTIONAL,
    Uncommitted,
    Unopened,
    append_in_slices,
    appended,
    failure,
    finished,
    refusal,
)
from kbroker.handlers.registry import Reply, RequestContext
from kbroker.handlers.transaction_verification import Client, Question, Verdict, Verdicts, refused_produce, verify
from kbroker.log.append_info import CLIENT
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.log.record_validation import TakesLonger
from kbroker.long_work import awaited, in_slices
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kbroker.protocol.wire import Buffer
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import TopicPartition

_PRODUCER = struct.Struct(">21xh20xqhi")
"""The fields attributes, producer id, epoch and first sequence of a batch's header."""
_KNOWS_ABORTABLE_SINCE = 11
_ADDS_IMPLICITLY_SINCE = 12

_Result = ProduceResponse | None | Awaitable[ProduceResponse | None]


class _Job(NamedTuple):
    """A batch that passed the first checks. Its result is stored in `answers[slot]`."""

    partition: Partition
    records: Buffer
    question: Question | None
    answers: list[PartitionProduceResponse]
    slot: int


class _Work:
    """One transactional Produce request in progress."""

    def __init__(self, ctx: RequestContext, request: ProduceRequest, later: list[Uncommitted] | None) -> None:
        self.ctx = ctx
        self.later = later
        self.version = ctx.version
        self.transactional_id = request.transactional_id or ""
        self.request = request
        self.acks = request.acks
        self.failed = False
        self.producer: Identity | None = None
        self.jobs: list[_Job] = []
        self.unopened: list[Unopened] = []
        self.uncommitted: list[Uncommitted] = []
        self.response = ProduceResponse([self._topic(request, topic) for topic in request.topic_data])

    @property
    def client(self) -> Client:
        if self.version >= _ADDS_IMPLICITLY_SINCE:
            return Client.ADDS_IMPLICITLY
        return Client.KNOWS_ABORTABLE if self.version >= _KNOWS_ABORTABLE_SINCE else Client.KNOWS_LITTLE

    @property
    def questions(self) -> list[Question]:
        return [job.question for job in self.jobs if job.question is not None]

    def _topic(self, request: ProduceRequest, asked: TopicProduceData) -> TopicProduceResponse:
        name, topic_id = asked.name, asked.topic_id
        known = self.ctx.services.controller.state.topic_names.get(topic_id, "") if self.version > 12 else name
        answers: list[PartitionProduceResponse] = []
        for data in asked.partition_data:
            self._partition(request, known, data, answers)
        return TopicProduceResponse(name, topic_id, answers)

    def _partition(
        self,
        request: ProduceRequest,
        name: str,
        data: PartitionProduceData,
        answers: list[PartitionProduceResponse],
    ) -> None:
        refused = refusal(self.ctx, request, name, data)
        partition = self.ctx.services.replicas.get((name, data.index))
        if refused is not None or partition is None or data.records is None:
            assert refused is not None  # `refusal` refuses a missing partition, and missing records
            answers.append(refused)
            self.failed = True
            return
        if len(data.records) < HEADER_BYTES:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # like Kafka, which reads beyond the end of the bytes
        attributes, producer_id, epoch, sequence = _PRODUCER.unpack_from(data.records)
        question = None
        if attributes & TRANSACTIONAL and producer_id >= 0:
            producer = Identity(producer_id, epoch)
            if self.producer is not None and self.producer != producer:
                raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            self.producer = producer
            question = Question(partition, sequence)
        answers.append(PartitionProduceResponse(index=data.index, base_offset=-1))
        self.jobs.append(_Job(partition, data.records, question, answers, len(answers) - 1))

    def keep_records(self) -> None:
        """Copy the records from the receive buffer, because the buffer is overwritten once this request waits."""
        self.jobs = [job._replace(records=bytearray(job.records)) for job in self.jobs]

    def verify(self) -> Verdicts | Awaitable[Verdicts]:
        if self.producer is None:
            return {}
        return verify(self.ctx.services, self.transactional_id, self.producer, self.questions, self.client)

    def append(self, verdicts: Mapping[TopicPartition, Verdict]) -> _Result:
        """Append the verified batches. Return the response, or an awaitable of the response if work is left."""
        now_ms = self.ctx.services.clock.now_ms()
        for job in self.jobs:
            verdict = Verdict(ErrorCode.NONE, UNCHECKED) if job.question is None else verdicts[job.question.key]
            job.answers[job.slot] = self._append(job, verdict, now_ms)
        if self.unopened:
            return append_in_slices(
                self.ctx, self.request, self.unopened, self.response, self.uncommitted, self.later, failed=self.failed
            )
        return finished(self.ctx, self.request, self.response, self.uncommitted, self.later, failed=self.failed)

    def _append(self, job: _Job, verdict: Verdict, now_ms: int) -> PartitionProduceResponse:
        if verdict.code:
            self.failed = True
            code, text = refused_produce(verdict.code, self.client)
            return PartitionProduceResponse(
                index=job.partition.index, error_code=code, base_offset=-1, log_start_offset=-1, error_message=text
            )
        try:
            info = job.partition.append(job.records, self.acks, now_ms, CLIENT, verdict.guard)
        except TakesLonger as longer:
            unopened = Unopened(job.partition, job.records, longer.opening, job.answers, job.slot, verdict.guard)
            self.unopened.append(unopened)
            return job.answers[job.slot]
        except Exception as err:  # noqa: BLE001 - earlier appends must still be reported
            self.failed = True
            return failure(job.partition, err)
        return appended(job.partition, self.acks, info, self.uncommitted)


def produce_in_transaction(
    ctx: RequestContext, request: ProduceRequest, later: list[Uncommitted] | None
) -> Reply[ProduceResponse]:
    """Verify all partitions, then append.

    If the request is a piece of a larger request, add its uncommitted batches to `later`.
    """
    work = _Work(ctx, request, later)
    verdicts = work.verify()
    if isinstance(verdicts, dict) and not _is_too_early(work, verdicts):
        return work.append(verdicts)
    work.keep_records()
    return asyncio.ensure_future(_later(work, verdicts))


async def _later(work: _Work, answer: Verdicts | Awaitable[Verdicts]) -> ProduceResponse | None:
    return await in_slices(_try(work, answer))


async def _try(work: _Work, answer: Verdicts | Awaitable[Verdicts]) -> ProduceResponse | None:
    """Append, but retry for a short time while the previous transaction ends.

    A producer with transaction version 2 cannot know that the previous transaction has not ended yet.
    """
    config, clock = work.ctx.services.config, work.ctx.services.clock
    pause_ms = config.get_int("add.partitions.to.txn.retry.backoff.ms")
    until_ms = clock.monotonic_ms() + config.get_int("add.partitions.to.txn.retry.backoff.max.ms")
    verdicts = await awaited(answer)
    while _is_too_early(work, verdicts) and clock.monotonic_ms() < until_ms:
        await asyncio.sleep(pause_ms / 1000)
        verdicts = await awaited(work.verify())
    return await awaited(work.append(verdicts))


def _is_too_early(work: _Work, verdicts: Verdicts) -> bool:
    if work.client is not Client.ADDS_IMPLICITLY:
        return False
    return any(verdict.code is ErrorCode.CONCURRENT_TRANSACTIONS for verdict in verdicts.values())
