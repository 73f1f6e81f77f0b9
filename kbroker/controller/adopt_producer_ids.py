"""The producer ids in use in a data directory of Apache Kafka, so that they are not allocated again.

Owns where to look: Kafka's own metadata log, if it lies in the directory, contains the exact limit. Otherwise the ids
in the logs count: producers in snapshots and after them, and transactional ids, whose producer ids may never have
written a record. Never changes a file, and skips unreadable ones: the broker's start checks the recovered ones again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from kbroker.log.batch_scan import scan_batches, scan_headers
from kbroker.log.files import LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_name, offset_of
from kbroker.log.offline.audit import OpenFile
from kbroker.log.offline.check import partitions_of
from kbroker.log.producers.producer_snapshots import decode_snapshot
from kbroker.log.producers.producer_state import CREDIBLE_IDS
from kbroker.protocol.compiler import decoder
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.coordinator_records import TransactionLogValue
from kbroker.protocol.records import Record, read_records
from kbroker.protocol.wire import read_uvarint

_KRAFT: Final = "__cluster_metadata"
_TRANSACTIONS: Final = "__transaction_state"
_METADATA_SUFFIXES: Final = (LOG_SUFFIX, ".checkpoint")
_PRODUCER_IDS_RECORD: Final = 15
_MAX_RECORD_BYTES: Final = 256 << 20
_READERS: Final = (decoder(TransactionLogValue, 0), decoder(TransactionLogValue, 1))


def first_unused_producer_id(directory: str) -> int:
    """Return an id above all producer ids in use in `directory`. Raises OSError."""
    least = 0
    for path, (topic, _) in partitions_of(directory).items():
        if topic == _KRAFT:
            least = max(least, _allocated(path))
        else:
            least = max(least, _largest_producer(path) + 1)
        if topic == _TRANSACTIONS:
            least = max(least, _largest_of_transactions(path) + 1)
    return least


def _bases(path: str, suffix: str) -> list[int]:
    found = (offset_of(name) for name in os.listdir(path) if name.endswith(suffix))
    return sorted(base for base in found if base is not None)


def _largest_producer(path: str) -> int:
    """Return the largest producer id in a partition's newest snapshot and the log after it, -1 without one."""
    largest, known_from = -1, 0
    for base in reversed(_bases(path, SNAPSHOT_SUFFIX)):
        try:
            with open(offset_name(path, base, SNAPSHOT_SUFFIX), "rb") as content:
                entries = decode_snapshot(content.read())
        except ValueError:
            continue
        largest, known_from = max((i for e in entries if (i := e.producer_id) < CREDIBLE_IDS), default=-1), base
        break
    bases = _bases(path, LOG_SUFFIX)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is not None and following <= known_from:
            continue
        with OpenFile(offset_name(path, base, LOG_SUFFIX)) as file:
            for _, header in scan_headers(file, 0, file.size):
                if largest < header.producer_id < CREDIBLE_IDS:
                    largest = header.producer_id
    return largest


def _largest_of_transactions(path: str) -> int:
    """Return the largest producer id in a partition of `__transaction_state`, -1 without one."""
    largest = -1
    for base in _bases(path, LOG_SUFFIX):
        for record in _records(offset_name(path, base, LOG_SUFFIX)):
            if not record.value:
                continue
            try:
                version = int.from_bytes(record.value[:2], "big")
                value = _READERS[min(version, len(_READERS) - 1)](record.value[2:])
            except (Malformed, ValueError):
                continue
            largest = max(largest, value.producer_id, value.previous_producer_id, value.next_producer_id)
    return largest


def _allocated(path: str) -> int:
    """Return the next producer id in the metadata log of Kafka's controller; 0 without one."""
    least = 0
    for name in os.listdir(path):
        if name.endswith(_METADATA_SUFFIXES):
            for record in _records(os.path.join(path, name)):
                least = max(least, _next_producer_id(record.value or b""))
    return least


def _next_producer_id(value: bytes) -> int:
    """Return the next id in a ProducerIdsRecord; 0 for another record of the metadata log.

    frame version uvarint (1) | type uvarint | version uvarint | broker id i32 | broker epoch i64 | next id i64
    """
    try:
        frame, position = read_uvarint(value, 0)
        kind, position = read_uvarint(value, position)
        _, position = read_uvarint(value, position)
    except (Malformed, IndexError):
        return 0
    if frame != 1 or kind != _PRODUCER_IDS_RECORD or len(value) < position + 20:
        return 0
    return int.from_bytes(value[position + 12 : position + 20], "big", signed=True)


def _records(path: str) -> Iterator[Record]:
    """Yield the records of a log file, up to the first invalid batch."""
    with OpenFile(path) as file:
        for _, header, batch in scan_batches(file, 0, file.size):
            if header.is_control:
                continue
            try:
                yield from read_records(batch, max_bytes=_MAX_RECORD_BYTES)
            except Malformed:
                return
