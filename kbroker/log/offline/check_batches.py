"""Read the segments of a partition and check that every batch is complete, valid and in order, with a correct CRC.

Owns reading the `.log` files in order and the state between batches: the next offset and the open transactions. Each
batch's records are also read: a CRC shows that they are unchanged since they were produced, not that they are readable.
Never repairs anything. Never keeps more of a file in memory than a chunk or one valid batch, whatever size a batch
claims.

Compaction leaves gaps between offsets and removes records of transactions. From the first gap on, checks that depend on
possibly missing records are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from typing import Final

from kbroker.log.files import LOG_SUFFIX, offset_name, read_at
from kbroker.log.offline.audit import CHUNK, Checked, Finding, OpenFile, Progress
from kbroker.log.offline.check_checkpoints import EpochCheck
from kbroker.log.offline.check_indexes import IndexChecks
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.log.record_walk import record_slices
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET
from kbroker.log.segment.transaction_index import AbortedTxn
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import CRC_START, HEADER_SIZE, BatchHeader, parse_header, read_marker

_LARGEST_MARKER: Final = 1 << 16
_LARGEST_BATCH: Final = 1 << 27  # larger than the maximum size of a request
_MOST_TRANSACTIONS: Final = 1 << 20
"""The maximum number of open transactions that are remembered.

If a partition has more, its transactions are not checked.
"""


class Window:
    """A file that is read one chunk at a time."""

    __slots__ = ("_chunk", "_file", "_progress", "_start")

    def __init__(self, file: OpenFile, progress: Progress) -> None:
        self._file = file
        self._progress = progress
        self._start = 0
        self._chunk = memoryview(b"")

    def read(self, position: int, size: int) -> memoryview:
        """Return `size` bytes (at most CHUNK), or fewer at the end of the file."""
        offset = position - self._start
        if offset < 0 or offset + size > len(self._chunk):
            self._start, offset = position, 0
            self._chunk = memoryview(read_at(self._file.fd, min(CHUNK, self._file.size - position), position))
            self._progress(len(self._chunk))
        return self._chunk[offset : offset + size]

    def crc(self, position: int, end: int) -> int:
        value = 0
        while position < end:
            part = self.read(position, min(CHUNK, end - position))
            if not part:
                break
            value = crc32c(part, value)
            position += len(part)
        return value


class Bad(Exception):  # noqa: N818 - an outcome, caught one level up
    """A batch is not valid; `size` is its size in bytes if the next batch can still be found, and None otherwise."""

    def __init__(self, what: str, size: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.size = size


class PartitionWalk:
    """The state after the batches read so far, for the checks of the next batches."""

    def __init__(
        self,
        directory: str,
        first_base: int,
        epochs: EpochCheck,
        producers: Sequence[ProducerEntry] | None,
        progress: Progress,
        checked: Checked,
    ) -> None:
        """Begin at the first segment; `producers` is the content of its snapshot, or None if unknown."""
        self.directory = directory
        self.next_offset = first_base
        self._epochs = epochs
        self._progress = progress
        self._checked = checked
        self._dense = producers is not None
        self._open = {
            p.producer_id: p.current_txn_first_offset for p in producers or () if p.current_txn_first_offset >= 0
        }

    def segment(
        self, base: int, next_base: int | None, *, recovers: bool, resting: bool
    ) -> Generator[Finding, None, bool]:
        """Check a segment and its indexes. `recovers` means that the next start reads and repairs the complete segment.

        `resting` means that no broker was writing to the segment any more.

        Return whether the segment was read to its end: if not, recovery removes all segments after it.
        """
        path = offset_name(self.directory, base, LOG_SUFFIX)
        if base < self.next_offset:
            yield Finding(
                path, None, f"begins with offset {base}, but the segment before reaches {self.next_offset - 1}"
            )
        self._dense = self._dense and base == self.next_offset
        self.next_offset = max(base, self.next_offset)
        with OpenFile(path) as file:
            indexes = IndexChecks(self.directory, base, file.size, recovery=recovers)
            whole = yield from self._batches(file, base, next_base, indexes, recovers)
            indexes.close(file.size, whole=whole, resting=resting)
            yield from indexes.findings
        return whole

    def _batches(
        self, file: OpenFile, base: int, next_base: int | None, indexes: IndexChecks, recovers: bool
    ) -> Generator[Finding, None, bool]:
        window = Window(file, self._progress)
        position = 0
        while position < file.size:
            try:
                header = self._sound(window, file, position, base)
            except Bad as bad:
                if recovers:
                    what = f"recovery will cut {file.size - position} bytes from here on: {bad.what}"
                    yield Finding(file.path, position, what, True)
                    return False
                self._dense = False
                indexes.close(file.size, whole=False, resting=False)  # index entries of a bad batch cannot be checked
                if bad.size is None:
                    what = f"{bad.what}; the last {file.size - position} bytes cannot be read"
                    yield Finding(file.path, position, what)
                    return False
                yield Finding(file.path, position, bad.what)
                position += bad.size
                continue
            if next_base is not None and header.last_offset >= next_base:
                yield Finding(
                    file.path, position, f"offset {header.last_offset} is beyond the next segment's {next_base}"
                )
            yield from self._epochs.batch(file.path, position, header, recovers)
            indexes.batch(position, header)
            unreadable = self._unreadable(window, file, position, header)
            if unreadable is not None:
                what = f"no client can read the records from offset {header.base_offset} on: {unreadable}; "
                yield Finding(file.path, position, f"{what}the next batch begins at {header.last_offset + 1}")
            self._transactions(window, position, header, indexes)
            self._checked.batches += 1
            self._checked.records += header.record_count
            self.next_offset = header.last_offset + 1
            position += header.size
        return True

    def _sound(self, window: Window, file: OpenFile, position: int, base: int) -> BatchHeader:
        """Return the header of the batch at `position`. Raises Bad if recovery would stop at this batch."""
        left = file.size - position
        if left < HEADER_SIZE:
            raise Bad(f"{left} bytes are no batch")
        try:
            header = parse_header(window.read(position, HEADER_SIZE))
        except Malformed as error:
            raise Bad(str(error)) from error
        if header.size > left:
            raise Bad(f"the batch has {header.size} bytes, but only {left} are left in the file")
        if header.base_offset < self.next_offset:
            raise Bad(f"offset {header.base_offset} is below {self.next_offset}, the next offset", header.size)
        if header.last_offset_delta < 0 or header.record_count < 0:
            raise Bad(f"{header.record_count} records up to offset delta {header.last_offset_delta}", header.size)
        if header.last_offset - base > MAX_RELATIVE_OFFSET:
            raise Bad(f"offset {header.last_offset} is too far from the segment's {base}", header.size)
        crc = window.crc(position + CRC_START, position + header.size)
        if crc != header.crc:
            raise Bad(f"the CRC is {crc:#010x}, the batch says {header.crc:#010x}", header.size)
        if header.producer_id >= 0 and header.is_control:
            self._marker(window, position, header)
        return header

    def _unreadable(self, window: Window, file: OpenFile, position: int, header: BatchHeader) -> str | None:
        """Return the reason why a batch's records are unreadable; None if they are readable."""
        if header.size > _LARGEST_BATCH:
            return f"a batch of {header.size} bytes"
        if header.size <= CHUNK:
            batch = window.read(position, header.size)
        else:
            batch = memoryview(read_at(file.fd, header.size, position))
        seen, whole = 0, header.record_count == header.last_offset_delta + 1  # not `whole`: compaction removed records
        try:
            for found in record_slices(batch, header, sys.maxsize):
                if found is None:
                    continue
                if whole and not found.in_order(seen):
                    return "their offsets are not in order"
                seen += found.number
        except Malformed as error:
            return str(error)
        return None

    def _marker(self, window: Window, position: int, header: BatchHeader) -> bool | None:
        """Return whether a control batch commits; None if the batch ends no transaction. Raises Bad."""
        if header.size > _LARGEST_MARKER:
            raise Bad(f"a control batch of {header.size} bytes", header.size)
        try:
            marker = read_marker(window.read(position, header.size))
        except Malformed as error:
            raise Bad(str(error), header.size) from error
        return None if marker is None else marker.commit

    def _transactions(self, window: Window, position: int, header: BatchHeader, indexes: IndexChecks) -> None:
        count = header.last_offset_delta + 1
        self._dense = self._dense and header.record_count == count and header.base_offset == self.next_offset
        producer = header.producer_id
        if producer < 0 or not header.is_transactional:
            return
        if not header.is_control:
            if len(self._open) < _MOST_TRANSACTIONS:
                self._open.setdefault(producer, header.base_offset)
            else:
                self._dense = False
            return
        commit = self._marker(window, position, header)
        if commit is None:
            return
        first = self._open.pop(producer, None)
        if not commit:
            offset = header.base_offset
            stable = min(self._open.values(), default=offset + 1)
            expected = None if first is None else AbortedTxn(producer, first, offset, stable)
            indexes.marker(offset, producer, expected, self._dense)
