"""Batches, logs and crashes for the tests of the log."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from kbroker.log.files import remove_quietly
from kbroker.log.invariants import log_class
from kbroker.log.log_config import LogConfig
from kbroker.log.log_state import LogHost
from kbroker.log.partition_log import PartitionLog
from kbroker.log.recovery import LastStop
from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import Record, build_batch, iter_batches, read_records

NOW = 1_700_000_000_000
HOUR = 3_600_000
_OF_HOST = {each.name for each in fields(LogHost)}


def damage(log: PartitionLog) -> None:
    """Overwrite the magic of the first batch while the log is open."""
    with open(log.segments.active.path(), "r+b") as file:
        file.seek(16)
        file.write(b"\x7f")


def batch(
    count: int = 1, *, value: bytes = b"value", timestamp: int = NOW, key: bytes | None = b"key", **kw: Any
) -> bytes:
    return build_batch([(timestamp + index, key, value, ()) for index in range(count)], **kw)


def open_log(directory: Path, *, clean: bool = True, config: LogConfig | None = None, **kw: Any) -> PartitionLog:
    """Open a log; `kw` are fields of LastStop and of LogHost."""
    directory.mkdir(exist_ok=True)
    host = LogHost(**{name: kw.pop(name) for name in list(kw) if name in _OF_HOST})
    stop = LastStop(clean=clean, **kw)
    return log_class()(str(directory), "topic", 0, config or LogConfig(), now_ms=NOW, stop=stop, host=host)


def first_at(log: PartitionLog, timestamp: int) -> tuple[int, int, int] | None:
    """Return (offset, timestamp, leader epoch) of the first record with at least this timestamp."""
    return whole(log.find_timestamp(timestamp))


def largest(log: PartitionLog) -> tuple[int, int, int] | None:
    """Return (offset, timestamp, leader epoch) of the first record with the largest timestamp."""
    return whole(log.find_max_timestamp())


def delete_due(log: PartitionLog, now_ms: int) -> int:
    """Apply retention; return the number of deleted segments."""
    return whole(log.delete_old_segments(now_ms))


def purge(log: PartitionLog, now_ms: int) -> int:
    """Remove the due files of deleted segments; return their number."""
    paths = log.take_deleted(now_ms, sys.maxsize)
    for path in paths:
        remove_quietly(path)
    return len(paths)


def committed(log: PartitionLog) -> PartitionLog:
    log.set_high_watermark(log.log_end_offset)
    return log


def read_all(
    log: PartitionLog, start: int | None = None, upper: int | None = None, max_bytes: int = 1 << 20
) -> list[Record]:
    """Read like a consumer, fetch after fetch, without the records before the requested offset."""
    offset = log.log_start_offset if start is None else start
    upper = log.log_end_offset if upper is None else upper
    records: list[Record] = []
    while offset < upper:
        piece = log.read(offset, max_bytes, upper, min_one=True)
        if piece.empty:
            break
        view = piece.view()
        for position, header in iter_batches(view):
            found = read_records(view[position : position + header.size], max_bytes=1 << 24)
            records += [record for record in found if record.offset >= offset]
            offset = header.last_offset + 1
    return records


def read_served(log: PartitionLog) -> tuple[list[Record], bool]:
    """Read all batches that the log serves, and return whether that reached its end."""
    records: list[Record] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        try:
            view = log.read(offset, 1, end, min_one=True).view()
        except ApiError as error:
            if error.code != ErrorCode.CORRUPT_MESSAGE:
                raise
            return records, False
        for position, header in iter_batches(view):
            records += read_records(view[position : position + header.size], max_bytes=1 << 24)
            offset = header.last_offset + 1
    return records, True


def offsets_of(records: list[Record]) -> list[int]:
    return [record.offset for record in records]
