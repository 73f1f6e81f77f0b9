"""One segment of a partition: a log file, its indexes, and finding things in it.

Owns `<base offset>.log` and, through their own files, `.index`, `.timeindex` and `.txnindex`. Never checks what a batch
contains, and never decides when to roll, delete or truncate.

The log file is batches one after the other as they were sent (see kbroker.protocol.records), nothing before, between
or behind them. Everything but appending to an open segment is done lazily: an idle segment holds no descriptor and no
mapping.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from kbroker.failpoints import passed
from kbroker.log.batch_scan import may_end_at, read_header, scan_headers
from kbroker.log.files import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    FileHandle,
    offset_name,
)
from kbroker.log.segment import segment_indexes as index_trust
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from kbroker.log.segment.transaction_index import TxnIndex
from kbroker.protocol.records import BatchHeader

if TYPE_CHECKING:
    from kbroker.log.header_chain import Spans

_TAIL_LENGTH = 128  # batches whose positions are remembered, so that reads near the end touch no index


class Segment:
    """A segment; offsets are absolute, positions and sizes in bytes, times in ms."""

    __slots__ = (
        "_handle",
        "_index_bytes",
        "_max_known",
        "_max_offset",
        "_max_timestamp",
        "_since_index",
        "_tail_last",
        "_tail_positions",
        "base_offset",
        "created_ms",
        "damaged",
        "directory",
        "end_proven",
        "ends_whole",
        "first_timestamp",
        "found_size",
        "index_full",
        "index_interval",
        "jitter_ms",
        "offsets",
        "proven",
        "size",
        "tail_start",
        "times",
        "txns",
        "unproven",
        "used",
    )

    def __init__(self, directory: str, base_offset: int, index_interval: int, index_bytes: int, now_ms: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = now_ms
        self.jitter_ms = 0
        self.first_timestamp: int | None = None
        """Largest timestamp of the first batch, from which the segment's age counts; None while empty."""
        self.size = 0
        self.ends_whole = True
        """Whether nothing stood behind the last whole batch when the segment became active."""
        self.damaged = False
        """Whether a look at the file found something in it that is no whole batch, or not as it was written."""
        self.end_proven = False
        """Whether its last batch has been; see links.py."""
        self.found_size = 0
        """Up to here the file is as a start found it, and nobody has looked at its CRCs."""
        self.unproven = 0
        """Up to here the file is as a start found it, and its headers have not all been held against each other."""
        self.proven: Spans | None = None
        """What of them has been."""
        self.index_full = False
        self.used = False
        """Set by every access; whoever closes idle segments clears it."""
        self.offsets: OffsetIndex | None = None
        self.times: TimeIndex | None = None
        self.txns = TxnIndex(directory, base_offset)
        self.index_interval = index_interval
        self._index_bytes = index_bytes
        self._handle: FileHandle | None = None
        self._since_index = 0
        self._max_known = True
        self._max_timestamp = -1
        self._max_offset = base_offset
        self.tail_start = base_offset
        """The tail arrays tell all about offsets from here on, which this process has written."""
        self._tail_last = array("q")  # last offset of each batch
        self._tail_positions = array("q")

    @classmethod
    def create(cls, directory: str, base_offset: int, index_interval: int, index_bytes: int, now_ms: int) -> Segment:
        """Create an empty segment and its files; raises OSError."""
        segment = cls(directory, base_offset, index_interval, index_bytes, now_ms)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            os.close(os.open(segment.path(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        segment.txns.create()
        segment._handle = FileHandle(segment.path(), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return segment

    @classmethod
    def open(cls, directory: str, base_offset: int, index_interval: int, index_bytes: int, now_ms: int) -> Segment:
        """Open an existing log file; nothing but its size is read before it is needed."""
        segment = cls(directory, base_offset, index_interval, index_bytes, now_ms)
        segment.size = segment.unproven = segment.found_size = os.stat(segment.path()).st_size
        if segment.size:
            segment._forget_tail()
            segment._max_known = False
        return segment

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        return offset_name(self.directory, self.base_offset, suffix)

    @property
    def handle(self) -> FileHandle:
        """The open log file."""
        self.used = True
        handle = self._handle
        if handle is None:
            handle = self._handle = FileHandle(self.path(), os.O_RDWR)
        return handle

    # -- writing ----------------------------------------------------------------------------------------------

    def append(self, buffers: tuple[bytes | memoryview, ...], size: int, last_offset: int, timestamp: int) -> None:
        """Write one batch of `size` bytes that ends with `last_offset`; OSError leaves the segment as it was.

        `timestamp` is the batch's largest. If even cutting off a partial write fails, the error has `unrepaired` set,
        and nothing may be appended any more.
        """
        handle = self._handle or self.handle
        position = self.size
        self._write(handle.fd, buffers, size, position)
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
            self._max_offset = last_offset
        if self._since_index > self.index_interval:
            self._add_entry(last_offset, position)
            self._since_index = size
        else:
            self._since_index += size
        if position == 0:
            self.first_timestamp = timestamp
        self.size = position + size
        tail = self._tail_last
        tail.append(last_offset)
        self._tail_positions.append(position)
        if len(tail) > _TAIL_LENGTH:
            self.tail_start = tail[_TAIL_LENGTH // 2] + 1
            del tail[: _TAIL_LENGTH // 2 + 1]
            del self._tail_positions[: _TAIL_LENGTH // 2 + 1]

    def _write(self, fd: int, buffers: tuple[bytes | memoryview, ...], size: int, position: int) -> None:
        try:
            if len(buffers) == 1:
                written = os.pwrite(fd, buffers[0], position)
            else:
                written = os.pwritev(fd, buffers, position)
            if written != size:
                raise OSError(28, f"wrote {written} of {size} bytes")
        except OSError as error:
            try:
                os.ftruncate(fd, position)
            except OSError:
                error.unrepaired = True  # type: ignore[attr-defined]
            raise

    def _add_entry(self, last_offset: int, position: int) -> None:
        if self.offsets is None or self.times is None:
            self._open_files()
        assert self.offsets is not None
        assert self.times is not None
        self.offsets.append(last_offset, position)
        self.times.maybe_append(self._max_timestamp, self._max_offset)
        self.index_full = self.offsets.is_full or self.times.is_full

    def _open_files(self) -> None:
        self.offsets = OffsetIndex(self.path(INDEX_SUFFIX), self.base_offset, self._index_bytes)
        self.times = TimeIndex(self.path(TIME_INDEX_SUFFIX), self.base_offset, self._index_bytes)

    def should_roll(self, size: int, last_offset: int, timestamp: int, now_ms: int, limit: int, age_ms: int) -> bool:
        """Whether a batch of `size` bytes has to go to a new segment."""
        if self.size > limit - size or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self.size == 0:
            return False
        first = self.first_timestamp
        waited = timestamp - first if first is not None and first >= 0 else now_ms - self.created_ms
        return waited > age_ms - self.jitter_ms or self.index_full

    # -- finding ----------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return (position, size) of the first batch that ends at or after `offset`, None if there is none."""
        if offset >= self.tail_start:
            tail = self._tail_last
            index = bisect_left(tail, offset)
            if index == len(tail):
                return None
            position = self._tail_positions[index]
            end = self._tail_positions[index + 1] if index + 1 < len(tail) else self.size
            return position, end - position
        if not self.size:
            return None
        fd = self.handle.fd
        for position, header in scan_headers(fd, self.place_before(offset), self.size):
            if header.last_offset >= offset:
                return position, header.size
        return None

    def is_whole_from(self, offset: int) -> bool:
        """Whether batches follow one another to the end of the file, from one at or before `offset` on."""
        if offset >= self.tail_start or not self.size:
            return True
        end = start = self.place_before(offset)
        for position, header in scan_headers(self.handle.fd, start, self.size):
            end = position + header.size
        return end == self.size

    def place_before(self, offset: int) -> int:
        """Return a position from which a scan finds `offset`, taken from the index only if the log confirms it."""
        index = self.indexes()[0]
        entry = index.lookup(offset)
        if entry is None:
            return 0
        header = read_header(self.handle.fd, entry[1], self.size)
        # A batch that begins at or before the offset is a good place to start, whatever else the entry says.
        if header is not None and self.base_offset <= header.base_offset <= offset:
            return entry[1]
        self.rebuild_indexes()
        entry = self.indexes()[0].lookup(offset)
        return entry[1] if entry else 0

    def offset_beyond(self, position: int) -> int:
        """Return an offset that lies behind everything before `position`, as near as the index knows."""
        index = self.indexes()[0]
        slot = index.entries.last_at_most(position, 1) + 1
        return self.base_offset + (index.entries.get(slot)[0] if slot < index.entries.count else MAX_RELATIVE_OFFSET)

    def boundary_before(self, position: int) -> int:
        """Return the position of a batch at or before `position`, as near as the index knows."""
        offsets = self.indexes()[0]
        slot = offsets.entries.last_at_most(position, 1)
        return offsets.entries.get(slot)[1] if slot >= 0 else 0

    def place_by_time(self, timestamp: int, start_offset: int) -> int | None:
        """Return the beginning of a batch from which on to look for `timestamp` at or after `start_offset`.

        None if the segment holds nothing so late.
        """
        if not self.size or self.max_timestamp < timestamp:
            return None
        entry = self.indexes()[1].lookup(timestamp)
        if entry is not None and not self._confirms(entry):
            self.rebuild_indexes()
            entry = self.indexes()[1].lookup(timestamp)
        return self.place_before(max(entry[1] if entry else self.base_offset, start_offset))

    def _confirms(self, entry: tuple[int, int]) -> bool:
        found = self.find(entry[1])
        header = read_header(self.handle.fd, found[0], self.size) if found else None
        return header is not None and header.base_offset <= entry[1] and header.max_timestamp == entry[0]

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment, -1 if no record has one."""
        if not self._max_known:
            self.indexes()
        return self._max_timestamp

    @property
    def max_timestamp_offset(self) -> int:
        """Last offset of the first batch that has the largest timestamp."""
        if not self._max_known:
            self.indexes()
        return self._max_offset

    def retention_timestamp(self) -> int:
        """Return the largest timestamp, or the file's modification time where no record has one."""
        largest = self.max_timestamp
        return largest if largest >= 0 else int(os.stat(self.path()).st_mtime * 1000)

    # -- indexes ----------------------------------------------------------------------------------------------

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return the indexes, opened, checked against the log and completed on first use."""
        self.used = True
        if self.offsets is None or self.times is None:
            self._open_files()
            assert self.offsets is not None
            assert self.times is not None
            if not self._is_complete():
                start = self._trusted_start()
                self._complete_from(start)
        return self.offsets, self.times

    def _is_complete(self) -> bool:
        # A segment written since it was created, and without index entries yet, has all it needs in memory.
        return self.tail_start == self.base_offset

    def _trusted_start(self) -> int:
        """Return the position behind which the indexes say nothing; 0 after resetting them if they are not true."""
        assert self.offsets is not None
        assert self.times is not None
        trust = index_trust.look(self.offsets, self.times, self.handle.fd, self.size, self.base_offset)
        self.damaged |= trust.damaged
        if trust.newest is not None:
            self._max_timestamp, self._max_offset = trust.newest
            return trust.start
        self.offsets.entries.truncate(0)
        self.times.entries.truncate(0)
        self._max_timestamp, self._max_offset = -1, self.base_offset
        return 0

    def _complete_from(self, start: int) -> None:
        assert self.offsets is not None
        assert self.times is not None
        last = self.offsets.last
        indexed = last[1] if last else 0
        position = start
        for position, header in scan_headers(self.handle.fd, start, self.size):
            self.note_batch(position, header, indexed)
            if position - indexed > self.index_interval:
                indexed = position
            position += header.size
        self.damaged |= position != self.size
        self._since_index = position - indexed
        self.index_full = self.offsets.is_full or self.times.is_full
        self._max_known = True

    def note_batch(self, position: int, header: BatchHeader, indexed: int) -> None:
        """Take a batch found in the file into account; `indexed` is the position of the last index entry."""
        assert self.offsets is not None
        assert self.times is not None
        if position == 0:
            self.first_timestamp = header.max_timestamp
        # A batch that compaction emptied still has a timestamp, but no record to show for it.
        if header.max_timestamp > self._max_timestamp and header.record_count:
            self._max_timestamp, self._max_offset = header.max_timestamp, header.last_offset
        if position - indexed > self.index_interval:
            self.offsets.append(header.last_offset, position)
            self.times.maybe_append(self._max_timestamp, self._max_offset)

    def rebuild_indexes(self) -> None:
        """Forget what the indexes say and read the segment's headers again."""
        self.reset_indexes()
        self._complete_from(0)

    def reset_indexes(self) -> None:
        """Empty the indexes; whoever calls goes on with `note_batch` for each batch, and `end_rebuild`."""
        self._close_indexes()
        self._open_files()
        assert self.offsets is not None
        assert self.times is not None
        self.offsets.entries.truncate(0)
        self.times.entries.truncate(0)
        self._max_timestamp, self._max_offset = -1, self.base_offset

    def end_rebuild(self, size: int, indexed: int) -> None:
        """Finish a rebuild that found whole batches up to `size`; what lies behind is cut off."""
        assert self.offsets is not None
        assert self.times is not None
        if size < self.size:
            os.ftruncate(self.handle.fd, size)
            self.size = size
        self.found_size, self.damaged = 0, False
        self.unproven, self.proven, self.end_proven = size, None, False
        self._since_index = size - indexed
        self.index_full = self.offsets.is_full or self.times.is_full
        self._max_known = True
        self._forget_tail()

    def become_active(self, known_end: int = 0) -> int:
        """Prepare for appending; returns the offset after the last whole batch, and says if that `ends_whole`.

        `known_end` is what a clean stop said that offset is, 0 if nothing did. It decides where the last batch claims
        another one, which no CRC covers, but is as long as it has to be.
        """
        end = self.base_offset
        whole = 0
        if self.size:
            last = self.indexes()[0].last
            for position, header in scan_headers(self.handle.fd, last[1] if last else 0, self.size):
                end = header.last_offset + 1
                whole = position + header.size
                if position == 0:
                    self.first_timestamp = header.max_timestamp
            if self.first_timestamp is None:
                first = read_header(self.handle.fd, 0, self.size)
                self.first_timestamp = first.max_timestamp if first else None
        self.ends_whole = whole == self.size
        if known_end not in (0, end) and may_end_at(self.handle.fd, self.size, self.base_offset, known_end):
            end = known_end
        self._forget_tail()
        self.tail_start = end
        return end

    def _forget_tail(self) -> None:
        self.tail_start = self.base_offset + MAX_RELATIVE_OFFSET + 1 if self.size else self.base_offset
        self._tail_last = array("q")
        self._tail_positions = array("q")

    # -- lifecycle --------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Remove all batches that reach to `offset` or beyond."""
        found = self.find(offset)
        if found is None:
            return
        os.ftruncate(self.handle.fd, found[0])
        self.size = found[0]
        self.found_size = min(self.found_size, self.size)
        self.unproven, self.proven, self.end_proven = min(self.unproven, self.size), None, False
        self.first_timestamp = None
        self._forget_tail()
        self.rebuild_indexes()
        self.txns.truncate_to(offset)

    def seal(self) -> None:
        """Bring the files into the form in which a segment rests: indexes complete and cut to their entries."""
        if self.size:
            times = self.indexes()[1]
            times.maybe_append(self._max_timestamp, self._max_offset)
        if self.offsets is not None and self.times is not None:
            self.offsets.entries.trim()
            self.times.entries.trim()
            # A resting segment is like one that was just opened: its indexes are looked at again when needed.
            self.offsets = self.times = None
        self._forget_tail()

    def release(self) -> None:
        """Close the descriptor and the mappings; they are opened again when needed. Slices keep theirs.

        The time index is left with the largest timestamp at its end, which Kafka takes for the segment's.
        """
        self._handle = None
        if self.offsets is not None and self.times is not None:
            self.times.maybe_append(self._max_timestamp, self._max_offset)
            self.offsets.entries.trim()
            self.times.entries.trim()
        self.offsets = self.times = None

    def _close_indexes(self) -> None:
        if self.offsets is not None and self.times is not None:
            self.offsets.entries.close()
            self.times.entries.close()
        self.offsets = self.times = None

    def move(self, directory: str) -> None:
        """Follow the partition's directory to a new name."""
        self.directory = directory
        self.txns.path = self.path(TXN_INDEX_SUFFIX)

    def mark_deleted(self) -> list[str]:
        """Give the files names that loading passes over; returns those that are to be removed later."""
        self.release()
        doomed = []
        for suffix in SEGMENT_SUFFIXES:
            path = self.path(suffix)
            try:
                os.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            doomed.append(path + DELETED_SUFFIX)
            passed("segment.marked")
        return doomed
