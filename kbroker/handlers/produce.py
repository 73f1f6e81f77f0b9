"""Produce (key 0), versions 3-13: append one batch to each partition.

The hot path: this module never opens a batch, and passes its bytes unchanged from the network buffer to the log. A
batch that takes long, because the log must open it, is appended last (produce_answers.py). With acks=0 there is no
response, and an error closes the connection. produce_in_transaction.py handles transactional batches, since it must
send a request to the transaction coordinator.

A request with many partitions is cut into pieces. Each piece is handled like a short request, and other requests get a
turn between pieces. A fault of the complete request is found before the first piece is appended. If a piece fails
later, only its partitions get the error.

Version notes: up to v11 the producer must have added the partition to the transaction before; since v12 Produce adds it
(KIP-890).
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.produce_answers import (
    ACKS,
    CODEC,
    HEADER_BYTES,
    HEADER_FIELDS,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    ZSTD,
    Groups,
    Uncommitted,
    Unopened,
    all_committed,
    append_in_slices,
    check_first_batches,
    code_of_unexpected,
    failure,
    finished,
    group,
    refusal,
)
from kbroker.handlers.produce_in_transaction import produce_in_transaction
from kbroker.handlers.registry import CloseConnection, Reply, RequestContext, handles
from kbroker.log.record_validation import TakesLonger
from kbroker.long_work import awaited, turn, whole
from kbroker.protocol.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from kbroker.topic_names import INTERNAL_TOPICS

FEW = 64
"""The maximum number of topics and partitions together in a short request."""
AT_ONCE = 8
"""The number of partitions to which a request appends before other tasks get a turn: about 0.1 ms."""


def _on_error(
    request: ProduceRequest, code: int, message: str | None
) -> ProduceResponse | Coroutine[Any, Any, ProduceResponse]:
    if request.acks == 0:
        raise CloseConnection(f"a Produce with acks=0 failed with error {code}")
    answer = _failed(request, code, message)
    is_short = sum(1 + len(topic.partition_data) for topic in request.topic_data[: FEW + 1]) <= FEW
    return whole(answer) if is_short else answer


_failed = mirrored(ProduceResponse, "topic_data", base_offset=-1)


@handles(ProduceRequest, ProduceResponse, "3-13", _on_error)
def produce(
    ctx: RequestContext, request: ProduceRequest, *, checked: bool = False, later: list[Uncommitted] | None = None
) -> Reply[ProduceResponse]:
    """Append the batches to their partitions, one after another.

    `checked` means that no check has found a fault for which the complete request is refused. If a checked request is a
    piece of a larger request, its uncommitted batches are added to `later`. A request with several partitions is
    always checked before the first append. A request with one partition is checked before the append only if its batch
    is unusual.
    """
    left = FEW - len(request.topic_data)
    for topic in request.topic_data if left >= 0 else ():
        left -= len(topic.partition_data)
    if left < 0:
        return _produce_many(ctx, request)
    if not checked and (left < FEW - 2 or request.transactional_id is not None):
        check_first_batches(request)
        checked = True
    if request.transactional_id is not None:
        return produce_in_transaction(ctx, request, later)
    services = ctx.services
    get, now_ms, acks, version = services.replicas.get, services.clock.now_ms(), request.acks, ctx.version
    responses, failed = [], False
    unopened: list[Unopened] | None = None
    uncommitted: list[Uncommitted] | None = None
    for topic in request.topic_data:
        name = topic.name
        if version > 12:
            name = services.controller.state.topic_names.get(topic.topic_id, "")
        answers: list[PartitionProduceResponse] = []
        for data in topic.partition_data:
            partition = get((name, data.index))
            records = data.records
            if partition is None or records is None or acks not in ACKS or len(records) < HEADER_BYTES:
                if not checked:
                    check_first_batches(request)
                refused = refusal(ctx, request, name, data)
            else:
                length, magic, attributes = HEADER_FIELDS.unpack_from(records)
                if (
                    length + LENGTH_OVERHEAD != len(records)
                    or magic != MAGIC
                    or attributes & TRANSACTIONAL
                    or attributes & CODEC >= ZSTD
                    or name in INTERNAL_TOPICS
                ):
                    if not checked:
                        check_first_batches(request)
                    refused = refusal(ctx, request, name, data)
                else:
                    refused = None
            if refused is not None:
                answers.append(refused)
                failed = True
                continue
            assert partition is not None  # otherwise the batch was refused
            try:
                info = partition.append(records, acks, now_ms)
            except TakesLonger as longer:
                place = Unopened(partition, records, longer.opening, answers, len(answers))
                unopened = [*(unopened or ()), place]
                answers.append(PartitionProduceResponse(index=data.index, base_offset=-1))
                continue
            except Exception as err:  # noqa: BLE001 - earlier appends must still be reported
                answers.append(failure(partition, err))
                failed = True
                continue
            answer = PartitionProduceResponse(
                data.index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
            )
            answers.append(answer)
            if acks == -1 and partition.is_replicated and partition.log.high_watermark <= info.last_offset:
                uncommitted = [*(uncommitted or ()), Uncommitted(partition, info.last_offset + 1, answer)]
        responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    response = ProduceResponse(responses)
    if unopened is not None:
        return append_in_slices(ctx, request, unopened, response, uncommitted or [], later, failed=failed)
    if failed or uncommitted is not None:
        return finished(ctx, request, response, uncommitted or [], later, failed=failed)
    return None if acks == 0 else response


async def _produce_many(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append all pieces of a request, in order. Raises ApiError before the first append.

    With acks=all, wait for the other replicas after all pieces are appended.
    """
    for piece, _ in _pieces(request):
        if check_first_batches(piece):
            break
        await turn
    done, closing = _Done(), None
    for piece, is_first in _pieces(request):
        try:
            answer = await awaited(produce(ctx, piece, checked=True, later=done.uncommitted))  # type: ignore[call-arg]
        except CloseConnection as error:
            answer, closing = None, error  # with acks=0, raise the error after the other pieces
        except Exception as error:  # noqa: BLE001 - earlier pieces are in the log and must be reported
            code, answer = code_of_unexpected(error), None
            if request.acks == 0:
                closing = CloseConnection(f"a Produce with acks=0 failed with error {code}")
            else:
                answer = await _failed(piece, code, None)
        done.take(answer, is_first)
        await turn
    if closing is not None:
        raise closing
    if request.acks == 0:
        return None
    response = ProduceResponse(done.topics, node_endpoints=list(done.nodes.values()))
    if done.groups:
        return await all_committed(ctx, response, done.groups, request.timeout_ms)
    return response


class _Done:
    """The results of the pieces that are already appended."""

    def __init__(self) -> None:
        self.uncommitted: list[Uncommitted] = []
        self.groups: Groups = {}
        self.topics: list[TopicProduceResponse] = []
        self.nodes: dict[int, NodeEndpoint] = {}

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
    """Yield short requests, each for a part of one topic.

    With each request, yield whether it has the topic's first part.
    """
    for topic in request.topic_data:
        for start in range(0, max(len(topic.partition_data), 1), AT_ONCE):
            part = TopicProduceData(topic.name, topic.topic_id, topic.partition_data[start : start + AT_ONCE])
            piece = ProduceRequest(request.transactional_id, request.acks, request.timeout_ms, [part])
            yield piece, start == 0
