"""The bytes of coordinators' records, and of the batches that coordinators append to their own logs.

A key or a value is an int16 (the type in a key, the version in a value), followed by a message. Owns this form, the
encoding of batches and markers, and the split of a long list into several batches. The records of a long list are
encoded one by one, before their batch is built. Never appends. Decodes like Kafka's CoordinatorRecordSerde: it skips
bytes after a message, and replaces invalid UTF-8 in a string with U+FFFD.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from kbroker.coordination.shard import CoordinatorRecord, EndOfTransaction, InTransaction
from kbroker.protocol.compiler import encoder, stored_decoder
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import BatchFields, build_batch, build_marker, enclose, put_record

_UNENCODABLE = (struct.error, UnicodeEncodeError, OverflowError)
_T = TypeVar("_T")


def read_prefix(data: bytes, part: str) -> int:
    """Return the type or version at the beginning of a `part` ("key" or "value").

    Raises Malformed if the part is too short.
    """
    if len(data) < 2:
        raise Malformed(f"its {part} has {len(data)} bytes, too few for a version")
    return int.from_bytes(data[:2], "big", signed=True)


def decode_value(cls: type[_T], value: bytes) -> _T:
    """Return the message in a value. Raises Malformed. As in Kafka, values of unknown versions are also decoded."""
    version = read_prefix(value, "value")
    if version not in cast("Any", cls).VERSIONS:
        raise Malformed(f"its value has version {version}, which {cls.__name__} does not have")
    return stored_decoder(cls, version)(memoryview(value)[2:])


def encode(prefix: int, message: Any, version: int) -> bytes:
    """Return int16 `prefix` and a message. If a string is too long for the format, raise an error for the request."""
    out = bytearray(prefix.to_bytes(2, "big"))
    try:
        encoder(type(message), version)(message, out, [])
    except _UNENCODABLE as err:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from err
    return bytes(out)


SPLIT_BYTES = 256 << 10


def record_batch(
    records: Sequence[CoordinatorRecord], leader_epoch: int, producer: InTransaction | None, now_ms: int
) -> bytes:
    """Return a batch of records. If a producer's transaction is given, the records belong to it."""
    rows = [(now_ms, key, value, ()) for key, value in records]
    return build_batch(rows, **_fields_of(producer, leader_epoch))


def _fields_of(producer: InTransaction | None, leader_epoch: int) -> BatchFields:
    """Return the header fields of a batch: the leader's epoch and, if given, a producer's transaction."""
    if producer is None:
        return {"leader_epoch": leader_epoch}
    return {
        "leader_epoch": leader_epoch,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "base_sequence": 0,
        "transactional": True,
    }


class EncodedRecords:
    """The records of one batch. They are encoded before the batch is built, because there are many.

    The records get the timestamp of the batch.
    """

    def __init__(self) -> None:
        self._body = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, record: CoordinatorRecord) -> None:
        put_record(self._body, self._count, record.key, record.value)
        self._count += 1

    def batch(self, leader_epoch: int, producer: InTransaction | None, now_ms: int) -> bytes:
        """Return the batch, as `record_batch` does."""
        return enclose(self._body, self._count, now_ms, now_ms, **_fields_of(producer, leader_epoch))


def marker_batch(marker: EndOfTransaction, now_ms: int) -> bytes:
    """Return the batch that ends a producer's transaction on a partition."""
    return build_marker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        commit=marker.commit,
        coordinator_epoch=marker.coordinator_epoch,
        timestamp=now_ms,
    )


def split(records: Sequence[CoordinatorRecord]) -> Iterator[list[CoordinatorRecord]]:
    """Split a list of records; yield pieces of moderate size, each for one batch."""
    piece: list[CoordinatorRecord] = []
    size = 0
    for record in records:
        size += len(record.key) + len(record.value or b"") + 16
        piece.append(record)
        if size >= SPLIT_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
