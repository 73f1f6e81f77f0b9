"""WriteTxnMarkers (key 27), versions 1-2: the end of transactions is written into partitions.

Behaviour: sent by a transaction coordinator to the leaders of a transaction's partitions, and by administrators for a
transaction that no coordinator knows (`kafka-transactions.sh abort`). A marker in `__consumer_offsets` goes through the
group coordinator, whose pending offsets it commits or drops.
Version notes: v2 tells the transaction version, by which a stale marker is known (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.txn.marker_sender import Answers, Marker
from kbroker.txn.transaction import TopicPartition


def _on_error(request: WriteTxnMarkersRequest, code: int, _message: str | None) -> WriteTxnMarkersResponse:
    return _response(
        [(each.producer_id, dict.fromkeys(_partitions(each), ErrorCode(code))) for each in request.markers]
    )


@handles(WriteTxnMarkersRequest, WriteTxnMarkersResponse, "1-2", _on_error)
def write_txn_markers(
    ctx: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    """Write markers, one producer after the other."""
    if any(each.producer_id < 0 or each.producer_epoch < 0 for each in request.markers):
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka, which can build no such batch
    answers = [(each.producer_id, _write(ctx, each)) for each in request.markers]
    done = [(producer_id, answer) for producer_id, answer in answers if isinstance(answer, Mapping)]
    return _response(done) if len(done) == len(answers) else _gather(answers)


async def _gather(answers: list[tuple[int, Answers | Awaitable[Answers]]]) -> WriteTxnMarkersResponse:
    return _response([(pid, each if isinstance(each, Mapping) else await each) for pid, each in answers])


def _write(ctx: RequestContext, asked: WritableTxnMarker) -> Answers | Awaitable[Answers]:
    partitions = _partitions(asked)
    get = ctx.services.replicas.get
    here = [partition for partition in partitions if get(partition) is not None]
    elsewhere: dict[TopicPartition, ErrorCode] = {
        partition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for partition in partitions if get(partition) is None
    }
    if not here:
        return elsewhere
    marker = Marker(
        asked.producer_id,
        asked.producer_epoch,
        asked.coordinator_epoch,
        asked.transaction_result,
        asked.transaction_version,
        tuple(here),
    )
    answers = ctx.services.markers.write(marker)
    if isinstance(answers, Mapping):
        return {**elsewhere, **answers}
    return _merge(elsewhere, answers)


async def _merge(known: Answers, later: Awaitable[Answers]) -> Answers:
    return {**known, **await later}


def _partitions(asked: WritableTxnMarker) -> list[TopicPartition]:
    return list(dict.fromkeys((topic.name, index) for topic in asked.topics for index in topic.partition_indexes))


def _response(answers: list[tuple[int, Answers]]) -> WriteTxnMarkersResponse:
    by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for producer_id, codes in answers:
        by_producer.setdefault(producer_id, {}).update(codes)
    results = []
    for producer_id, codes in by_producer.items():
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for (topic, index), code in codes.items():
            topics.setdefault(topic, []).append(WritableTxnMarkerPartitionResult(index, code))
        results.append(
            WritableTxnMarkerResult(producer_id, [WritableTxnMarkerTopicResult(t, p) for t, p in topics.items()])
        )
    return WriteTxnMarkersResponse(markers=results)
