"""The checks that a batch must pass before it is appended.

Owns the checks of Kafka's ProduceRequest, UnifiedLog and LogValidator that need only the batch header: their order,
error codes and messages to clients. Also decides whether the records must be checked (record_validation.py), and owns
the limits of bytes and records of an uncompressed batch. Never appends, and never checks producers' sequences.

The header of a batch from a client or a leader is always checked. For a batch from this broker's own coordinators, only
the size is checked. Records are checked only if a rule requires it: for a compacted topic, another codec, timestamps
out of range, or a topic with full validation.
"""

from __future__ import annotations

import struct
from typing import Final

from kbroker.log.append_info import CLIENT, AppendError, AppendOrigin
from kbroker.log.log_config import LogConfig
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.compression import ZSTD, codec_of
from kbroker.protocol.errors import ErrorCode, Malformed
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
    parse_header,
    rewrite_timestamps,
)

_MIN_DECOMPRESSED: Final = 16 << 20
_MIN_RECORDS: Final = 1 << 20


def most_unpacked(max_message_bytes: int) -> tuple[int, int]:
    """Return the maximum numbers of uncompressed bytes and of records in a batch whose records are checked.

    Kafka has neither limit; without these limits a batch of some kilobytes could keep a broker busy for hours.
    """
    return max(_MIN_DECOMPRESSED, 100 * max_message_bytes), max(_MIN_RECORDS, max_message_bytes)


_LATEST_PRODUCE: Final = 13

_header_of = BatchHeader._make
_unpack_header = HEADER.unpack_from


class BatchRules:
    """One topic's settings, prepared for the checks; created again when the settings change."""

    __slots__ = (
        "after_max_ms",
        "before_max_ms",
        "checks_records",
        "codec",
        "compact",
        "judges_records",
        "level",
        "log_append_time",
        "max_decompressed",
        "max_record",
        "max_records",
        "max_size",
        "name",
        "segment_bytes",
        "segment_ms",
    )

    def __init__(self, name: str, config: LogConfig) -> None:
        self.name = name
        """`topic-partition`, for messages."""
        self.max_size = config.max_message_bytes
        self.segment_bytes = config.segment_bytes
        self.before_max_ms = config.message_timestamp_before_max_ms
        self.after_max_ms = config.message_timestamp_after_max_ms
        self.judges_records = config.judges_records
        """Whether records must also pass the topic's own check (record_check.py)."""
        self.checks_records = config.record_validation != "header" or self.judges_records
        """Whether all records of a client's batch are checked.

        If False, the records are checked only if the header is not sufficient.
        """
        self.compact = config.compact
        # The active segment is never compacted, so it must be closed before the lag ends.
        self.segment_ms = min(config.segment_ms, config.max_compaction_lag_ms) if self.compact else config.segment_ms
        """The age in ms at which the log starts a new segment."""
        self.log_append_time = config.log_append_time
        codec_name = "none" if config.compression_type == "uncompressed" else config.compression_type
        self.codec = -1 if codec_name == "producer" else codec_of(codec_name)
        """The codec with which batches are stored; -1 keeps the producer's codec."""
        self.level = config.level_of(codec_name)
        self.max_decompressed, self.max_records = most_unpacked(config.max_message_bytes)
        """The maximum size in bytes of a batch's decompressed records, and their maximum number.

        Both bound the work of the checks. They are not limits of the topic.
        """
        self.max_record = config.max_decompressed_message_bytes
        """The maximum size in bytes of a record in a compressed batch."""


def beyond_segment(size: int, rules: BatchRules) -> AppendError:
    """Return the error for a batch whose stored form exceeds segment.bytes."""
    detail = f"batch of {size} bytes exceeds segment.bytes {rules.segment_bytes}"
    return AppendError(ErrorCode.RECORD_LIST_TOO_LARGE, detail=detail)


def check_header(records: memoryview, rules: BatchRules, origin: AppendOrigin, version: int) -> BatchHeader:
    """Check a batch's header and return it. Raises AppendError if invalid. `records` must be exactly one batch."""
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
        or header[6] + 1 != count  # the range of offsets differs from the record count
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
    """Check the size of a batch that a coordinator of this broker has just built. Its other fields are always valid."""
    header = parse_header(records)
    if header.size > rules.max_size and not header.is_control:  # a control batch must always be written
        raise _too_large(header, rules)
    return header


def check_replicated(batch: memoryview, latest_epoch: int) -> BatchHeader:
    """Check a batch from the leader, and return its header. Raises AppendError.

    The leader has already checked the records. The batch's size is not checked, because an earlier setting of the topic
    may have allowed this size.
    """
    try:
        header = parse_header(batch)
    except Malformed as error:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=str(error)) from error
    if header.size != len(batch) or crc32c(batch[CRC_START:]) != header.crc:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=f"the batch at {header.base_offset} is damaged")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.leader_epoch < latest_epoch:
        # The CRC does not cover these fields.
        detail = f"offsets {header.base_offset} to {header.last_offset} in epoch {header.leader_epoch} are impossible"
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=detail)
    return header


def _too_large(header: BatchHeader, rules: BatchRules) -> AppendError:
    detail = f"batch of {header.size} bytes exceeds max.message.bytes {rules.max_size}"
    return AppendError(ErrorCode.MESSAGE_TOO_LARGE, detail=detail)


def _explain(records: memoryview, rules: BatchRules, origin: AppendOrigin, version: int) -> AppendError | None:
    """Return the error of an unusual batch, in Kafka's order of checks; return None if the batch is valid."""
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
    """Remove a partial batch that follows the first batch; Kafka also ignores it."""
    if len(records) < LOG_OVERHEAD:
        return records
    size = int.from_bytes(records[8:12], signed=True) + LOG_OVERHEAD
    return records[:size] if HEADER_SIZE <= size < len(records) else records


def needs_walk(header: BatchHeader, rules: BatchRules, now_ms: int) -> bool:
    """Whether single records of this batch must be checked in a topic without `record.validation=full`."""
    if rules.compact or header.attributes & TIMESTAMP_TYPE_BIT:
        return True
    if rules.codec >= 0 and rules.codec != header.attributes & CODEC_MASK:
        return True
    if rules.log_append_time:
        return False
    latest, earliest = now_ms + rules.after_max_ms, now_ms - rules.before_max_ms
    return header.max_timestamp > latest or header.base_timestamp > latest or header.base_timestamp < earliest


def needs_other_codec(header: BatchHeader, rules: BatchRules) -> bool:
    """Whether the topic stores its batches with a codec that differs from this batch's codec."""
    return rules.codec not in (-1, header.codec)


def stamp(records: memoryview | bytes, header: BatchHeader, now_ms: int) -> memoryview:
    """Return the batch with LogAppendTime `now_ms`; change it in place if the buffer is writable."""
    return rewrite(records, header.attributes | TIMESTAMP_TYPE_BIT, now_ms)


def rewrite(records: memoryview | bytes, attributes: int, max_timestamp: int) -> memoryview:
    """Return the batch with other attributes and another largest timestamp; change it in place if writable."""
    batch = memoryview(records)
    if batch.readonly:
        batch = memoryview(bytearray(records))
    rewrite_timestamps(batch, attributes, max_timestamp)
    return batch
