"""DescribeLogDirs (key 35), versions 1-5: sizes of partitions, and of the disk below them (KIP-113, KIP-827)."""

from __future__ import annotations

import os

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def _on_error(_request: DescribeLogDirsRequest, code: int, _message: str | None) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(error_code=code)


def _describable(request: DescribeLogDirsRequest) -> set[tuple[str, int]] | None:
    if request.topics is None:
        return None
    return {(t.topic, p) for t in request.topics for p in t.partitions}


@handles(DescribeLogDirsRequest, DescribeLogDirsResponse, "1-5", _on_error)
def describe_log_dirs(ctx: RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """Measure the log directory; null topics means all partitions."""
    wanted = _describable(request)
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in ctx.services.replicas:
        if wanted is None or (partition.topic, partition.index) in wanted:
            topics.setdefault(partition.topic, []).append(
                DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size)
            )
    directory = ctx.services.replicas.logs.directory
    disk = os.statvfs(directory)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=directory,
                topics=[DescribeLogDirsTopic(name, partitions) for name, partitions in topics.items()],
                total_bytes=disk.f_blocks * disk.f_frsize,
                usable_bytes=disk.f_bavail * disk.f_frsize,
            )
        ]
    )
