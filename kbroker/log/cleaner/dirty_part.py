"""The first pass of a round: which batch holds the last record of each key, in the part that was not cleaned yet.

Owns how far into the log the table of keys reaches. Never writes a file.

The dirty part is read backwards: then the keys of a batch that were not seen before are those of which it holds the
last record, and a set of keys seen is all that has to be kept. That costs far less memory, and waiting for memory,
than a last place for every key, which changes again and again where keys repeat.
"""

from __future__ import annotations

from contextlib import closing

from kbroker.log.cleaner.batch_filter import read_body
from kbroker.log.cleaner.job import CleaningJob
from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.cleaner.reading import SegmentReader
from kbroker.log.cleaner.transactions import AbortedRanges
from kbroker.log.record_runs import read_runs
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import BatchHeader


def read_dirty_part(job: CleaningJob, reader: SegmentReader) -> OffsetMap:
    """Return the table of the keys, whose `end` is how far the round gets; raises Malformed, OSError."""
    try:
        return _read(job, reader, use_index=True)
    except Malformed:
        # The log itself may be in order: a wrong index misleads a reader that comes from behind.
        return _read(job, reader, use_index=False)


def _read(job: CleaningJob, reader: SegmentReader, *, use_index: bool) -> OffsetMap:
    """Fill a table from the end of the dirty part to its start, with less of it each time that the table is too small.

    Read backwards, the table fills with what lies last, but a round has to begin with what lies first: a table that
    got full on the way is of no use but to tell how many offsets fit. Keys that repeat in one place and not in another
    can prove that wrong again, so each try leaves out at least a quarter of the one before. Mostly there are one or two
    tries; with unlucky keys the round reaches less far than it could, and never needs many.
    """
    end = max(job.upper, job.first_dirty)
    while True:
        offsets = OffsetMap(job.first_dirty, end, job.map_bytes)
        full_at = _fill(offsets, job, reader, use_index)
        if full_at is None:
            return offsets
        end = _shortened(job.first_dirty, offsets.end, full_at)


def _shortened(start: int, end: int, full_at: int) -> int:
    """Return where to end when from `start` to `end` was too much, and only what follows `full_at` had room."""
    fitted = (end - full_at) * 15 // 16  # the same number of offsets elsewhere may hold a few keys more
    return start + max(min(fitted, (end - start) * 3 // 4), 1)


def _fill(offsets: OffsetMap, job: CleaningJob, reader: SegmentReader, use_index: bool) -> int | None:
    """Add all below `offsets.end`; returns None, or behind which offset everything was added when the table was full.

    `offsets.end` moves to the border of a batch: before the batch that it lies in, or behind it if that is the first.
    """
    aborted = AbortedRanges(job.aborted)
    ends = [*(base for base, _ in job.segments), job.upper][1:]
    for (base, size), segment_end in zip(reversed(job.segments), reversed(ends), strict=True):
        if segment_end <= job.first_dirty:
            break
        if base >= offsets.end:
            continue
        with closing(reader.backward(base, size, use_index=use_index)) as batches:
            for _, header, batch in batches:
                if header.last_offset < job.first_dirty:
                    return None
                if not _reaches(offsets, header):
                    continue
                if not header.is_control and header.record_count and not aborted.hold(header):
                    data = read_body(batch, header)
                    if not offsets.add(data, read_runs(data, header.record_count), header.base_offset):
                        return header.last_offset + 1
    return None


def _reaches(offsets: OffsetMap, header: BatchHeader) -> bool:
    """Whether a batch belongs into the table; one across its end becomes the end."""
    if header.last_offset < offsets.end:
        return True
    if offsets.start < header.base_offset < offsets.end:
        offsets.end = header.base_offset
    elif header.base_offset <= offsets.start:
        offsets.end = header.last_offset + 1
        return True
    return False
