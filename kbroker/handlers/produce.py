"""Produce (key 0), versions 3-13: append one batch to each partition.

The hot path: a batch is never opened here, its bytes go from the network buffer to the log as they are. acks=0 has no
answer, and an error then closes the connection. Transactional batches are refused as Kafka refuses those that its
coordinator does not know.
"""

from __future__ import annotations

from kbroker.dispatch_errors import CloseConnection
from kbroker.handlers.registry import RequestContext, handles
from kbroker.log.appends import AppendError
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kbroker.protocol.wire import ZERO_UUID

_ATTRIBUTES_LOW = 22
_MAGIC = 16
_TRANSACTIONAL = 0x10
_CODEC = 0x07
_ZSTD = 4
_SMALLEST_BATCH = 61

_WITHOUT_LOG_START = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
)
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def _on_error(request: ProduceRequest, code: int, message: str | None) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=p.index, error_code=code, base_offset=-1, error_message=message)
                    for p in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


@handles(ProduceRequest, ProduceResponse, "3-13", _on_error)
def produce(ctx: RequestContext, request: ProduceRequest) -> ProduceResponse | None:
    """Append, partition by partition."""
    services = ctx.services
    get, now_ms, acks, version = services.replicas.get, services.clock.now_ms(), request.acks, ctx.version
    responses, failed = [], False
    for topic in request.topic_data:
        name: str | None = topic.name
        if version > 12:
            name = services.controller.state.topic_names.get(topic.topic_id)
        answers = []
        for data in topic.partition_data:
            partition = get((name, data.index)) if name is not None else None
            records = data.records
            if (
                partition is None
                or records is None
                or len(records) < _SMALLEST_BATCH
                or acks not in (1, -1, 0)
                or records[_ATTRIBUTES_LOW] & _TRANSACTIONAL
                or records[_MAGIC] != 2
                or (version < 7 and records[_ATTRIBUTES_LOW] & _CODEC == _ZSTD)
                or name in _INTERNAL
            ):
                answers.append(_refuse(ctx, request, name, topic.topic_id, data))
                failed = True
                continue
            try:
                info = partition.append(records, acks, now_ms)
            except AppendError as err:
                answers.append(_failure(data.index, err, partition.log.log_start_offset))
                failed = True
                continue
            answers.append(
                PartitionProduceResponse(
                    data.index, 0, info.base_offset, info.log_append_time_ms, info.log_start_offset
                )
            )
        responses.append(TopicProduceResponse(topic.name, topic.topic_id, answers))
    if acks == 0:
        if failed:
            raise CloseConnection("a Produce with acks=0 failed")
        return None
    answer = ProduceResponse(responses)
    if failed and version >= 10:
        _add_leader_hints(ctx, answer)
    return answer


def _refuse(
    ctx: RequestContext, request: ProduceRequest, name: str | None, topic_id: bytes, data: PartitionProduceData
) -> PartitionProduceResponse:
    """Answer for a partition that is not even tried; the order of checks is KafkaApis.handleProduceRequest's."""
    records = data.records
    code = ErrorCode.INVALID_RECORD
    if records and len(records) >= _SMALLEST_BATCH and records[_ATTRIBUTES_LOW] & _TRANSACTIONAL:
        if request.transactional_id is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        code = ErrorCode.INVALID_TXN_STATE
    if name is None and topic_id != ZERO_UUID:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    elif name is None or ctx.services.replicas.get((name, data.index)) is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    elif not records or len(records) < _SMALLEST_BATCH or records[_MAGIC] != 2:
        code = ErrorCode.INVALID_RECORD
    elif ctx.version < 7 and records[_ATTRIBUTES_LOW] & _CODEC == _ZSTD:
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    elif request.acks not in (1, -1, 0):
        code = ErrorCode.INVALID_REQUIRED_ACKS
    elif name in _INTERNAL and ctx.client_id != "__admin_client":
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)


def _failure(index: int, err: AppendError, log_start_offset: int) -> PartitionProduceResponse:
    """Answer for a failed append. Only record validation carries texts (ReplicaManager.appendToLocalLog)."""
    return PartitionProduceResponse(
        index=index,
        error_code=err.code,
        base_offset=-1,
        log_start_offset=-1 if err.code in _WITHOUT_LOG_START else log_start_offset,
        record_errors=[BatchIndexAndErrorMessage(i, text) for i, text in err.record_errors],
        error_message=err.message if err.record_errors else None,
    )


def _add_leader_hints(ctx: RequestContext, answer: ProduceResponse) -> None:
    """Tell who leads now, where the client asked the wrong broker."""
    state = ctx.services.controller.state
    nodes = {}
    for topic in answer.responses:
        name = topic.name or state.topic_names.get(topic.topic_id, "")
        for partition in topic.partition_responses:
            if partition.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                continue
            known = state.partition(name, partition.index)
            if known is not None:
                partition.current_leader = LeaderIdAndEpoch(known.leader, known.leader_epoch)
                if known.leader in state.brokers:
                    nodes[known.leader] = state.brokers[known.leader]
    answer.node_endpoints = [NodeEndpoint(n.node_id, n.host, n.port, n.rack) for n in nodes.values()]
