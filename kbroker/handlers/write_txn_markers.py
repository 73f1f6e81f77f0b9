"""WriteTxnMarkers (key 27), versions 1-2: the end of transactions is written into partitions.

Behaviour: sent by a transaction coordinator to the leaders of a transaction's partitions, and by administrators for a
transaction that no coordinator knows (`kafka-transactions.sh abort`). A marker in `__consumer_offsets` goes through the
group coordinator, whose pending offsets it commits or drops.
Version notes: v2 tells the transaction version, by which a stale marker is known (KIP-1228).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence

from kbroker.coordination.then import later
from kbroker.divided import Divided, each
from kbroker.handlers.registry import RequestContext, handles
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
"""Partitions that a marker is written into before others have a turn: about a millisecond."""
_Answer = tuple[int, Answers | Awaitable[Answers]]
"""Codes of some of a producer's partitions."""


def _on_error(request: WriteTxnMarkersRequest, code: int, _message: str | None) -> Divided[WriteTxnMarkersResponse]:
    answers = []
    for asked in request.markers:
        partitions = yield from _partitions(asked)
        answers.append((asked.producer_id, dict.fromkeys(partitions, ErrorCode(code))))
        yield
    return (yield from _response(answers))


@handles(WriteTxnMarkersRequest, WriteTxnMarkersResponse, "1-2", _on_error)
def write_txn_markers(
    ctx: RequestContext, request: WriteTxnMarkersRequest
) -> Divided[WriteTxnMarkersResponse | Awaitable[Divided[WriteTxnMarkersResponse]]]:
    """Write markers, one producer after the other."""
    for asked in request.markers:
        if asked.producer_id < 0 or asked.producer_epoch < 0:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka, which can build no such batch
        yield
    answers: list[_Answer] = []
    waits = False
    for asked in request.markers:
        waits |= yield from _write(ctx, asked, answers)
        yield
    if waits:
        return later(_gather(answers), _response)
    return (yield from _response(answers))


async def _gather(answers: Sequence[_Answer]) -> Sequence[_Answer]:
    return [(pid, each if isinstance(each, Mapping) else await each) for pid, each in answers]


def _write(ctx: RequestContext, asked: WritableTxnMarker, answers: list[_Answer]) -> Divided[bool]:
    """Write one producer's marker into its partitions, some at a time; return whether an answer must be awaited."""
    get = ctx.services.replicas.get
    here: list[TopicPartition] = []
    waits = False
    elsewhere: dict[TopicPartition, ErrorCode] = {}
    answers.append((asked.producer_id, elsewhere))
    partitions = yield from _partitions(asked)
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
            waits = waits or isinstance(answers[-1][1], Awaitable)
            here = []
        yield
    return waits


def _partitions(asked: WritableTxnMarker) -> Divided[Collection[TopicPartition]]:
    """Return the partitions that a marker names, each once, in order."""
    wanted: dict[TopicPartition, None] = {}
    for topic in asked.topics:
        for index in topic.partition_indexes:
            wanted[topic.name, index] = None
            yield
        yield
    return wanted.keys()


def _response(answers: Iterable[_Answer]) -> Divided[WriteTxnMarkersResponse]:
    by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for producer_id, codes in answers:
        held = by_producer.setdefault(producer_id, {})
        if isinstance(codes, Mapping):
            held.update(codes)
        yield
    results = []
    for producer_id, found in by_producer.items():
        topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
        for (topic, index), code in found.items():
            topics.setdefault(topic, []).append(WritableTxnMarkerPartitionResult(index, code))
            yield
        by_topic = yield from each(topics.items(), lambda found: WritableTxnMarkerTopicResult(*found))
        results.append(WritableTxnMarkerResult(producer_id, by_topic))
        yield
    return WriteTxnMarkersResponse(markers=results)
