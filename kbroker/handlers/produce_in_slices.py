"""Batches of a Produce that take longer to open than a request may hold the loop: each in turn, in slices.

Owns what happens between a batch's first look and its append, when everything may have changed: the partition judges
anew whether it may be appended, by its settings of then. No API: produce.py and produce_in_transaction.py hand over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.handlers.delayed_produce import Uncommitted, finished, note_uncommitted
from kbroker.handlers.produce_refusals import failure, unexpected
from kbroker.handlers.registry import RequestContext
from kbroker.log.append_info import CLIENT, AppendError, AppendInfo
from kbroker.log.producers.verification_guard import UNCHECKED
from kbroker.log.record_validation import Opening, TakesLonger
from kbroker.long_work import awaited
from kbroker.protocol.messages.produce import PartitionProduceResponse, ProduceRequest, ProduceResponse
from kbroker.protocol.wire import Buffer
from kbroker.replicas import Partition


class Unopened(NamedTuple):
    """A batch that is to be opened; `answers[slot]` is where its answer goes."""

    partition: Partition
    records: Buffer
    opening: Opening
    answers: list[PartitionProduceResponse]
    slot: int
    guard: object = UNCHECKED


def put_off(
    partition: Partition,
    records: Buffer,
    opening: Opening,
    answers: list[PartitionProduceResponse],
    guard: object = UNCHECKED,
) -> Unopened:
    """Keep a place among the answers for a batch that is appended later."""
    answers.append(PartitionProduceResponse(index=partition.index, base_offset=-1))
    return Unopened(partition, records, opening, answers, len(answers) - 1, guard)


async def append_in_slices(
    ctx: RequestContext,
    request: ProduceRequest,
    unopened: Sequence[Unopened],
    response: ProduceResponse,
    uncommitted: list[Uncommitted],
    later: list[Uncommitted] | None,
    *,
    failed: bool,
) -> ProduceResponse | None:
    """Open and append batch after batch; returns the answer to the request, whose other partitions have theirs."""
    for item in unopened:
        try:
            info = await _append(ctx, request.acks, item)
        except AppendError as err:
            failed = True
            item.answers[item.slot] = failure(item.partition.index, err, item.partition.log.log_start_offset)
        except Exception as err:  # noqa: BLE001 - what was appended to others before is answered as appended
            failed = True
            item.answers[item.slot] = unexpected(item.partition.index, err)
        else:
            answer = item.answers[item.slot] = appended(item.partition.index, info)
            note_uncommitted(item.partition, request.acks, info, answer, uncommitted)
    return await awaited(finished(ctx, request, response, uncommitted, later, failed=failed))


async def _append(ctx: RequestContext, acks: int, item: Unopened) -> AppendInfo:
    services, partition, opening = ctx.services, item.partition, item.opening
    while True:
        opened = await services.replicas.openings.run(opening.again, opening.work)
        try:
            now_ms = services.clock.now_ms()
            return partition.append(item.records, acks, now_ms, CLIENT, item.guard, opened=opened)
        except TakesLonger as longer:  # the topic's settings have changed
            opening = longer.opening


def appended(index: int, info: AppendInfo) -> PartitionProduceResponse:
    """Answer for a batch that stands in the log."""
    return PartitionProduceResponse(index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)
