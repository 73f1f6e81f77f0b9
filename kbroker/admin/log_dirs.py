"""The content of brokers' log directories, partition by partition, and the failures of directories.

Owns the requests to several brokers, and leaves out unreachable brokers. Never prints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kafka.errors import KafkaError

from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.errors import code_error, error_text
from kbroker.admin.own_request import ask_broker
from kbroker.admin.placement import Key
from kbroker.protocol.messages.logs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker; sizes in bytes, -1 if the broker does not return them."""

    broker: int
    path: str
    error: str | None
    total: int
    usable: int
    replicas: dict[Key, int] = field(repr=False)
    """The size in bytes of each replica, by partition."""
    moving: int
    """The number of replicas that are moving into this directory from another directory."""

    @property
    def used(self) -> int:
        """The total size in bytes of the replicas in the directory."""
        return sum(self.replicas.values())


def log_dirs(admin: Any, brokers: Iterable[int], topics: Sequence[str] | None = None) -> list[LogDir]:
    """Return the log directories of the brokers that answer, with all replicas or only the replicas of some topics."""
    wanted = None if topics is None else _partitions(admin, topics)
    request = DescribeLogDirsRequest(topics=wanted)
    found: list[LogDir] = []
    for broker in brokers:
        with contextlib.suppress(KafkaError):
            answer = ask_broker(admin, broker, request, DescribeLogDirsResponse)
            for each in answer.results:
                error = code_error(each.error_code)
                sizes = {
                    (topic.name, partition.partition_index): partition.partition_size
                    for topic in each.topics
                    for partition in topic.partitions
                    if not partition.is_future_key
                }
                moving = sum(p.is_future_key for topic in each.topics for p in topic.partitions)
                message = None if error is None else error_text(error)
                found.append(LogDir(broker, each.log_dir, message, each.total_bytes, each.usable_bytes, sizes, moving))
    return found


def _partitions(admin: Any, topics: Sequence[str]) -> list[DescribableLogDirTopic]:
    known = cluster_view(admin, topics).topics.values()
    return [DescribableLogDirTopic(each.name, [p.partition_index for p in each.partitions]) for each in known]


def sizes_of_leaders(dirs: Iterable[LogDir], leaders: dict[Key, int]) -> dict[str, int]:
    """Return the sizes of topics in bytes; only the leader's replica of each partition counts."""
    found: dict[str, int] = {}
    for each in dirs:
        for key, size in each.replicas.items():
            if leaders.get(key) == each.broker:
                found[key[0]] = found.get(key[0], 0) + size
    return found
