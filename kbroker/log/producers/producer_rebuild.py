"""Rebuilds the producers' state of a log from a snapshot and the batches after it.

Owns the effect of a stored batch on the producers' state. Never changes a log, and never validates a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kbroker.log.batch_scan import scan_headers
from kbroker.log.files import read_at
from kbroker.log.producers.producer_snapshots import Snapshots
from kbroker.log.producers.producer_state import (
    RETAINED_BATCHES,
    CompletedTxn,
    ProducedBatch,
    ProducerState,
    produced_batch,
)
from kbroker.log.segment.segment import Segment
from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.long_work import turn, whole
from kbroker.protocol.records import BatchHeader, read_marker

_RECALLED_BYTES: Final = 1 << 20
_AT_ONCE: Final = 200
"""The number of headers read in one turn, which takes half a millisecond."""


def aborted_entry(completed: CompletedTxn, producers: ProducerState) -> AbortedTxn:
    """Return the index entry of a transaction that is about to end."""
    return AbortedTxn(
        completed.producer_id, completed.first_offset, completed.last_offset, producers.stable_after(completed)
    )


def apply_to_producers(
    producers: ProducerState,
    header: BatchHeader,
    read_batch: Callable[[], bytes | memoryview],
    on_completed: Callable[[CompletedTxn], None] | None = None,
) -> None:
    """Apply a batch of the log to the producers' state; read only the header, except for a control batch."""
    if header.producer_id >= 0:
        if not header.is_control:
            producers.apply_batch(header, header.base_offset)
        else:
            marker = read_marker(read_batch())
            if marker is not None:
                completed = producers.preview_marker(header, marker, header.base_offset)
                if completed is not None and on_completed is not None:
                    on_completed(completed)
                producers.apply_marker(header, marker, header.base_offset)


def rebuild_producers(
    producers: ProducerState, snapshots: Snapshots, segments: Sequence[Segment], end_offset: int
) -> None:
    """Rebuild the producers' state at `end_offset` from the newest valid snapshot and the log after it."""
    whole(rebuild_in_pieces(producers, snapshots, segments, end_offset))


async def rebuild_in_pieces(
    producers: ProducerState, snapshots: Snapshots, segments: Sequence[Segment], end_offset: int
) -> None:
    """Do the work of `rebuild_producers` in pieces; no batch may be appended meanwhile."""
    lowest = segments[0].base_offset if segments else end_offset
    found = snapshots.newest(end_offset)
    begin = max(found[0], lowest) if found else lowest
    # Producers whose records were deleted are still known, so that their next retry is not mistaken for a new batch.
    producers.reset(found[1] if found else [])
    await _recall_batches(producers, segments, begin)
    await _replay(producers, segments, begin, end_offset)


async def _recall_batches(producers: ProducerState, segments: Sequence[Segment], end: int) -> None:
    """Add each producer's earlier batches to the state.

    A snapshot at `end` contains only the last batch of each producer. With the earlier batches in the last megabyte
    before `end`, a producer may still retry any of its last batches after a restart.
    """
    segment = next((segment for segment in reversed(segments) if segment.base_offset < end), None)
    if not producers.entries or segment is None:
        return
    found = segment.find(end)
    stop = segment.size if found is None else found[0]
    earlier: dict[int, list[ProducedBatch]] = {}
    start = segment.boundary_before(max(0, stop - _RECALLED_BYTES))
    for count, (_, header) in enumerate(scan_headers(segment.handle, start, stop), 1):
        if not count % _AT_ONCE:
            await turn
        entry = producers.entries.get(header.producer_id)
        if entry is None or header.is_control or header.producer_epoch != entry.producer_epoch or not entry.batches:
            continue
        if header.last_offset < entry.batches[0].last_offset:
            earlier.setdefault(header.producer_id, []).append(produced_batch(header, header.base_offset))
    for producer_id, batches in earlier.items():
        known = producers.entries[producer_id].batches
        known[:0] = batches[-(RETAINED_BATCHES - len(known)) :]


def replay(
    producers: ProducerState,
    segments: Sequence[Segment],
    begin_offset: int,
    end_offset: int,
    on_completed: Callable[[CompletedTxn], None] | None = None,
) -> None:
    """Update the producers' state by the batches of `segments` from `begin_offset` to `end_offset`."""
    whole(_replay(producers, segments, begin_offset, end_offset, on_completed))


async def _replay(
    producers: ProducerState,
    segments: Sequence[Segment],
    begin_offset: int,
    end_offset: int,
    on_completed: Callable[[CompletedTxn], None] | None = None,
) -> None:
    reached = begin_offset
    for index, segment in enumerate(segments):
        if segment.base_offset >= end_offset:
            return
        if index + 1 < len(segments) and segments[index + 1].base_offset <= reached:
            continue
        found = segment.find(reached)
        if found is None:
            continue
        file = segment.handle
        for count, (position, header) in enumerate(scan_headers(file, found[0], segment.size), 1):
            if not count % _AT_ONCE:
                await turn
            if header.base_offset >= end_offset:
                return
            read_batch = partial(read_at, file.fd, header.size, position)
            apply_to_producers(producers, header, read_batch, on_completed)
            reached = header.last_offset + 1
