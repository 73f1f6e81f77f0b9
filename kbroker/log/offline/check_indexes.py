"""Compare a segment's indexes with its log, batch by batch.

Owns the checks of `.index`, `.timeindex` and `.txnindex`. Never reads the log itself: the reader of the log passes each
batch to `IndexChecks.batch`. An index with one wrong entry is unusable, so each index is reported at most once.

While a segment is being written, the unused end of its indexes consists of zeros, both in kbroker's files and in
Kafka's preallocated files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from kbroker.log.files import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, offset_name
from kbroker.log.offline.audit import Finding, OpenFile
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from kbroker.log.segment.transaction_index import TXN_ENTRY, AbortedTxn, decode_aborted
from kbroker.protocol.records import BatchHeader

_Entry = tuple[int, int, int]  # position in the index file, and the two columns; offsets are absolute


class Untrue(Exception):  # noqa: N818 - an outcome, caught one level up
    """An index does not match its log; `position` is the position in the index file."""

    def __init__(self, position: int | None, what: str) -> None:
        super().__init__(what)
        self.position = position
        self.what = what


def used_entries(file: OpenFile, entry: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (position, fields) of the entries before the zeros. Raises Untrue if other bytes follow the zeros."""
    for position, fields in file.entries(entry):
        if not any(fields):
            other = file.first_nonzero(position)
            if other is not None:
                raise Untrue(other, "an entry follows unused space")
            return
        yield position, fields
    if file.size % entry.size:
        raise Untrue(file.size - file.size % entry.size, f"the last {file.size % entry.size} bytes are a partial entry")


class _Cursor:
    """Reads an index in parallel with the log."""

    __slots__ = ("_entries", "current")

    def __init__(self, entries: Iterator[_Entry]) -> None:
        self._entries = entries
        self.current: _Entry | None = next(entries, None)

    def advance(self) -> None:
        self.current = next(self._entries, None)


def _entries(file: OpenFile, index: type[OffsetIndex | TimeIndex], base: int) -> Iterator[_Entry]:
    last: tuple[int, ...] = (-1, -1)
    for place, fields in used_entries(file, index.entry):
        relative, other = fields[index.offset_column], fields[1 - index.offset_column]
        if fields[0] <= last[0] or fields[1] < last[1] + index.least_step or relative > MAX_RELATIVE_OFFSET:
            name = "timestamp" if index.offset_column else "position"
            raise Untrue(place, f"offset {base + relative}, {name} {other} is not beyond the previous entry")
        last = fields
        yield place, base + relative, other


class _OffsetCheck:
    """Checks that each entry contains the position of a batch.

    The entry's offset must be the last offset of that batch or of a later batch.
    """

    def __init__(self, file: OpenFile, path: str, base: int) -> None:
        self.path = path
        self._by_position = _Cursor(_entries(file, OffsetIndex, base))
        self._by_offset = _Cursor(_entries(file, OffsetIndex, base))

    def batch(self, position: int, header: BatchHeader) -> None:
        cursor = self._by_position
        while cursor.current is not None and cursor.current[2] <= position:
            place, offset, claimed = cursor.current
            if claimed < position:
                raise Untrue(place, f"no batch begins at position {claimed}")
            if header.base_offset > offset:
                raise Untrue(
                    place, f"offset {offset} lies before the batch at position {claimed}, which begins with {header[0]}"
                )
            cursor.advance()
        cursor = self._by_offset
        while cursor.current is not None and cursor.current[1] <= header.last_offset:
            place, offset, _ = cursor.current
            if offset < header.last_offset:
                raise Untrue(place, f"offset {offset} is not the last of any batch")
            cursor.advance()

    def end(self, size: int, _resting: bool) -> None:
        for cursor in (self._by_position, self._by_offset):
            if cursor.current is not None:
                place, offset, position = cursor.current
                raise Untrue(place, f"offset {offset}, position {position} lies beyond the log's {size} bytes")


class _TimeCheck:
    """Checks that each entry names a batch with the entry's timestamp.

    All earlier batches must have smaller timestamps.
    """

    def __init__(self, file: OpenFile, path: str, base: int) -> None:
        self.path = path
        self._cursor = _Cursor(_entries(file, TimeIndex, base))
        self._largest = -1
        self._noted = -1

    def batch(self, _position: int, header: BatchHeader) -> None:
        cursor = self._cursor
        while cursor.current is not None and cursor.current[1] <= header.last_offset:
            place, offset, timestamp = cursor.current
            if offset < header.base_offset:
                raise Untrue(place, f"offset {offset} is in no batch")
            if header.max_timestamp != timestamp:
                raise Untrue(
                    place, f"timestamp {timestamp}, but the batch of offset {offset} has {header.max_timestamp}"
                )
            if self._largest >= timestamp:
                raise Untrue(place, f"timestamp {timestamp} of offset {offset} is reached by an earlier batch")
            self._noted = timestamp
            cursor.advance()
        if header.record_count:  # a batch without records, which compaction leaves, needs no entry
            self._largest = max(self._largest, header.max_timestamp)

    def end(self, size: int, resting: bool) -> None:
        if self._cursor.current is not None:
            place, offset, _ = self._cursor.current
            raise Untrue(place, f"offset {offset} lies beyond the log's {size} bytes")
        if resting and self._noted < self._largest:
            # Kafka reads the segment's largest timestamp only from the last entry.
            raise Untrue(None, f"ends with timestamp {self._noted}, the log's largest is {self._largest}")


class TxnCheck:
    """Checks that the entries are exactly the aborted transactions that end in the segment, each once."""

    def __init__(self, file: OpenFile | None, path: str, base: int) -> None:
        self.path = path
        self._entries = _txn_entries(file, base) if file is not None else iter(())
        self._current: tuple[int, AbortedTxn] | None = next(self._entries, None)

    def batch(self, _position: int, _header: BatchHeader) -> None:
        """Ignore the batch: the header alone does not show how a transaction ends."""

    def marker(self, offset: int, producer_id: int, expected: AbortedTxn | None, certain: bool) -> None:
        """Check an abort marker.

        `expected` is the entry according to the log. This entry is complete only if `certain`.
        """
        entry = self._current
        if entry is not None and entry[1].last_offset < offset:
            raise Untrue(entry[0], f"no transaction was aborted at offset {entry[1].last_offset}")
        if entry is None or entry[1].last_offset != offset:
            if expected is not None:
                raise Untrue(None, f"the transaction of producer {producer_id} aborted at offset {offset} is missing")
            return
        self._current = next(self._entries, None)
        place, found = entry
        if found.producer_id != producer_id:
            raise Untrue(place, f"producer {found.producer_id}, but {producer_id} has the marker at offset {offset}")
        if expected is not None and found.first_offset > expected.first_offset:
            raise Untrue(place, f"begins with {found.first_offset}, the transaction with {expected.first_offset}")
        if certain and found != expected:
            raise Untrue(place, f"says {_txn_text(found)}, the log says {_txn_text(expected)}")

    def end(self, _size: int, _resting: bool) -> None:
        if self._current is not None:
            place, entry = self._current
            raise Untrue(place, f"no transaction was aborted at offset {entry.last_offset}")


def _txn_text(entry: AbortedTxn | None) -> str:
    if entry is None:
        return "nothing"
    return f"offsets {entry.first_offset} to {entry.last_offset}, stable {entry.last_stable_offset}"


def _txn_entries(file: OpenFile, base: int) -> Iterator[tuple[int, AbortedTxn]]:
    previous = base - 1
    for place, fields in file.entries(TXN_ENTRY):
        try:
            entry = decode_aborted(fields, previous)
        except ValueError as error:
            raise Untrue(place, str(error)) from error
        previous = entry.last_offset
        yield place, entry
    if file.size % TXN_ENTRY.size:
        raise Untrue(file.size - file.size % TXN_ENTRY.size, "the last bytes are a partial entry")


class IndexChecks:
    """The checks of a segment's three indexes; `findings` contains at most one fault for each index."""

    def __init__(self, directory: str, base: int, log_size: int, *, recovery: bool) -> None:
        self._files = ExitStack()
        self._recovery = recovery
        self.findings: list[Finding] = []
        self._checks: dict[str, _OffsetCheck | _TimeCheck | TxnCheck] = {}
        for suffix, kind in (
            (INDEX_SUFFIX, _OffsetCheck),
            (TIME_INDEX_SUFFIX, _TimeCheck),
            (TXN_INDEX_SUFFIX, TxnCheck),
        ):
            path = offset_name(directory, base, suffix)
            try:
                file = self._files.enter_context(OpenFile(path))
            except FileNotFoundError:
                # Kafka creates the index of aborted transactions only when it writes the first entry.
                if kind is TxnCheck:
                    self._checks[suffix] = TxnCheck(None, path, base)
                elif log_size:
                    self.findings.append(Finding(path, None, "is missing and will be built again", recovery))
                continue
            with self._judging(suffix, path):
                self._checks[suffix] = kind(file, path, base)

    @contextmanager
    def _judging(self, suffix: str, path: str) -> Iterator[None]:
        """Stop checking an index if the block raises Untrue; convert the exception to a finding."""
        try:
            yield
        except Untrue as error:
            self.findings.append(Finding(path, error.position, error.what, self._recovery))
            self._checks.pop(suffix, None)

    def batch(self, position: int, header: BatchHeader) -> None:
        for suffix, check in list(self._checks.items()):
            with self._judging(suffix, check.path):
                check.batch(position, header)

    def marker(self, offset: int, producer_id: int, expected: AbortedTxn | None, certain: bool) -> None:
        check = self._checks.get(TXN_INDEX_SUFFIX)
        if isinstance(check, TxnCheck):
            with self._judging(TXN_INDEX_SUFFIX, check.path):
                check.marker(offset, producer_id, expected, certain)

    def close(self, size: int, *, whole: bool, resting: bool) -> None:
        """Finish the checks. If all of the log's `size` bytes were read (`whole`), an entry that is left is an error.

        If `resting` is true, no broker writes to the segment any more.
        """
        if whole:
            for suffix, check in list(self._checks.items()):
                with self._judging(suffix, check.path):
                    check.end(size, resting)
        self._checks.clear()
        self._files.close()
