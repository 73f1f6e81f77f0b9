"""Print the files of a log directory exactly as Apache Kafka's DumpLogSegments prints them.

Owns the text of each kind of file. Never judges a file (an audit does), and never writes. Checkpoints,
`partition.metadata` and `meta.properties`, which Kafka's tool ignores, are printed entry by entry.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from typing import Final

from kbroker.log import checkpoints
from kbroker.log.batch_scan import scan_headers
from kbroker.log.directories import meta_properties
from kbroker.log.files import (
    HEADERS_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_of,
    read_at,
)
from kbroker.log.offline.audit import OpenFile, read_bounded, read_text
from kbroker.log.offline.check import NoLogDir, partitions_of
from kbroker.log.offline.check_batches import Window
from kbroker.log.offline.check_checkpoints import parse_epochs, parse_offsets
from kbroker.log.producers.producer_snapshots import SNAPSHOT_ENTRY, SNAPSHOT_HEAD
from kbroker.log.segment.header_index import HeaderIndex
from kbroker.log.segment.index_files import OFFSET_ENTRY, TIME_ENTRY
from kbroker.log.segment.transaction_index import TXN_ENTRY
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import (
    ABORT_MARKER,
    COMMIT_MARKER,
    CRC_START,
    BatchHeader,
    Record,
    read_records,
)

_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_DELETE_HORIZON_BIT: Final = 0x40
_MAX_BATCH: Final = 1 << 28
"""The maximum size in bytes of a batch, compressed or uncompressed, whose records are printed."""
_AS_JAVA: Final = "kbroker.as-java"
_SUFFIXES: Final = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, HEADERS_SUFFIX)
_ENDS: Final = {ABORT_MARKER: "ABORT", COMMIT_MARKER: "COMMIT"}


class UnknownFile(Exception):  # noqa: N818 - its text is the reason, in one line
    """A file's name does not match any kind of file in a log directory."""


def dump_order(directory: str) -> list[str]:
    """Return the files of a partition's directory for `dump`: segment by segment, then the other files.

    Raises OSError, and NoLogDir for any other directory.
    """
    if list(partitions_of(directory)) != [directory]:
        raise NoLogDir(f"{directory} is not the directory of a partition; name one of the partitions in it")
    names = os.listdir(directory)
    of_segments = [name for name in names if name.endswith(_SUFFIXES) and offset_of(name) is not None]
    beside = [name for name in (checkpoints.LEADER_EPOCHS, checkpoints.PARTITION_METADATA) if name in names]
    ordered = sorted(of_segments, key=lambda name: (offset_of(name), _SUFFIXES.index(os.path.splitext(name)[1])))
    return [os.path.join(directory, name) for name in ordered + beside]


def dump(path: str, *, deep: bool = False, contents: bool = False) -> Iterator[str]:
    """Yield the lines about one file; `deep` adds the records of a log, `contents` adds their keys and values.

    Raises UnknownFile, OSError, and ValueError for a file whose content does not match its name.
    """
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1]
    yield f"Dumping {path}"
    if name in (
        checkpoints.RECOVERY_POINTS,
        checkpoints.LOG_STARTS,
        checkpoints.HIGH_WATERMARKS,
        checkpoints.CLEANER_OFFSETS,
    ):
        for (topic, partition), offset in parse_offsets(_existing(path)).items():
            yield f"topic: {topic} partition: {partition} offset: {offset}"
    elif name == checkpoints.LEADER_EPOCHS:
        for epoch, start in parse_epochs(_existing(path)):
            yield f"epoch: {epoch} startOffset: {start}"
    elif name in (checkpoints.PARTITION_METADATA, meta_properties.META_PROPERTIES, checkpoints.CLEAN_SHUTDOWN):
        yield from (read_text(_existing(path)) or "").splitlines()
    elif (base := offset_of(name)) is None:
        raise UnknownFile(f"{path} is not a file of a log directory")
    else:
        with OpenFile(path) as file:
            if suffix == LOG_SUFFIX:
                yield f"Log starting offset: {base}"
                yield from _log(file, deep or contents, contents)
            elif suffix == INDEX_SUFFIX:
                yield from _offset_index(file, base)
            elif suffix == TIME_INDEX_SUFFIX:
                yield from _time_index(file, base)
            elif suffix == TXN_INDEX_SUFFIX:
                yield from _txn_index(file)
            elif suffix == SNAPSHOT_SUFFIX:
                yield from _snapshot(file)
            elif suffix == HEADERS_SUFFIX:
                yield from _headers(path)
            else:
                raise UnknownFile(f"{path} is not a file of a log directory")


def _headers(path: str) -> Iterator[str]:
    index = HeaderIndex(read_bounded(path) or b"")
    yield f"segment size: {index.log_size} blocks: {index.every.bit_length()}"
    for name, count in index.counts():
        yield f"header: {name} {'given up, because it has too many values' if count is None else f'values: {count}'}"


def _existing(path: str) -> str:
    os.stat(path)
    return path


def _log(file: OpenFile, deep: bool, contents: bool) -> Iterator[str]:
    window = Window(file, lambda _count: None)
    position = 0
    for position, header in scan_headers(file, 0, file.size):
        valid = window.crc(position + CRC_START, position + header.size) == header.crc
        yield _batch_line(header, position, valid)
        if deep:
            yield from _record_lines(file, position, header, contents)
        position += header.size
    if position < file.size:
        yield f"Found {file.size - position} invalid bytes at the end of {os.path.basename(file.path)}"


def _batch_line(header: BatchHeader, position: int, valid: bool) -> str:
    horizon = f"OptionalLong[{header.base_timestamp}]" if header.attributes & _DELETE_HORIZON_BIT else _NONE
    codec = _CODECS[header.codec] if header.codec < len(_CODECS) else str(header.codec)
    return (
        f"baseOffset: {header.base_offset} lastOffset: {header.last_offset} count: {header.record_count} "
        f"baseSequence: {header.base_sequence} lastSequence: {header.last_sequence} "
        f"producerId: {header.producer_id} producerEpoch: {header.producer_epoch} "
        f"partitionLeaderEpoch: {header.leader_epoch} isTransactional: {_bool(header.is_transactional)} "
        f"isControl: {_bool(header.is_control)} deleteHorizonMs: {horizon} position: {position} "
        f"{_timestamp_type(header)}: {header.max_timestamp} size: {header.size} magic: {header.magic} "
        f"compresscodec: {codec} crc: {header.crc} isvalid: {_bool(valid)}"
    )


_NONE: Final = "OptionalLong.empty"


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _timestamp_type(header: BatchHeader) -> str:
    return "LogAppendTime" if header.timestamp_type else "CreateTime"


def _record_lines(file: OpenFile, position: int, header: BatchHeader, contents: bool) -> Iterator[str]:
    if header.size > _MAX_BATCH:
        yield f"| {header.size} bytes are more than are unpacked here"
        return
    try:
        for record in read_records(read_at(file.fd, header.size, position), max_bytes=_MAX_BATCH):
            line = _record_line(header, record)
            if contents and not header.is_control:
                line += f" key: {_text(record.key)}" if record.key is not None else ""
                line += f" payload: {_text(record.value)}" if record.value is not None else ""
            yield line
    except Malformed as error:
        yield f"| the records cannot be read: {error}"


def _record_line(header: BatchHeader, record: Record) -> str:
    sequence = -1
    if header.base_sequence >= 0:
        sequence = (header.base_sequence + record.offset - header.base_offset) & 0x7FFFFFFF
    line = (
        f"| offset: {record.offset} {_timestamp_type(header)}: {record.timestamp} keySize: {_size(record.key)} "
        f"valueSize: {_size(record.value)} sequence: {sequence} "
        f"headerKeys: [{','.join(name for name, _ in record.headers)}]"
    )
    return line + _control_text(record) if header.is_control else line


def _control_text(record: Record) -> str:
    if record.key is None or len(record.key) < 4:
        return " controlType: none"
    kind = int.from_bytes(record.key[2:4], "big", signed=True)
    if kind not in _ENDS or record.value is None or len(record.value) < 6:
        return f" controlType: {kind}"
    coordinator_epoch = int.from_bytes(record.value[2:6], "big", signed=True)
    return f" endTxnMarker: {_ENDS[kind]} coordinatorEpoch: {coordinator_epoch}"


def _size(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _text(value: bytes) -> str:
    return value.decode(errors=_AS_JAVA)


def _replace_as_java(error: UnicodeError) -> tuple[str, int]:
    """Replace invalid UTF-8 as Java does: an encoded surrogate is one wrong character, not three."""
    assert isinstance(error, UnicodeDecodeError)
    wrong = error.object[error.start : error.start + 3]
    if len(wrong) < 2 or wrong[0] != 0xED or wrong[1] >> 5 != 0b101:
        return "\ufffd", error.end
    whole = len(wrong) == 2 or wrong[2] >> 6 == 0b10
    return "\ufffd", error.start + (len(wrong) if whole else 2)


codecs.register_error(_AS_JAVA, _replace_as_java)


def _offset_index(file: OpenFile, base: int) -> Iterator[str]:
    if file.size < OFFSET_ENTRY.size:
        yield f"{file.path} is empty."
    for place, (relative, position) in file.entries(OFFSET_ENTRY):
        if relative == 0 and place:
            return  # the rest of the index is unused
        yield f"offset: {base + relative} position: {position}"


def _time_index(file: OpenFile, base: int) -> Iterator[str]:
    for place, (timestamp, relative) in file.entries(TIME_ENTRY):
        if relative == 0 and place:
            return
        yield f"timestamp: {timestamp} offset: {base + relative}"


def _txn_index(file: OpenFile) -> Iterator[str]:
    for _, (version, producer_id, first, last, stable) in file.entries(TXN_ENTRY):
        yield (
            f"version: {version} producerId: {producer_id} firstOffset: {first} lastOffset: {last} "
            f"lastStableOffset: {stable}"
        )


def _snapshot(file: OpenFile) -> Iterator[str]:
    for _, fields in file.entries(SNAPSHOT_ENTRY, SNAPSHOT_HEAD.size):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first = fields
        line = (
            f"producerId: {producer_id} producerEpoch: {epoch} coordinatorEpoch: {coordinator_epoch} "
            f"currentTxnFirstOffset: {f'OptionalLong[{first}]' if first >= 0 else _NONE} lastTimestamp: {timestamp}"
        )
        if offset >= 0:
            line += (
                f" firstSequence: {(sequence - delta) & 0x7FFFFFFF} lastSequence: {sequence} lastOffset: {offset} "
                f"offsetDelta: {delta} timestamp: {timestamp}"
            )
        yield line
