"""The checks of a batch's records before an append, if the check of the header is not sufficient.

Owns Kafka's checks of single records (LogValidator), their order and texts, and the limits of a batch's uncompressed
size. Also owns the rewriting that the topic's settings or the header's errors require. Never appends, and never keeps
more of a batch in memory than some of its records (record_walk.py).

`open_batch` works in slices, but most batches are small: `open_at_once` does a few slices and leaves the rest to a
caller that can wait. Most batches are valid: `is_in_order` uncompresses a small batch completely, and checks it in one
compiled call. It never refuses a batch: if its result is False, `open_batch` decides. A new rule for single records
must be added to `_Findings`, to `is_in_order` (False for a batch that the rule may refuse), and to
BatchRules.checks_records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple

from kbroker.log import record_walk
from kbroker.log.append_info import CLIENT, AppendError, AppendOrigin, RecordErrors, invalid_records
from kbroker.log.append_validation import BatchRules, rewrite
from kbroker.log.recompression import rebuild, renumber
from kbroker.log.record_check import MayWrite, RecordCheck, may_write_anywhere
from kbroker.log.record_walk import Slice, record_slices
from kbroker.long_work import turn
from kbroker.protocol.compression import CODEC_NAMES, ZSTD, unpack
from kbroker.protocol.decompression import unpack_zstd_at_once
from kbroker.protocol.errors import EndlessNumber, ErrorCode, Malformed, Undecodable
from kbroker.protocol.records import CODEC_MASK, HEADER_SIZE, TIMESTAMP_TYPE_BIT, BatchHeader, parse_header, wrap

MOST_ERRORS: Final = 1000
"""The maximum number of record errors in one response. Kafka lists all errors."""
_AT_ONCE_SECONDS: Final = 0.001  # the time in which nearly every batch can be checked
_REGAINED: Final = 0.8  # `_Allowance` regains this share of the elapsed time
_FEW: Final = 20_000  # the maximum number of records checked in one call, which takes 0.2 ms
_MOST_AT_ONCE: Final = 512 << 10  # the maximum number of bytes uncompressed in one call: 0.1 to 0.6 ms
_NO_TIMESTAMP: Final = -1
_I64: Final = 2**63


class Opened(NamedTuple):
    """A batch whose records have been checked."""

    batch: memoryview
    """The batch to store."""
    rules: BatchRules
    """The rules with which the batch was checked."""
    is_judged: bool = False
    """Whether the records have also passed the topic's own check (record_check.py)."""


class Opening(NamedTuple):
    """A batch whose records are being checked."""

    work: Coroutine[Any, Any, Opened] | None
    """The remaining work, if the work has begun. From then on the work uses memory."""
    again: partial[Coroutine[Any, Any, Opened]]
    """A function that starts the complete work again."""
    check: RecordCheck | None = None
    """The check of the opened batch, if required. The check may wait, so the batch must not be in a reused buffer."""

    def on(self, records: memoryview) -> Opening:
        """Stop the work of this opening. Return a new opening of a copy of the bytes. Its work has not begun."""
        if self.work is not None:
            self.work.close()
        batch, *others = self.again.args
        return Opening(None, partial(self.again.func, records[: len(batch)], *others), self.check)


class TakesLonger(Exception):  # noqa: N818 - nothing is wrong
    """Opening a batch takes too long for one step. Nothing has changed.

    A caller that continues the work should keep only the `opening`, because the exception's traceback uses more memory.
    """

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self.opening = opening


class _Allowance(threading.local):
    """The time for which batches may still be opened immediately.

    All callers on a thread share this time, because they share the thread's loop.
    """

    def __init__(self) -> None:
        self._left = _AT_ONCE_SECONDS
        self._since = 0.0

    def begin(self) -> float:
        """Return the deadline, in the time of `perf_counter`."""
        now = perf_counter()
        self._left = min(self._left + (now - self._since) * _REGAINED, _AT_ONCE_SECONDS)
        self._since = now
        return now + self._left

    def end(self) -> None:
        """Subtract the time used."""
        now = perf_counter()
        self._left -= now - self._since
        self._since = now


_allowance = _Allowance()


def is_in_order(
    records: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, check: RecordCheck | None = None
) -> bool:
    """Whether `open_batch` and the check would certainly find no error and rewrite nothing; False means unknown.

    `records` are exactly one batch of a client.
    """
    count, codec = header[12], header[5] & CODEC_MASK
    scan = record_walk.scan
    if scan is None or count > _FEW or header[5] & TIMESTAMP_TYPE_BIT or rules.codec not in (-1, codec):
        return False
    data: bytes | memoryview | None = records
    start = HEADER_SIZE
    if codec:
        data, start = _unpacked_at_once(codec, records[HEADER_SIZE:]), 0
    if data is None or (codec and len(data) > rules.max_record):
        return False
    number, end, smallest, largest, _, in_order, lacks_keys, _ = scan(data, start, count, 0)
    if number != count or end != len(data) or not in_order or (lacks_keys and rules.compact):
        return False
    if check is not None and not check.passes(data, start, count):
        return False
    if rules.log_append_time:
        return True
    largest += header[7]
    smallest += header[7]
    in_range = now_ms - rules.before_max_ms <= smallest and largest <= now_ms + rules.after_max_ms
    return in_range and smallest >= _NO_TIMESTAMP and largest == header[8]


def _unpacked_at_once(codec: int, body: memoryview) -> bytes | None:
    """Return a batch's uncompressed records; None if the records are large or broken, or if no time is left."""
    if len(body) > _MOST_AT_ONCE:
        return None
    until = _allowance.begin()
    try:
        if perf_counter() >= until:
            return None
        if codec == ZSTD and (found := unpack_zstd_at_once(body)) is not None:
            return found
        pieces = []
        for piece in unpack(codec, body, _MOST_AT_ONCE):
            pieces.append(piece)
            if perf_counter() >= until:
                return None
        return b"".join(pieces)
    except Malformed:
        return None
    finally:
        _allowance.end()


def open_and_judge(
    records: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, check: RecordCheck
) -> Opening:
    """Return the `Opening` of a client's batch. `check` has to check the records of this batch."""
    return Opening(None, partial(open_batch, records, header, rules, now_ms, CLIENT), check)


async def judged(
    opened: Opened,
    check: RecordCheck,
    is_repeated: Callable[[BatchHeader], bool],
    may_write: MayWrite = may_write_anywhere,
) -> Opened:
    """Return an opened batch with the records that the check accepts. Raises AppendError. The check may wait.

    A repeated batch passes: it will not be appended again, and its producer must receive the result of the first
    append.
    """
    batch = opened.batch
    if not is_repeated(parse_header(batch)):
        batch = await check.judge(batch, opened.rules, may_write)
    return Opened(batch, opened.rules, is_judged=True)


def open_at_once(
    records: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, origin: AppendOrigin
) -> Opened:
    """Run `open_batch` if it takes only a moment, else raise TakesLonger. Raises AppendError for an invalid batch."""
    again = partial(open_batch, records, header, rules, now_ms, origin)
    work = again()
    until = _allowance.begin()
    try:
        work.send(None)
        while perf_counter() < until:
            work.send(None)
    except StopIteration as end:
        opened: Opened = end.value
        return opened
    finally:
        _allowance.end()
    raise TakesLonger(Opening(work, again))


async def open_batch(
    records: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, origin: AppendOrigin
) -> Opened:
    """Check every record; return the batch, rewritten where required. Raises AppendError.

    A writable buffer is changed in place, at the end: attributes, largest timestamp and CRC.
    """
    if header.is_control:
        return Opened(records, rules)  # a coordinator of this broker wrote the batch; the batch is stored unchanged
    if header.record_count > rules.max_records:
        detail = f"batch of {header.record_count} records exceeds the limit of {rules.max_records}"
        raise AppendError(ErrorCode.INVALID_RECORD, detail=detail)
    findings = _Findings(header, rules, now_ms)
    target = header.codec if rules.codec < 0 else rules.codec
    kept: list[bytes] = []
    try:
        for found in record_slices(
            records,
            header,
            rules.max_decompressed,
            rules.max_records,
            kept if target != header.codec else None,
            rules.max_record if header.codec else None,
        ):
            if found is not None:
                findings.take(found, judge=origin is CLIENT)
            await turn
    except Malformed as error:
        # Kafka's validator does not expect these two errors, so Kafka returns UNKNOWN_SERVER_ERROR to the client.
        unexpected = isinstance(error, Undecodable) or (isinstance(error, EndlessNumber) and not header.codec)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if unexpected else ErrorCode.INVALID_RECORD
        raise AppendError(code, detail=str(error)) from error
    findings.refuse()
    if target == header.codec:
        if findings.in_order:
            return Opened(_with_true_timestamp(records, header, findings, rules), rules)
        if header.codec:
            raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, detail="offsets of compressed records are not in order")
    elif findings.smallest < _NO_TIMESTAMP:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, detail=f"no batch can be built with time {findings.smallest}")
    times = (findings.first, findings.largest)
    if findings.in_order and findings.begins_at_base:
        rebuilt = await rebuild(records, header, target, rules, findings.size, times, kept)
    else:
        rebuilt = await renumber(records, header, target, rules, findings.size, times)
    if rebuilt is None:
        detail = f"batch in codec {CODEC_NAMES[target]} exceeds max.message.bytes {rules.max_size}"
        raise AppendError(ErrorCode.MESSAGE_TOO_LARGE, detail=detail)
    return Opened(memoryview(rebuilt), rules)


class _Findings:
    """The results of the checks of one batch's records so far."""

    def __init__(self, header: BatchHeader, rules: BatchRules, now_ms: int) -> None:
        self._header = header
        self._rules = rules
        self._earliest = now_ms - rules.before_max_ms
        self._latest = now_ms + rules.after_max_ms
        self._seen = 0
        self._errors: RecordErrors = []
        self._error_count = 0
        self._bad_timestamp = False
        self.size = 0
        """The uncompressed size of the records in bytes."""
        self.first = self.largest = _NO_TIMESTAMP
        """The first and the largest timestamp in ms."""
        self.smallest = _NO_TIMESTAMP
        """The smallest timestamp in ms, but at most NO_TIMESTAMP (-1)."""
        self.in_order = True
        self.begins_at_base = True
        """Whether the base timestamp is the first record's timestamp, as in every batch that this broker builds."""

    def take(self, found: Slice, *, judge: bool) -> None:
        """Add the next records. With `judge`, also note the errors of these records."""
        header = self._header
        smallest, largest = self._times(found)
        if not self._seen:
            stamp = next(found.rows())[1]
            self.begins_at_base = not stamp and not header.timestamp_type
            self.first = header.max_timestamp if header.timestamp_type else wrap(header.base_timestamp + stamp)
        if judge and not self._is_fine(found, smallest, largest):
            self._judge(found)
        if largest > self.largest:
            self.largest = largest
        if smallest < self.smallest:
            self.smallest = smallest
        self.in_order = self.in_order and found.in_order(self._seen)
        self._seen += found.number
        self.size = found.end

    def _times(self, found: Slice) -> tuple[int, int]:
        header = self._header
        if header.timestamp_type:
            return header.max_timestamp, header.max_timestamp
        stamps = list(found.stamps())
        smallest, largest = header.base_timestamp + min(stamps), header.base_timestamp + max(stamps)
        if smallest >= -_I64 and largest < _I64:
            return smallest, largest
        times = [wrap(header.base_timestamp + row[1]) for row in found.rows()]
        return min(times), max(times)

    def _is_fine(self, found: Slice, smallest: int, largest: int) -> bool:
        if self._header.timestamp_type or (self._rules.compact and found.lacks_keys()):
            return False
        return self._rules.log_append_time or self._earliest <= smallest <= largest <= self._latest

    def _judge(self, found: Slice) -> None:
        header, rules = self._header, self._rules
        for index, (delta, stamp, key, value) in enumerate(found.rows(), self._seen):
            offset = header.base_offset + delta
            timestamp = header.max_timestamp if header.timestamp_type else wrap(header.base_timestamp + stamp)
            if rules.compact and key < 0:
                if self._has_room_for_text():
                    text = f"Compacted topic cannot accept message without key in topic partition {rules.name}"
                    self._errors.append((index, text))
            elif not rules.log_append_time and timestamp != _NO_TIMESTAMP:
                if not self._earliest <= timestamp <= self._latest:
                    self._bad_timestamp = True
                    if self._has_room_for_text():
                        text = f"Timestamp {timestamp} of message with offset {offset} is out of range. "
                        text += f"The timestamp should be within [{self._earliest}, {self._latest}]"
                        self._errors.append((index, text))
            elif header.timestamp_type:
                self._bad_timestamp = True
                if self._has_room_for_text():
                    text = (
                        f"Invalid timestamp type in message DefaultRecord(offset={offset}, timestamp={timestamp}, "
                        f"key={max(key, 0)} bytes, value={max(value, 0)} bytes). "
                    )
                    self._errors.append((index, f"{text}Producer should not set timestamp type to LogAppendTime."))

    def _has_room_for_text(self) -> bool:
        """Count an error; return whether its text still fits in the response."""
        self._error_count += 1
        return self._error_count <= MOST_ERRORS

    def refuse(self) -> None:
        """Raise AppendError if there is any error."""
        errors = self._errors
        if not errors:
            return
        if self._bad_timestamp:
            text = "One or more records have been rejected due to invalid timestamp"
            raise AppendError(ErrorCode.INVALID_TIMESTAMP, text, errors)
        raise invalid_records(errors, self._error_count)


def _with_true_timestamp(
    records: memoryview, header: BatchHeader, findings: _Findings, rules: BatchRules
) -> memoryview:
    if rules.log_append_time:
        return records  # stamped later
    if findings.largest == header.max_timestamp and not header.timestamp_type:
        return records
    return rewrite(records, header.attributes & ~TIMESTAMP_TYPE_BIT, findings.largest)
