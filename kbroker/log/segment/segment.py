"""One segment of a partition: a log file, its indexes, and lookups in them.

Owns `<base offset>.log` and, through their own modules, `.index`, `.timeindex` and `.txnindex`. When the log file
changes, this module also removes `.headers`, which views/header_indexes.py makes. Never checks a batch's content, and
never decides when to roll, delete or truncate.

The log file is a plain sequence of batches as they were sent (see kbroker.protocol.records). Everything except
appending to an open segment is done lazily: an idle segment uses no descriptor and no mapping, and open_files.py
decides which segments have to close their files. Code that uses a file while another file may be opened keeps the
file's handle instead of its descriptor's number.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from array import array
from bisect import bisect_left

from kbroker.failpoints import passed
from kbroker.log.batch_scan import may_end_at, read_header, scan_headers
from kbroker.log.files import (
    DELETED_SUFFIX,
    HEADERS_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    FileHandle,
    offset_name,
    open_descriptor,
    remove_quietly,
)
from kbroker.log.log_config import LogConfig
from kbroker.log.open_files import OpenFiles
from kbroker.log.segment.found_file import FoundFile
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from kbroker.log.segment.segment_indexes import SegmentIndexes
from kbroker.log.segment.transaction_index import TxnIndex
from kbroker.protocol.records import LOG_OVERHEAD, MAGIC, BatchHeader

_HEAD = struct.Struct(">qiibIhi")  # base offset, length, leader epoch, magic, CRC, attributes, last offset delta
_TAIL_LENGTH = 128  # the number of batches whose positions are kept; reads of these batches use no index


class Segment:
    """A segment; offsets are absolute, positions and sizes in bytes, times in ms."""

    __slots__ = (
        "__weakref__",
        "_checked_size",
        "_created_ms",
        "_directory",
        "_first_timestamp",
        "_handle",
        "_inode",
        "_jitter_ms",
        "_tail_last",
        "_tail_positions",
        "_used",
        "base_offset",
        "deleted",
        "ends_whole",
        "files",
        "found",
        "indexes",
        "size",
        "tail_start",
        "txns",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        config: LogConfig,
        now_ms: int,
        files: OpenFiles,
        jitter_ms: int = 0,
    ) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self._created_ms = now_ms
        self._jitter_ms = jitter_ms
        # the timestamp of the first batch, from which the segment's age is counted
        self._first_timestamp: int | None = None
        self.size = 0
        self.ends_whole = True
        """Whether the file ended with the last complete batch when the segment became active."""
        self.found = FoundFile()
        self.indexes = SegmentIndexes(directory, base_offset, config.index_interval_bytes, config.segment_index_bytes)
        self.txns = TxnIndex(directory, base_offset)
        self.files = files
        """Limits the number of segments with open files."""
        self.deleted = False
        """Whether the segment was removed from its log, and its files are renamed."""
        self._used = False  # whether the files were used since the last check; an append only changes the size
        self._checked_size = 0
        self._handle: FileHandle | None = None
        self._inode = 0  # the log file's inode, after it is marked for deletion
        self.tail_start = base_offset
        """The tail arrays describe all batches from this offset on. This process has written these batches."""
        self._tail_last = array("q")  # the last offset of each batch
        self._tail_positions = array("q")

    @classmethod
    def create(
        cls, directory: str, base_offset: int, config: LogConfig, now_ms: int, files: OpenFiles, *, jitter_ms: int = 0
    ) -> Segment:
        """Create an empty segment and its files. Raises OSError."""
        segment = cls(directory, base_offset, config, now_ms, files, jitter_ms)
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            os.close(open_descriptor(segment.path(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
        segment.txns.create()
        segment._handle = FileHandle(segment.path(), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        files.opened(segment)
        return segment

    @classmethod
    def open(cls, directory: str, base_offset: int, config: LogConfig, now_ms: int, files: OpenFiles) -> Segment:
        """Open an existing log file. Only its size is read; all other data is read when it is needed."""
        segment = cls(directory, base_offset, config, now_ms, files)
        segment.size = os.stat(segment.path()).st_size
        segment.found = FoundFile(segment.size)
        if segment.size:
            segment._forget_tail()
            segment.indexes.forget()
        return segment

    def path(self, suffix: str = LOG_SUFFIX) -> str:
        return offset_name(self._directory, self.base_offset, suffix)

    @property
    def handle(self) -> FileHandle:
        self._used = True
        return self._handle or self._open_log()

    def _open_log(self) -> FileHandle:
        if self.deleted:
            handle = FileHandle(self.path() + DELETED_SUFFIX, os.O_RDONLY)
            # After two compactions within file.delete.delay.ms, two deleted segments have the same name.
            if os.fstat(handle.fd).st_ino != self._inode:
                raise OSError(errno.ESTALE, "another segment has taken the name of a deleted one")
            self.files.keep(self)
            self._handle = handle
        else:
            self._handle = FileHandle(self.path(), os.O_RDWR)
            self.files.opened(self)
        return self._handle

    # -- writing ----------------------------------------------------------------------------------------------

    def append(self, buffers: tuple[bytes | memoryview, ...], size: int, last_offset: int, timestamp: int) -> None:
        """Append one batch of `size` bytes that ends with `last_offset`; an OSError leaves the segment unchanged.

        This write blocks the event loop: for 0.2 s with 52 MB on a slow disk. `max.message.bytes` limits the batch's
        size. `timestamp` is the batch's largest timestamp. If a partial write cannot be removed, the error has
        `unrepaired` set, and no batch may be appended any more.
        """
        fd = (self._handle or self.handle).fd
        position = self.size
        try:
            if len(buffers) == 1:
                written = os.pwrite(fd, buffers[0], position)
            else:
                written = os.pwritev(fd, buffers, position)
            if written != size:
                raise OSError(errno.ENOSPC, f"no space left on the device: wrote {written} of {size} bytes")
        except OSError as error:
            try:
                os.ftruncate(fd, position)
            except OSError:
                error.unrepaired = True  # type: ignore[attr-defined]
            raise
        self.indexes.note(position, last_offset, timestamp)
        if position == 0:
            self._first_timestamp = timestamp
        self.size = position + size
        tail = self._tail_last
        tail.append(last_offset)
        self._tail_positions.append(position)
        if len(tail) > _TAIL_LENGTH:
            self.tail_start = tail[_TAIL_LENGTH // 2] + 1
            del tail[: _TAIL_LENGTH // 2 + 1]
            del self._tail_positions[: _TAIL_LENGTH // 2 + 1]

    def should_roll(self, size: int, last_offset: int, timestamp: int, now_ms: int, limit: int, age_ms: int) -> bool:
        if self.size > limit - size or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if self.size == 0:
            return False
        first = self._first_timestamp
        waited = timestamp - first if first is not None and first >= 0 else now_ms - self._created_ms
        return waited > age_ms - self._jitter_ms or self.indexes.full

    def start_again(self, now_ms: int) -> None:
        """Reset an empty segment to its state after creation."""
        self.indexes.reset()
        self._created_ms = now_ms

    # -- finding ----------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return (position, size) of the first batch that ends at or after `offset`; None if there is no such batch."""
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
        place, batch = self._indexed(offset)
        if batch is not None:
            if batch.last_offset >= offset:
                return place, batch.size
            place += batch.size
        for position, header in scan_headers(self.handle, place, self.size):
            if header.last_offset >= offset:
                return position, header.size
        return None

    def shows(self, position: int, size: int, offset: int) -> bool:
        """Whether the file still contains the batch that `find` returned for `offset`.

        This process must have written the batch. The batch may begin after `offset` if the leader's compaction has left
        a hole.
        """
        head = os.pread((self._handle or self.handle).fd, _HEAD.size, position)
        if len(head) < _HEAD.size:
            return False
        base, length, _, magic, _, _, last_delta = _HEAD.unpack(head)
        if length + LOG_OVERHEAD != size or magic != MAGIC:
            return False
        tail = self._tail_last
        index = bisect_left(tail, offset)
        behind = tail[index - 1] if index else self.base_offset - 1
        return bool(behind < base and base + last_delta == tail[index])

    def is_whole_from(self, offset: int) -> bool:
        """Whether the file's batches follow one another, from the batch at or before `offset` on."""
        if offset >= self.tail_start or not self.size:
            return True
        end = start = self.place_before(offset)
        for position, header in scan_headers(self.handle, start, self.size):
            end = position + header.size
        return end == self.size

    def place_before(self, offset: int) -> int:
        """Return a position to start a scan for `offset`; the index is used only if the log confirms its entry."""
        return self._indexed(offset)[0]

    def _indexed(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Return a position before `offset`, and the header of the batch at this position if it was read."""
        index = self._offset_index()
        entry = index.lookup(offset)
        if entry is None:
            return 0, None
        header = read_header(self.handle, entry[1], self.size)
        # A batch that begins at or before the offset is a valid start, even if the index entry is otherwise wrong.
        if header is not None and self.base_offset <= header.base_offset <= offset:
            return entry[1], header
        self._rebuild_indexes()
        entry = self._offset_index().lookup(offset)
        return (entry[1] if entry else 0), None

    def offset_beyond(self, position: int) -> int:
        """Return an offset that is higher than all offsets before `position`.

        The offset is as low as the index allows.
        """
        index = self._offset_index()
        slot = index.last_at_most(position, 1) + 1
        return self.base_offset + (index.get(slot)[0] if slot < index.count else MAX_RELATIVE_OFFSET)

    def boundary_before(self, position: int) -> int:
        """Return the position of a batch at or before `position`, as near as the index allows."""
        offsets = self._offset_index()
        slot = offsets.last_at_most(position, 1)
        return offsets.get(slot)[1] if slot >= 0 else 0

    def place_by_time(self, timestamp: int, start_offset: int) -> int | None:
        """Return the position of the first batch to search for `timestamp`, from `start_offset` on.

        Return None if all timestamps of the segment are smaller.
        """
        if not self.size or self.max_timestamp < timestamp:
            return None
        entry = self._time_index().lookup(timestamp)
        if entry is not None and not self._confirms(entry):
            self._rebuild_indexes()
            entry = self._time_index().lookup(timestamp)
        return self.place_before(max(entry[1] if entry else self.base_offset, start_offset))

    def _confirms(self, entry: tuple[int, int]) -> bool:
        found = self.find(entry[1])
        header = read_header(self.handle, found[0], self.size) if found else None
        return header is not None and header.base_offset <= entry[1] and header.max_timestamp == entry[0]

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the segment; -1 if no record has a timestamp."""
        if not self.indexes.known:
            self._offset_index()
        return self.indexes.max_timestamp

    def written_ms(self) -> int:
        """Return the largest timestamp, or the file's modification time if there is no timestamp. Raises OSError."""
        largest = self.max_timestamp
        return largest if largest >= 0 else int(os.stat(self.path()).st_mtime * 1000)

    def _offset_index(self) -> OffsetIndex:
        return self._checked_indexes()[0]

    def _time_index(self) -> TimeIndex:
        return self._checked_indexes()[1]

    def _checked_indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Open and return the indexes. On first use, compare them with the log and complete them."""
        self._used = True
        if not self.indexes.is_open:
            handle = self.handle
            self.files.opened(self)
            # If this process created the segment and has not added an index entry yet, all facts are in memory.
            if self.tail_start != self.base_offset:
                self.indexes.complete(handle, self.size)
        return self.indexes.open()

    def _rebuild_indexes(self) -> None:
        self.indexes.rebuild(self.handle, self.size)

    # -- recovery ---------------------------------------------------------------------------------------------

    def begin_recovery(self) -> None:
        """Empty all indexes; the caller must then call `indexes.note` for each valid batch, and `end_recovery`."""
        self.drop_headers()
        self.indexes.reset()
        self.txns.reset()

    def end_recovery(self, size: int) -> None:
        """Finish a recovery that found valid batches up to `size`; truncate the file to this size."""
        if size < self.size:
            os.ftruncate(self.handle.fd, size)
            self.size = size
        self.found.recovered(size)
        self.indexes.end_rebuild()
        self._forget_tail()

    def become_active(self, known_end: int = 0) -> int:
        """Prepare for appending; return the offset after the last complete batch, and set `ends_whole`.

        `known_end` is that offset according to a clean stop, or 0 if unknown. If the last batch has the right length
        but another offset, which no CRC covers, `known_end` is used.
        """
        end = self.base_offset
        whole = 0
        self._first_timestamp = None
        if self.size:
            last = self._offset_index().last
            for position, header in scan_headers(self.handle, last[1] if last else 0, self.size):
                end = header.last_offset + 1
                whole = position + header.size
            first = read_header(self.handle, 0, self.size)
            self._first_timestamp = first.max_timestamp if first else None
        self.ends_whole = whole == self.size
        if known_end not in (0, end) and may_end_at(self.handle, self.size, self.base_offset, known_end):
            end = known_end
        self._forget_tail()
        self.tail_start = end
        return end

    def _forget_tail(self) -> None:
        self.tail_start = self.base_offset + MAX_RELATIVE_OFFSET + 1 if self.size else self.base_offset
        self._tail_last = array("q")
        self._tail_positions = array("q")

    # -- lifecycle --------------------------------------------------------------------------------------------

    def prepare_cut(self, offset: int) -> tuple[int, int] | None:
        """Open and check all files that `truncate_to` needs: a failure here changes nothing."""
        found = self.find(offset)
        if found is not None:
            self._checked_indexes()  # the entries for the remaining part stay valid
            _ = self.handle
        return found

    def truncate_to(self, offset: int) -> None:
        """Remove all batches that end at or after `offset`."""
        found = self.prepare_cut(offset)
        if found is None:
            return
        self.drop_headers()
        os.ftruncate(self.handle.fd, found[0])
        self.size = found[0]
        self.found.cut(self.size)
        self._forget_tail()
        if self.indexes.damaged:
            self._rebuild_indexes()
        else:
            self.indexes.cut(self.handle, self.size, offset)
        self.txns.truncate_to(offset)

    def seal(self) -> None:
        """Write the files' final content: complete the indexes, and truncate them to their entries."""
        if self.size:
            self._checked_indexes()
            self.indexes.note_largest()
        self.indexes.close()
        self._forget_tail()

    def release(self) -> None:
        """Close the descriptor and the mappings; they are opened again when needed."""
        self._handle = None
        self.files.closed(self)
        if self.indexes.is_open:
            self.indexes.note_largest()
            self.indexes.close()

    def was_used(self) -> bool:
        """Whether the files have been used since the last call, or since `release_unused`."""
        used = self._used or self.size != self._checked_size
        self._used, self._checked_size = False, self.size
        return used

    def release_unused(self, *, force: bool, idle: bool) -> None:
        """Close the open files if `force` is set, or if `idle` is set and the files were unused since the last call."""
        if self._handle is not None or self.indexes.is_open:
            if force or (idle and not self._used):
                self.release()
            self._used = False

    def move(self, directory: str) -> None:
        self._directory = directory
        self.indexes.move(directory)
        self.txns.move(directory)

    def mark_replaced(self) -> tuple[list[str], list[str]]:
        """Rename the log file and the index of headers to names that loading ignores.

        Return two lists: the files to remove later, because slices may still need them, and the files to remove
        immediately. An index without its log is useless, and loading removes it.
        """
        return self._mark((LOG_SUFFIX, HEADERS_SUFFIX)), [self.path(suffix) for suffix in SEGMENT_SUFFIXES[1:]]

    def mark_deleted(self) -> list[str]:
        """Rename the files to names that loading ignores; return the files to remove later."""
        return self._mark((*SEGMENT_SUFFIXES, HEADERS_SUFFIX))

    def drop_headers(self) -> None:
        """Remove the index of headers, if there is one: the log file changes, or the index is damaged."""
        remove_quietly(self.path(HEADERS_SUFFIX))

    def _mark(self, suffixes: tuple[str, ...]) -> list[str]:
        self.release()
        again = self.deleted  # an earlier attempt renamed only some files
        if not again:
            with contextlib.suppress(OSError):
                self._inode = os.stat(self.path()).st_ino
        self.deleted = True  # set this first: a reader on another thread checks `deleted` when its file has changed
        renamed: list[str] = []
        for suffix in suffixes:
            path = self.path(suffix)
            try:
                os.rename(path, path + DELETED_SUFFIX)
            except FileNotFoundError:
                if again:
                    renamed.append(path + DELETED_SUFFIX)
                continue
            except OSError:
                self.deleted = again or bool(renamed)
                raise
            renamed.append(path + DELETED_SUFFIX)
            passed("segment.marked")
        return renamed
