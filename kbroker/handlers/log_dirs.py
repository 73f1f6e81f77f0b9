"""The APIs of log directories (KIP-113).

DescribeLogDirs (key 35), versions 1-5: return the sizes of partitions and of their disks (KIP-113, 827, 1066).

AlterReplicaLogDirs (key 34), versions 1-2: begin to move partitions to other log directories (KIP-113).

The response reports whether a move has begun. DescribeLogDirs lists the copy as a future replica until the move has
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.handlers.registry import RequestContext, handles
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.partition_dir_names import Key
from kbroker.long_work import each, every, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.logs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def _description_failed(_request: DescribeLogDirsRequest, code: int, _message: str | None) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code)


@handles(DescribeLogDirsRequest, DescribeLogDirsResponse, "1-5", _description_failed)
async def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Return the size of every log directory. If `topics` is null, return all partitions."""
    wanted: set[Key] | None = None
    if request.topics is not None:
        wanted = set()
        for topic in request.topics:
            for index in topic.partitions:
                wanted.add((topic.topic, index))
                await turn
            await turn
    logs = ctx.services.replicas.logs
    return DescribeLogDirsResponse(results=await every(logs.managers, lambda manager: _describe(logs, manager, wanted)))


async def _describe(logs: LogManager, manager: LogDirectory, wanted: set[Key] | None) -> DescribeLogDirsResult:
    if manager.failure:
        return _offline(manager)
    try:
        total, usable = manager.disk_space()
    except OSError as error:
        manager.report(error)
        return _offline(manager)
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for (topic, partition), log in list(manager.logs.items()):
        if wanted is None or (topic, partition) in wanted:
            lag = max(log.high_watermark - log.log_end_offset, 0)
            topics.setdefault(topic, []).append(DescribeLogDirsPartition(partition, log.size, lag))
        await turn
    for (topic, partition), move in list(logs.moves.items()):
        if move.target is manager and (wanted is None or (topic, partition) in wanted):
            lag = max(move.log.log_end_offset - move.offset, 0)
            topics.setdefault(topic, []).append(DescribeLogDirsPartition(partition, move.size, lag, is_future_key=True))
        await turn
    return DescribeLogDirsResult(
        log_dir=manager.directory,
        topics=await each(topics.items(), lambda found: DescribeLogDirsTopic(*found)),
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=logs.is_cordoned(manager.directory),
    )


def _offline(manager: LogDirectory) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=manager.directory)


async def _wanted(request: AlterReplicaLogDirsRequest) -> dict[tuple[str, int], str]:
    """Return the target directory of each partition. If a partition is repeated, the last entry counts, as in Kafka."""
    wanted: dict[tuple[str, int], str] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                wanted[topic.name, index] = directory.path
                await turn
            await turn
        await turn
    return wanted


async def _moves_failed(
    request: AlterReplicaLogDirsRequest, code: int, _message: str | None
) -> AlterReplicaLogDirsResponse:
    wanted = await _wanted(request)
    return await _grouped(wanted, lambda _key, _directory: code)


@handles(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, "1-2", _moves_failed)
async def alter_replica_log_dirs(
    ctx: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Begin to move each partition to its target directory."""
    wanted = await _wanted(request)
    return await _grouped(wanted, lambda key, directory: _begin(ctx, *key, directory))


def _begin(ctx: RequestContext, topic: str, index: int, directory: str) -> int:
    replicas = ctx.services.replicas
    try:
        if replicas.why_missing(topic, index) == ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.KAFKA_STORAGE_ERROR
        replicas.logs.move(topic, index, directory)
    except ApiError as error:
        # If the partition exists but has no replica here, keep REPLICA_NOT_AVAILABLE.
        known = ctx.services.controller.state.partition(topic, index) is not None
        missing = error.code == ErrorCode.REPLICA_NOT_AVAILABLE and not known
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if missing else error.code
    except OSError:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE


async def _grouped(
    wanted: Mapping[tuple[str, int], str], code_of: Callable[[tuple[str, int], str], int]
) -> AlterReplicaLogDirsResponse:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for key, directory in wanted.items():
        result = AlterReplicaLogDirPartitionResult(key[1], code_of(key, directory))
        topics.setdefault(key[0], []).append(result)
        await turn
    results = each(topics.items(), lambda found: AlterReplicaLogDirTopicResult(*found))
    return AlterReplicaLogDirsResponse(results=await results)
