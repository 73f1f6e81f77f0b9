"""Whether the leader epochs that a checkpoint told are those of the log.

Owns holding `leader-epoch-checkpoint`, which has no checksum, against the batches, the first time that somebody asks,
and finding the epochs in the log again where the two disagree. Never looks at more than a few batches an epoch.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

from kbroker.log.batch_scan import is_intact, read_header
from kbroker.log.header_chain import ends_well, proven_end
from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.protocol.records import BatchHeader

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def proven_epochs(log: PartitionLog) -> LeaderEpochCache:
    """Return the log's leader epochs, once they have been seen to be those of its batches."""
    cache = log.leader_epochs
    if not log.epochs_proven:
        log.epochs_proven = True
        entries = cache.entries
        written = [(epoch, start) for epoch, start in entries if start < log.log_end_offset]
        if not _agrees(log, written) and (found := _read_epochs(log)):
            logger.warning("%s-%d: leader epochs are %s, not %s", log.topic, log.partition, found, written)
            # The newest epoch may have no batch yet.
            newest = [(cache.latest, log.log_end_offset)] if cache.latest > found[-1][0] else []
            cache.correct([*found, *newest])
    return cache


def _agrees(log: PartitionLog, entries: list[tuple[int, int]]) -> bool:
    """Whether every epoch has the batches from its start to the next one's."""
    start, end = log.log_start_offset, log.log_end_offset
    if not entries or entries[0][1] > start:
        first = _batch_at(log, start)
        if first is not None and first.leader_epoch >= 0 and (not entries or first.base_offset < entries[0][1]):
            return False
    following = [*(begins for _, begins in entries[1:]), end]
    for (epoch, begins), ends in zip(entries, following, strict=bool(entries)):
        first, last = _batch_at(log, max(begins, start)), _batch_at(log, ends - 1)
        if first is not None and (first.leader_epoch < epoch or first.base_offset < begins > start):
            return False
        if last is not None and last.base_offset < ends and last.leader_epoch > epoch:
            return False
        # Where compaction has taken an epoch's batches, what is found there is of a later one.
        whole = first is not None and first.base_offset <= max(begins, start)
        if whole and first is not None and first.leader_epoch != epoch:
            return False
    return True


def _read_epochs(log: PartitionLog) -> list[tuple[int, int]]:
    """Find where epochs begin, by halving, because they never fall; nothing where batches are not to be trusted."""
    found: list[tuple[int, int]] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        header = _batch_at(log, offset)
        if header is None:
            return []
        epoch = header.leader_epoch
        if epoch >= 0:
            found.append((epoch, max(header.base_offset, log.log_start_offset)))
        low, high = offset, end
        while low < high:
            middle = (low + high) // 2
            there = _batch_at(log, middle)
            if there is not None and there.leader_epoch <= epoch:
                low = max(middle, there.last_offset) + 1
            else:
                high = middle
        offset = low
    return found


def _batch_at(log: PartitionLog, offset: int) -> BatchHeader | None:
    """Return the header of the first batch that ends at or after `offset`; None if none is seen that can be trusted."""
    for index in range(max(bisect_right(log.bases, offset) - 1, 0), len(log.segments)):
        segment = log.segments[index]
        found = segment.find(offset)
        if found is not None:
            position = found[0]
            proven = proven_end(log, index, segment.place_before(offset), position, position) > position
            header = read_header(segment.handle.fd, position, segment.size) if proven else None
            return header if header and is_intact(segment.handle.fd, position, header) else None
        if not ends_well(log, index):
            return None
    return None
