"""WriteTxnMarkers (key 27), versions 1-2: write the end of transactions into partitions.

Behaviour: a transaction coordinator sends this request to the leaders of a transaction's partitions; administrators
send the request for a transaction that no coordinator knows (`kafka-transactions.sh abort`). The group coordinator
handles a marker in `__consumer_offsets`, which commits or drops pending offsets.
Version notes: v2 has the transaction version, which identifies a stale marker (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable

from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import awaited, each, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kbroker.txn.marker_sender import Answers, Marker
from kbroker.txn.transaction import TopicPartition

AT_ONCE = 20
"""The number of partitions that get a marker before other tasks get a turn: about one ms."""
_Answer = tuple[int, Answers | Awaitable[Answers]]
"""A producer id, and the error codes of some of the producer's partitions."""


async def _on_error(request: WriteTxnMarkersRequest, code: int, _message: str | None) -> WriteTxnMarkersResponse:
    answers = []
    for asked in request.markers:
        partitions = await _partitions(asked)
        answers.append((asked.producer_id, dict.fromkeys(partitions, ErrorCode(code))))
        await turn
    return await _response(answers)


@handles(WriteTxnMarkersRequest, WriteTxnMarkersResponse, "1-2", _on_error)
async def write_txn_markers(ctx: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write the markers of all producers, one producer after the other."""
    for asked in request.markers:
        if asked.producer_id < 0 or asked.producer_epoch < 0:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # like Kafka, which cannot build such a batch
        await turn
    answers: list[_Answer] = []
    for asked in request.markers:
        await _write(ctx, asked, answers)
        await turn
    return await _response(answers)


async def _write(ctx: RequestContext, asked: WritableTxnMarker, answers: list[_Answer]) -> None:
    """Write one producer's marker into its partitions, in pieces."""
    get = ctx.services.replicas.get
    here: list[TopicPartition] = []
    elsewhere: dict[TopicPartition, ErrorCode] = {}
    answers.append((asked.producer_id, elsewhere))
    partitions = await _partitions(asked)
    for number, partition in enumerate(partitions, 1):
        if get(partition) is None:
            elsewhere[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            here.append(partition)
        if len(here) >= AT_ONCE or (here and number == len(partitions)):
            marker = Marker(
                asked.producer_id,
                asked.producer_epoch,
                asked.coordinator_epoch,
                asked.transaction_result,
                asked.transaction_version,
                tuple(here),
            )
            answers.append((asked.producer_id, ctx.services.markers.write(marker)))
            here = []
        await turn


async def _partitions(asked: WritableTxnMarker) -> Collection[TopicPartition]:
    """Return the partitions of a marker without duplicates, in their order."""
    wanted: dict[TopicPartition, None] = {}
    for topic in asked.topics:
        for index in topic.partition_indexes:
            wanted[topic.name, index] = None
            await turn
        await turn
    return wanted.keys()


async def _response(answers: Iterable[_Answer]) -> WriteTxnMarkersResponse:
    by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for producer_id, codes in answers:
        held = by_producer.setdefault(producer_id, {})
        held.update(await awaited(codes))
        await turn
    results = []
    for producer_id, found in by_producer.items():
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for (topic, index), code in found.items():
            topics.setdefault(topic, []).append(WritableTxnMarkerPartitionResult(index, code))
            await turn
        by_topic = await each(topics.items(), lambda found: WritableTxnMarkerTopicResult(*found))
        results.append(WritableTxnMarkerResult(producer_id, by_topic))
        await turn
    return WriteTxnMarkersResponse(markers=results)
