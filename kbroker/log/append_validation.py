"""What a batch must be before it may be appended.

Owns the checks of Kafka's ProduceRequest, UnifiedLog and LogValidator, their order, error codes and the texts that
reach clients, and the rewriting that a topic's settings ask for. Never appends, and knows nothing of producers'
sequences.

A batch's header is always checked, but for one that a coordinator of this broker has just built, of which only the
size is. Its records are only walked where a rule needs it: a compacted topic, another codec,
timestamps out of range, a caller that asks for everything. For a compacted topic, where that is every batch, a look at
many records at once (record_runs.py) mostly tells that walking them would find nothing.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from kbroker.log.append_info import CLIENT, AppendError, AppendOrigin, RecordErrors
from kbroker.log.log_config import LogConfig
from kbroker.log.record_runs import read_runs
from kbroker.protocol.compression import CODEC_NAMES, ZSTD, codec_of, decompress
from kbroker.protocol.errors import EndlessNumber, ErrorCode, Malformed, Undecodable
from kbroker.protocol.records import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Record,
    build_batch,
    parse_header,
    read_records,
    rewrite_timestamps,
)

_NO_TIMESTAMP: Final = -1
_LATEST_PRODUCE: Final = 13
_MIN_DECOMPRESSED: Final = 16 << 20

_header_of = BatchHeader._make
_unpack_header = HEADER.unpack_from


class BatchRules:
    """One topic's settings, ready for the checks; built again when the settings change."""

    __slots__ = (
        "after_max_ms",
        "before_max_ms",
        "codec",
        "compact",
        "level",
        "log_append_time",
        "max_decompressed",
        "max_size",
        "name",
        "segment_ms",
    )

    def __init__(self, name: str, config: LogConfig) -> None:
        self.name = name
        """`topic-partition`, for texts."""
        self.max_size = config.max_message_bytes
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.compact = config.compact
        # What is in the active segment cannot be compacted, so it has to be closed in time.
        self.segment_ms = min(config.segment_ms, config.max_compaction_lag_ms) if self.compact else config.segment_ms
        """Age in ms at which the log starts a new segment."""
        self.log_append_time = config.log_append_time
        codec_name = "none" if config.compression_type == "uncompressed" else config.compression_type
        self.codec = -1 if codec_name == "producer" else codec_of(codec_name)
        """The codec to store with, -1 to keep the producer's."""
        self.level = config.level_of(codec_name)
        # Kafka has no bound here; without one a batch of a megabyte could claim the memory of the whole machine.
        self.max_decompressed = max(_MIN_DECOMPRESSED, 100 * config.max_message_bytes)


def check_header(records: memoryview, rules: BatchRules, origin: AppendOrigin, version: int) -> BatchHeader:
    """Check all that a batch's header shows; returns it, or raises AppendError. `records` must be exactly one batch."""
    try:
        header = _header_of(_unpack_header(records))
    except struct.error:
        raise _explain(records, rules, origin, version) or AppendError(ErrorCode.INVALID_RECORD) from None
    size = header[1] + LOG_OVERHEAD
    count = header[12]
    if (
        size != len(records)
        or header[3] != MAGIC
        or size > rules.max_size
        or header[6] + 1 != count  # offsets' range and count
        or count < 1
        or header[5] & CONTROL_BIT
        or header[5] & CODEC_MASK >= ZSTD
        or header[0]
        or (header[9] >= 0 and header[11] < 0)
        or crc32c(records[CRC_START:]) != header[4]
    ):
        error = _explain(records, rules, origin, version)
        if error is not None:
            raise error
    return header


def check_own(records: memoryview, rules: BatchRules) -> BatchHeader:
    """Check the size of a batch that a coordinator of this broker has just built: nothing else can be wrong with it."""
    header = parse_header(records)
    if header.size > rules.max_size:
        raise _too_large(header, rules)
    return header


def _too_large(header: BatchHeader, rules: BatchRules) -> AppendError:
    detail = f"batch of {header.size} bytes exceeds max.message.bytes {rules.max_size}"
    return AppendError(ErrorCode.MESSAGE_TOO_LARGE, detail=detail)


def _explain(records: memoryview, rules: BatchRules, origin: AppendOrigin, version: int) -> AppendError | None:
    """Find out, in Kafka's order, what is wrong with a batch that looked unusual; None if it is in order after all."""
    invalid = ErrorCode.INVALID_RECORD
    error = _check_framing(records, version)
    if error is not None:
        return error
    header = parse_header(records)
    if origin is CLIENT and header.base_offset != 0:
        return AppendError(invalid, detail=f"base offset of a produced batch is {header.base_offset}, not 0")
    if header.size > rules.max_size:
        return _too_large(header, rules)
    if crc32c(records[CRC_START : header.size]) != header.crc:
        return AppendError(ErrorCode.CORRUPT_MESSAGE, detail=f"stored CRC {header.crc} does not match the batch")
    if header.codec > ZSTD:
        return AppendError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, detail=f"unknown codec {header.codec}")
    if header.last_offset_delta < 0 or header.record_count <= 0 or header.last_offset_delta + 1 != header.record_count:
        detail = f"offsets 0 to {header.last_offset_delta} for {header.record_count} records"
        return AppendError(invalid, detail=detail)
    if origin is not CLIENT:
        return None
    if header.is_control:
        return AppendError(invalid, detail="clients are not allowed to write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        return AppendError(invalid, detail=f"sequence {header.base_sequence} with producer id {header.producer_id}")
    return None


def _check_framing(records: memoryview, version: int) -> AppendError | None:
    corrupt, invalid = ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD
    if len(records) < LOG_OVERHEAD:
        return AppendError(invalid, detail="no record batch")
    size = int.from_bytes(records[8:12], signed=True) + LOG_OVERHEAD
    if size < LOG_OVERHEAD + 14:  # the smallest message of any format
        return AppendError(corrupt, detail=f"batch claims {size} bytes")
    if len(records) < 17:
        return AppendError(invalid, detail="no record batch")
    magic = int.from_bytes(records[16:17], signed=True)
    if not 0 <= magic <= MAGIC:
        return AppendError(corrupt, detail=f"batch has magic {magic}")
    if size > len(records):
        return AppendError(invalid, detail="no whole record batch")
    if magic != MAGIC:
        return AppendError(invalid, detail=f"batch has magic {magic}")
    if size < HEADER_SIZE:
        return AppendError(corrupt, detail=f"batch of {size} bytes is smaller than its header")
    if version < 7 and records[22] & CODEC_MASK == ZSTD:
        return AppendError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, detail=f"zstd in Produce version {version}")
    rest = records[size:]
    if rest and _check_framing(rest, _LATEST_PRODUCE) is None:
        return AppendError(invalid, detail="more than one record batch")
    return None


def trim(records: memoryview) -> memoryview:
    """Cut off a partial batch that follows the first; Kafka passes over it as well."""
    if len(records) < LOG_OVERHEAD:
        return records
    size = int.from_bytes(records[8:12], signed=True) + LOG_OVERHEAD
    return records[:size] if HEADER_SIZE <= size < len(records) else records


def needs_walk(header: BatchHeader, rules: BatchRules, now_ms: int) -> bool:
    """Whether single records have to be looked at."""
    if rules.compact or header.attributes & TIMESTAMP_TYPE_BIT:
        return True
    if rules.codec >= 0 and rules.codec != header.attributes & CODEC_MASK:
        return True
    if rules.log_append_time:
        return False
    latest, earliest = now_ms + rules.after_max_ms, now_ms - rules.before_max_ms
    return header.max_timestamp > latest or header.base_timestamp > latest or header.base_timestamp < earliest


def needs_other_codec(header: BatchHeader, rules: BatchRules) -> bool:
    """Whether the topic stores its batches in another codec than a batch has."""
    return rules.codec not in (-1, header.codec)


def walk(
    records: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, origin: AppendOrigin
) -> memoryview | bytes:
    """Check every record; returns the batch, rewritten where the topic's settings or the header's errors ask for it."""
    if header.is_control:
        return records  # written by a coordinator of ours, stored as it is
    if rules.compact and _is_plain(records, header, rules, now_ms):
        return records
    try:
        found = list(read_records(records, max_bytes=rules.max_decompressed))
    except Malformed as error:
        # Kafka's validator does not expect these two, so its clients know them under this code.
        unexpected = isinstance(error, Undecodable) or (isinstance(error, EndlessNumber) and not header.codec)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if unexpected else ErrorCode.INVALID_RECORD
        raise AppendError(code, detail=str(error)) from error
    if origin is CLIENT:
        _refuse_records(found, header, rules, now_ms)
    target = header.codec if rules.codec < 0 else rules.codec
    in_order = all(record.offset == header.base_offset + index for index, record in enumerate(found))
    if not in_order and header.codec:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, detail="offsets of compressed records are not in order")
    if target == header.codec and in_order:
        return _with_true_timestamp(records, header, found, rules)
    rebuilt = build_batch(
        found,
        codec=target,
        level=rules.level,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
    )
    if len(rebuilt) > rules.max_size:
        detail = f"batch of {len(rebuilt)} bytes in codec {CODEC_NAMES[target]} exceeds {rules.max_size}"
        raise AppendError(ErrorCode.MESSAGE_TOO_LARGE, detail=detail)
    return rebuilt


def _is_plain(records: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int) -> bool:
    """Whether a batch surely may stay as it is; False may mean anything."""
    if header.timestamp_type or header.size != len(records) or needs_other_codec(header, rules):
        return False
    try:
        data = bytes(decompress(header.codec, records[HEADER_SIZE:], rules.max_decompressed))
    except Malformed:
        return False
    plain = read_plain(data, header.record_count)
    if plain is None or rules.log_append_time:
        return plain is not None
    smallest, largest = header.base_timestamp + plain[0], header.base_timestamp + plain[1]
    in_range = now_ms - rules.before_max_ms <= smallest and largest <= now_ms + rules.after_max_ms
    return in_range and smallest >= _NO_TIMESTAMP and largest == header.max_timestamp


def read_plain(data: bytes, count: int) -> tuple[int, int] | None:
    """Return the smallest and the largest timestamp of a batch's records, not compressed any more, from its base on.

    None if the records are not plain (with a key, in the order of their offsets, whole).
    """
    delta = 0
    smallest: list[int] = []
    largest: list[int] = []
    try:
        for run in read_runs(data, count):
            if run.key_size < 0 or not run.in_order(delta) or not run.well_formed(data):
                return None
            stamps = list(run.stamps(data))
            smallest.append(min(stamps))
            largest.append(max(stamps))
            delta += run.number
    except (Malformed, IndexError):
        return None
    return (min(smallest), max(largest)) if delta else None


def stamp(records: memoryview | bytes, header: BatchHeader, now_ms: int) -> memoryview:
    """Return the batch with LogAppendTime `now_ms` on it; done in place where the buffer can be written."""
    return _rewrite(records, header.attributes | TIMESTAMP_TYPE_BIT, now_ms)


def _with_true_timestamp(
    records: memoryview, header: BatchHeader, found: list[Record], rules: BatchRules
) -> memoryview:
    if rules.log_append_time:
        return records  # stamped later
    largest = max((record.timestamp for record in found), default=_NO_TIMESTAMP)
    largest = max(largest, _NO_TIMESTAMP)
    if largest == header.max_timestamp and not header.timestamp_type:
        return records
    return _rewrite(records, header.attributes & ~TIMESTAMP_TYPE_BIT, largest)


def _rewrite(records: memoryview | bytes, attributes: int, max_timestamp: int) -> memoryview:
    batch = memoryview(records)
    if batch.readonly:
        batch = memoryview(bytearray(records))
    rewrite_timestamps(batch, attributes, max_timestamp)
    return batch


def _refuse_records(found: list[Record], header: BatchHeader, rules: BatchRules, now_ms: int) -> None:
    errors: RecordErrors = []
    bad_timestamp = False
    earliest, latest = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    for index, record in enumerate(found):
        if rules.compact and record.key is None:
            text = f"Compacted topic cannot accept message without key in topic partition {rules.name}"
            errors.append((index, text))
        elif not rules.log_append_time and record.timestamp != _NO_TIMESTAMP:
            if not earliest <= record.timestamp <= latest:
                bad_timestamp = True
                text = f"Timestamp {record.timestamp} of message with offset {record.offset} is out of range. "
                errors.append((index, f"{text}The timestamp should be within [{earliest}, {latest}]"))
        elif header.timestamp_type:
            bad_timestamp = True
            text = f"Invalid timestamp type in message {_describe(record)}. "
            errors.append((index, f"{text}Producer should not set timestamp type to LogAppendTime."))
    if not errors:
        return
    if bad_timestamp:
        text = "One or more records have been rejected due to invalid timestamp"
        raise AppendError(ErrorCode.INVALID_TIMESTAMP, text, errors)
    shown = ", ".join(f"RecordError(batchIndex={index}, message='{message}')" for index, message in errors[:3])
    text = (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )
    raise AppendError(ErrorCode.INVALID_RECORD, text, errors)


def _describe(record: Record) -> str:
    key_size = 0 if record.key is None else len(record.key)
    value_size = 0 if record.value is None else len(record.value)
    return (
        f"DefaultRecord(offset={record.offset}, timestamp={record.timestamp}, "
        f"key={key_size} bytes, value={value_size} bytes)"
    )
