"""The content of an embedded broker at one moment, which can be restored later.

Owns the cluster's state and the logs of that moment. The logs are files under other names in a directory that is
deleted with the snapshot. If the file system allows it, the files are hard links, so that a snapshot takes no time and
no space. Later appends are beyond the recorded size. Deletion or compaction does not affect a file's second name. Never
restores anything: restoring.py does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from kbroker.broker.node import BrokerNode
from kbroker.cluster_state import ClusterState
from kbroker.log.directories.partition_dir_names import Key
from kbroker.log.files import LOG_SUFFIX, SEGMENT_SUFFIXES, TXN_INDEX_SUFFIX
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.partition import Partition
from kbroker.testing.waiting import until

_GROWING: Final = (LOG_SUFFIX, TXN_INDEX_SUFFIX)
"""The files of the active segment to which the broker only appends. The segment's indexes are rebuilt."""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a segment. If it `grows`, only its first `size` bytes belong to the snapshot."""

    path: str
    base_offset: int
    suffix: str
    size: int
    grows: bool


@dataclass(frozen=True, slots=True)
class KeptLog:
    """The log of one partition in a snapshot."""

    key: Key
    directory: str
    """The log directory of the partition."""
    files: tuple[KeptFile, ...]
    start_offset: int
    end_offset: int
    segments: tuple[tuple[int, int], ...]
    """The base offset and size in bytes of each segment."""
    epochs: tuple[tuple[int, int], ...]
    open_producers: tuple[ProducerEntry, ...]
    """The producers with an open transaction.

    The state of other producers is dropped, so they may continue with any sequence number.
    """
    had_producers: bool
    may_have_holes: bool
    cleaned_to: int | None


class Snapshot:
    """A broker's topics, groups and settings at one moment. See `Broker.snapshot`."""

    def __init__(self, node: BrokerNode, state: ClusterState, logs: tuple[KeptLog, ...], directory: str) -> None:
        self.node = weakref.ref(node)
        self.state = state
        self.logs = logs
        self.clock_ahead_ms = 0
        self.restored_in: dict[Key, int] = {}
        """The leader epoch that each log got when it was last restored from this snapshot."""
        self._end = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self.state.topics)} topics{'' if self.is_kept else ', removed'}>"

    @property
    def is_kept(self) -> bool:
        """Whether the snapshot can be restored. False after it was removed, or after its broker has stopped."""
        return self._end.alive

    def remove(self) -> None:
        """Delete the snapshot.

        A snapshot is also deleted when it is no longer referenced, and when its broker stops.
        """
        self._end()


async def take(node: BrokerNode) -> Snapshot:
    """Return a snapshot of a broker. Raises OSError if its files cannot be linked or copied."""
    settled = node.controller.published()
    if settled is not None:
        await settled
    await until(lambda: node.replicas.has_hosted_all, "the broker has not made all its partitions")
    directory = tempfile.mkdtemp(prefix="kbroker-snapshot-")
    try:
        logs = tuple(_kept(node, each, f"{directory}/{number}") for number, each in enumerate(node.replicas))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Snapshot(node, node.controller.state, logs, directory)


def _kept(node: BrokerNode, partition: Partition, prefix: str) -> KeptLog:
    log, key = partition.log, (partition.topic, partition.index)
    home = node.logs.home(key)
    assert home is not None
    return KeptLog(
        key,
        home.directory,
        tuple(_files(log, prefix)),
        log.log_start_offset,
        log.log_end_offset,
        segments_of(log),
        tuple(log.leader_epochs.entries),
        tuple(replace(each.copy()) for each in log.active_producers() if each.current_txn_first_offset >= 0),
        bool(log.producers.entries),
        log.may_have_holes,
        home.cleaner.cleaned_to(*key),
    )


def segments_of(log: PartitionLog) -> tuple[tuple[int, int], ...]:
    """Return the base offsets and sizes of a log's segments. They show whether the log has changed."""
    return tuple((segment.base_offset, segment.size) for segment in log.segments)


def _files(log: PartitionLog, prefix: str) -> Iterator[KeptFile]:
    """Link or copy the files of a log to names that begin with `prefix`."""
    active = log.segments.active
    for segment in log.segments:
        for suffix in _GROWING if segment is active else SEGMENT_SUFFIXES:
            path = segment.path(suffix)
            size = segment.size if suffix == LOG_SUFFIX else _size(path)
            if size is None:
                continue
            kept = f"{prefix}-{segment.base_offset}{suffix}"
            if size and (segment is active or suffix == LOG_SUFFIX):
                link_or_copy(path, kept)
            elif size:
                shutil.copyfile(path, kept)  # no link: a log in use changes its index files
            yield KeptFile(kept, segment.base_offset, suffix, size, segment is active)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def link_or_copy(path: str, other: str) -> None:
    """Create a hard link to a file, or a copy where links are impossible."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)
