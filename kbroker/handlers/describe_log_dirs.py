"""DescribeLogDirs (key 35), versions 1-5: sizes of partitions, and of the disks below them (KIP-113, 827, 1066)."""

from __future__ import annotations

from kbroker.divided import Divided, each, every
from kbroker.handlers.registry import RequestContext, handles
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.partition_dir_names import Key
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def _on_error(_request: DescribeLogDirsRequest, code: int, _message: str | None) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code)


@handles(DescribeLogDirsRequest, DescribeLogDirsResponse, "1-5", _on_error)
def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> Divided[DescribeLogDirsResponse]:
    """Measure every log directory; null topics means all partitions."""
    wanted: set[Key] | None = None
    if request.topics is not None:
        wanted = set()
        for topic in request.topics:
            for index in topic.partitions:
                wanted.add((topic.topic, index))
                yield
            yield
    logs = ctx.services.replicas.logs
    return DescribeLogDirsResponse(
        results=(yield from every(logs.managers, lambda manager: _describe(logs, manager, wanted)))
    )


def _describe(logs: LogManager, manager: LogDirectory, wanted: set[Key] | None) -> Divided[DescribeLogDirsResult]:
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
        yield
    for (topic, partition), move in list(logs.moves.items()):
        if move.target is manager and (wanted is None or (topic, partition) in wanted):
            lag = max(move.log.log_end_offset - move.offset, 0)
            topics.setdefault(topic, []).append(DescribeLogDirsPartition(partition, move.size, lag, is_future_key=True))
        yield
    return DescribeLogDirsResult(
        log_dir=manager.directory,
        topics=(yield from each(topics.items(), lambda found: DescribeLogDirsTopic(*found))),
        total_bytes=total,
        usable_bytes=usable,
        is_cordoned=logs.is_cordoned(manager.directory),
    )


def _offline(manager: LogDirectory) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=manager.directory)
