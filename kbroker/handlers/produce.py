"""Produce (key 0), versions 3-13: append one batch to each partition.

The hot path: a batch is never opened here, its bytes go unchanged from the network buffer to the log. If the log has to
open a batch, and that takes longer than a moment, the batch is appended last (long_produce.py). acks=0 has no response,
and an error then closes the connection. Batches of a transaction are handled by produce_in_transaction.py, which asks
the transaction coordinator.
Version notes: up to v11 the partition must have been added to the transaction before; since v12 Produce adds it
(KIP-890).
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import Any

from kbroker.handlers.delayed_produce import Uncommitted, when_committed
from kbroker.handlers.long_produce import FEW, Unopened, append_in_slices, produce_many, put_off
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.produce_in_transaction import produce_in_transaction
from kbroker.handlers.produce_refusals import (
    ACKS,
    CODEC,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOOK,
    MAGIC,
    TRANSACTIONAL,
    ZSTD,
    add_leader_hints,
    check_first_batches,
    failure,
    refusal,
    unexpected,
)
from kbroker.handlers.registry import CloseConnection, Reply, RequestContext, handles
from kbroker.log.append_info import AppendError
from kbroker.log.record_validation import TakesLonger
from kbroker.long_work import whole
from kbroker.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kbroker.topic_names import INTERNAL_TOPICS


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
    """Append, one partition at a time.

    `checked`: nothing in the request refuses it as a whole. Then it may be a piece of a larger request, whose
    uncommitted batches are added to `later`. A request with several partitions is always checked before the first
    append; a request with one partition only if something about its batch is unusual.
    """
    left = FEW - len(request.topic_data)
    for topic in request.topic_data if left >= 0 else ():
        left -= len(topic.partition_data)
    if left < 0:
        return produce_many(ctx, request, partial(produce, ctx, checked=True))  # type: ignore[call-arg]
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
                length, magic, attributes = LOOK.unpack_from(records)
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
            assert partition is not None  # otherwise it was refused
            try:
                info = partition.append(records, acks, now_ms)
            except TakesLonger as longer:
                unopened = [*(unopened or ()), put_off(partition, records, longer.opening, answers)]
                continue
            except AppendError as err:
                answers.append(failure(data.index, err, partition.log.log_start_offset))
                failed = True
                continue
            except Exception as err:  # noqa: BLE001 - earlier appends must still be reported
                answers.append(unexpected(data.index, err))
                failed = True
                continue
            answer = PartitionProduceResponse(
                data.index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
            )
            answers.append(answer)
            if acks == -1 and partition.is_replicated and partition.log.high_watermark <= info.last_offset:
                uncommitted = [*(uncommitted or ()), Uncommitted(partition, info.last_offset + 1, answer)]
        responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    if unopened is not None:
        return append_in_slices(
            ctx, request, unopened, ProduceResponse(responses), uncommitted or [], later, failed=failed
        )
    if acks == 0:
        if failed:
            raise CloseConnection("a Produce with acks=0 failed")
        return None
    response = ProduceResponse(responses)
    if failed and version >= 10:
        add_leader_hints(ctx, response)
    if uncommitted is not None:
        if later is None:
            return when_committed(ctx, response, uncommitted, request.timeout_ms)
        later += uncommitted
    return response
