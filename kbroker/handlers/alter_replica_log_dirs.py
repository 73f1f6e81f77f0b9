"""AlterReplicaLogDirs (key 34), versions 1-2: begin to move partitions to other log directories (KIP-113).

The answer tells whether a move has begun; DescribeLogDirs shows its copy as a future replica until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.divided import Divided, each
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def _wanted(request: AlterReplicaLogDirsRequest) -> Divided[dict[tuple[str, int], str]]:
    """Return the directory of each partition; of several the last one counts, as in Kafka."""
    wanted: dict[tuple[str, int], str] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                wanted[topic.name, index] = directory.path
                yield
            yield
        yield
    return wanted


def _on_error(
    request: AlterReplicaLogDirsRequest, code: int, _message: str | None
) -> Divided[AlterReplicaLogDirsResponse]:
    wanted = yield from _wanted(request)
    return (yield from _grouped(wanted, lambda _key, _directory: code))


@handles(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, "1-2", _on_error)
def alter_replica_log_dirs(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> Divided[AlterReplicaLogDirsResponse]:
    """Begin each move."""
    wanted = yield from _wanted(request)
    return (yield from _grouped(wanted, lambda key, directory: _begin(ctx, *key, directory)))


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


def _grouped(
    wanted: Mapping[tuple[str, int], str], code_of: Callable[[tuple[str, int], str], int]
) -> Divided[AlterReplicaLogDirsResponse]:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for key, directory in wanted.items():
        result = AlterReplicaLogDirPartitionResult(key[1], code_of(key, directory))
        topics.setdefault(key[0], []).append(result)
        yield
    results = each(topics.items(), lambda found: AlterReplicaLogDirTopicResult(*found))
    return AlterReplicaLogDirsResponse(results=(yield from results))
