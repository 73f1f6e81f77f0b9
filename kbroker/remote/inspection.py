"""The description of a segment in remote storage, from its object alone.

Owns the reading of an object whose record in `__remote_log_metadata` is lost. The end of the log part gives the last
offset. So this module reads the indexes and the last batches, and never the complete log.
"""

from __future__ import annotations

import struct
from typing import Final

from kbroker.log.segment.index_files import OFFSET_ENTRY, TIME_ENTRY
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import HEADER_SIZE, parse_header
from kbroker.remote.object_client import StoredObject
from kbroker.remote.object_format import ObjectName, Part, read_epochs_bytes
from kbroker.remote.segment import RemoteSegment
from kbroker.remote.segment_objects import SegmentObject
from kbroker.remote.store import Store
from kbroker.remote.store_errors import DamagedObjectError

_PIECE_BYTES: Final = 1 << 20


async def inspected(store: Store, found: StoredObject, name: ObjectName, broker_id: int) -> RemoteSegment:
    """Return the description of an object's segment, in the state of a started copy, with the footer as custom data.

    Raises StoreErrors: DamagedObjectError for an object that is no complete segment.
    """
    stored = await SegmentObject.open(store, found.name, name.segment_id)
    if stored.layout.object_bytes != found.size:
        raise DamagedObjectError(f"{found.name} in {store.url}: {found.size} bytes, not {stored.layout.object_bytes}")
    last, newest_ms = await _end_of_log(stored, found.name, name.base_offset)
    entries = read_epochs_bytes(await stored.whole(Part.LEADER_EPOCHS))
    ends = [*(start for _, start in entries[1:]), last + 1]
    inside = tuple(
        (epoch, max(start, name.base_offset))
        for (epoch, start), end in zip(entries, ends, strict=bool(entries))
        if start <= last and end > name.base_offset
    )
    if not inside:
        raise DamagedObjectError(f"{found.name} in {store.url}: no leader epoch has its records")
    return RemoteSegment(
        id=name.segment_id,
        start_offset=name.base_offset,
        end_offset=last,
        max_timestamp_ms=newest_ms if newest_ms >= 0 else found.modified_ms,
        event_timestamp_ms=found.modified_ms,
        broker_id=broker_id,
        size=stored.layout.lengths[Part.LOG],
        epochs=inside,
        custom=stored.layout.footer(),
        no_aborted_transactions=not stored.layout.lengths[Part.TRANSACTION_INDEX],
    )


async def _end_of_log(stored: SegmentObject, name: str, base_offset: int) -> tuple[int, int]:
    """Return the last offset of the log part, and the largest timestamp in ms that its index and last batches have."""
    newest_ms = (await _last_entry(stored, Part.TIME_INDEX, TIME_ENTRY) or (-1, 0))[0]
    position = (await _last_entry(stored, Part.OFFSET_INDEX, OFFSET_ENTRY) or (0, 0))[1]
    try:
        last, newest_of_batches_ms = await _last_batch(stored, name, position, base_offset)
    except DamagedObjectError:
        if not position:
            raise
        last, newest_of_batches_ms = await _last_batch(stored, name, 0, base_offset)  # the index may be wrong
    return last, max(newest_ms, newest_of_batches_ms)


async def _last_batch(stored: SegmentObject, name: str, position: int, base_offset: int) -> tuple[int, int]:
    """Return the last offset of the log part, and the largest timestamp in ms of the batches from a position on."""
    size = stored.layout.lengths[Part.LOG]
    last = newest_ms = -1
    while position < size:
        piece = await stored.read(Part.LOG, position, min(_PIECE_BYTES, size - position))
        at = 0
        while at + HEADER_SIZE <= len(piece):
            try:
                header = parse_header(piece, at)
            except Malformed:
                raise DamagedObjectError(f"{name}: no batch at byte {position + at} of the log") from None
            last, newest_ms = header.last_offset, max(newest_ms, header.max_timestamp)
            at += header.size
        if not at:
            break  # a header is cut off
        position += at
    if position != size or last < base_offset:
        raise DamagedObjectError(f"{name}: the log does not end with a complete batch")
    return last, newest_ms


async def _last_entry(stored: SegmentObject, part: Part, entry: struct.Struct) -> tuple[int, ...] | None:
    """Return the last entry of an index; None for an empty index, and for an index that is no sequence of entries."""
    size = stored.layout.lengths[part]
    if size < entry.size or size % entry.size:
        return None
    return entry.unpack(await stored.read(part, size - entry.size, entry.size))
