"""Produce requests that take longer than a request may hold the loop: many partitions, and batches that must be opened.

Owns the two ways to yield to other work within a Produce. Serves no API: produce.py and produce_in_transaction.py pass
requests on. A long request is cut into pieces, and each piece is handled like a short request. A fault of the whole
request is found before the first piece is appended; a piece that fails later is an error of its own partitions.
Between a batch's first check and its append everything may change: the partition checks again whether it may be
appended, by its settings at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kbroker.handlers.delayed_produce import Groups, Uncommitted, all_committed, finished, group, note_uncommitted
from kbroker.handlers.produce_refusals import check_first_batches, code_of_unexpected, failure, unexpected
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.log.append_info import CLIENT, AppendError, AppendInfo
from kbroker.log.producers.producer_state import UNCHECKED
from kbroker.log.record_validation import Opening, TakesLonger
from kbroker.long_work import awaited, turn
from kbroker.partition import Partition
from kbroker.protocol.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kbroker.protocol.wire import Buffer

FEW = 64
"""Most topics and partitions together of a short request."""
AT_ONCE = 8
"""Partitions appended to between two turns: some 0.1 ms."""


async def produce_many(
    ctx: RequestContext, request: ProduceRequest, produce: Callable[..., Any]
) -> ProduceResponse | None:
    """Produce all pieces of a request with `produce`, in order; raises ApiError before the first.

    With acks=all, it waits for other replicas once everything is appended.
    """
    for piece, _ in _pieces(request):
        if check_first_batches(piece):
            break
        await turn
    done = _Done(request.acks)
    for piece, is_first in _pieces(request):
        try:
            answer = await awaited(produce(piece, later=done.uncommitted))
        except Exception as error:  # noqa: BLE001 - earlier pieces are in the log and must be reported
            answer = done.refused(piece, error)
        done.take(answer, is_first)
        await turn
    if done.failed is not None:
        raise done.failed
    if request.acks == 0:
        return None
    response = ProduceResponse(done.topics, node_endpoints=list(done.nodes.values()))
    if done.groups:
        return await all_committed(ctx, response, done.groups, request.timeout_ms)
    return response


class _Done:
    """The results of the pieces so far."""

    def __init__(self, acks: int) -> None:
        self._acks = acks
        self.uncommitted: list[Uncommitted] = []
        self.groups: Groups = {}
        self.topics: list[TopicProduceResponse] = []
        self.nodes: dict[int, NodeEndpoint] = {}
        self.failed: CloseConnection | None = None

    def refused(self, piece: ProduceRequest, error: Exception) -> ProduceResponse | None:
        """Return the response to a piece that failed as a whole."""
        if isinstance(error, CloseConnection):
            self.failed = error  # acks=0: the connection is closed after the other partitions
            return None
        code = code_of_unexpected(error)
        if self._acks == 0:
            self.failed = CloseConnection(f"a Produce with acks=0 failed with error {code}")
            return None
        (topic,) = piece.topic_data
        answers = [
            PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1) for data in topic.partition_data
        ]
        return ProduceResponse([TopicProduceResponse(topic.name, topic.topic_id, answers)])

    def take(self, answer: ProduceResponse | None, is_first: bool) -> None:
        group(self.uncommitted, self.groups)
        self.uncommitted.clear()
        if answer is None:
            return
        (topic,) = answer.responses
        if is_first:
            self.topics.append(topic)
        else:
            self.topics[-1].partition_responses += topic.partition_responses
        for node in answer.node_endpoints:
            self.nodes[node.node_id] = node


def _pieces(request: ProduceRequest) -> Iterator[tuple[ProduceRequest, bool]]:
    """Yield short requests, each for a part of one topic, and whether it is the topic's first part."""
    for topic in request.topic_data:
        for start in range(0, max(len(topic.partition_data), 1), AT_ONCE):
            part = TopicProduceData(topic.name, topic.topic_id, topic.partition_data[start : start + AT_ONCE])
            piece = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, [part])
            yield piece, start == 0


class Unopened(NamedTuple):
    """A batch that must be opened; its result belongs in `answers[slot]`."""

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
    """Reserve a place among the answers for a batch that is appended later."""
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
    """Open and append one batch after another; return the response, which has the other partitions already."""
    for item in unopened:
        try:
            info = await _append(ctx, request.acks, item)
        except AppendError as err:
            failed = True
            item.answers[item.slot] = failure(item.partition.index, err, item.partition.log.log_start_offset)
        except Exception as err:  # noqa: BLE001 - earlier appends must still be reported
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
    """Return the result for an appended batch."""
    return PartitionProduceResponse(index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset)
