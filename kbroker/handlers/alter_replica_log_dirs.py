"""AlterReplicaLogDirs (key 34), versions 1-2: begin to move partitions to other log directories (KIP-113).

The answer tells whether a move has begun; DescribeLogDirs shows its copy as a future replica until it has ended.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def _wanted(request: AlterReplicaLogDirsRequest) -> dict[tuple[str, int], str]:
    """Return the directory of each partition; of several the last one counts, as in Kafka."""
    return {(t.name, index): each.path for each in request.dirs for t in each.topics for index in t.partitions}


def _on_error(request: AlterReplicaLogDirsRequest, code: int, _message: str | None) -> AlterReplicaLogDirsResponse:
    return _grouped(dict.fromkeys(_wanted(request), code))


@handles(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, "1-2", _on_error)
def alter_replica_log_dirs(ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
    """Begin each move."""
    return _grouped({key: _begin(ctx, *key, directory) for key, directory in _wanted(request).items()})


def _begin(ctx: RequestContext, topic: str, index: int, directory: str) -> int:
    replicas = ctx.services.replicas
    try:
        if replicas.why_missing(topic, index) == ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.KAFKA_STORAGE_ERROR
        replicas.logs.move(topic, index, directory)
    except ApiError as error:
        # A partition that exists and is not here would be one of another broker.
        known = ctx.services.controller.state.partition(topic, index) is not None
        missing = error.code == ErrorCode.REPLICA_NOT_AVAILABLE and not known
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else error.code
    except OSError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


def _grouped(codes: dict[tuple[str, int], int]) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for (topic, index), code in codes.items():
        topics.setdefault(topic, []).append(AlterReplicaLogDirPartitionResult(index, code))
    return AlterReplicaLogDirsResponse(
        results=[AlterReplicaLogDirTopicResult(name, partitions) for name, partitions in topics.items()]
    )
