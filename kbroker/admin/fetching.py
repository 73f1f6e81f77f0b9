"""Records of partitions by Fetch itself, with what their batches say: transactions, codecs, producers.

Owns the question, and which records belong to transactions that were aborted. A fetch that finds nothing returns at
once unless told to wait. Never joins a group and never commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.error_codes import code_error, error_text
from kbroker.admin.errors import AdminError
from kbroker.admin.own_request import ask_broker
from kbroker.admin.placement import Key
from kbroker.breaks import Breaks
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kbroker.protocol.records import BatchHeader, Headers, compute_crc, iter_batches, read_records, stream_records

MOST_BYTES: Final = 4 * 1024 * 1024
"""Of one answer; a batch that is larger comes whole."""
MOST_RECORDS: Final = 20_000
MOST_KEPT: Final = 32 * 1024 * 1024
"""Bytes of keys and values, and so many records, of one fetch; then it ends, within a batch if need be.

A few kilobytes can unpack to hundreds of megabytes, or to a million records.
"""
_MOST_UNPACKED: Final = 128 * 1024 * 1024
"""Of one batch."""
_ABORT: Final = 0
"""A control record's type, in the last two bytes of its key."""
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Found:
    """A record, and what its batch says of it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    appended: bool
    """Whether the time is the broker's (LogAppendTime)."""
    codec: str
    producer_id: int
    producer_epoch: int
    transactional: bool

    @property
    def size(self) -> int:
        """Bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class UnreadableBatch(AdminError):  # noqa: N818 - what happened
    """The records of a batch cannot be read."""

    def __init__(self, key: Key, header: BatchHeader, cause: object) -> None:
        super().__init__(f"{key[0]}-{key[1]} cannot be read at offset {header.base_offset}: {cause}")
        self.offset = header.base_offset
        self.next_offset = header.last_offset + 1
        """Where the next batch may begin."""


@dataclass(slots=True)
class Piece:
    """What a fetch found of one partition."""

    records: list[Found] = field(default_factory=list)
    next_offset: int = 0
    """Where the next fetch goes on."""
    end: int = 0
    """Behind the last record that a reader may see."""
    begin: int = 0


def fetch(
    admin: Any,
    led: Mapping[Key, int],
    offsets: Mapping[Key, int],
    topic_ids: Mapping[str, Any],
    *,
    committed: bool = False,
    wait_ms: int = 0,
    most_bytes: int = MOST_BYTES,
) -> dict[Key, Piece]:
    """Return records of partitions from offsets on, by their leaders; raises AdminError, UnreadableBatch for a batch.

    With `committed` only what transactions have committed, and nothing behind one that is open.
    """
    found: dict[Key, Piece] = {}
    room = _Room()
    for broker in sorted({led[key] for key in offsets}):
        topics: dict[str, FetchTopic] = {}
        for key, offset in offsets.items():
            if led[key] == broker:
                topic = topics.setdefault(key[0], FetchTopic(key[0], topic_ids[key[0]], []))
                topic.partitions.append(FetchPartition(key[1], fetch_offset=offset, partition_max_bytes=most_bytes))
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=most_bytes,
            isolation_level=int(committed),
            topics=list(topics.values()),
        )
        answer = ask_broker(admin, broker, request, FetchResponse)
        error = code_error(answer.error_code)
        if error is not None:
            raise AdminError(f"broker {broker} gives no records: {error_text(error)}")
        names = {topic.topic_id: name for name, topic in topics.items()}
        for told in answer.responses:
            name = told.topic or names[told.topic_id]
            for each in told.partitions:
                key = (name, each.partition_index)
                found[key] = _piece(key, offsets[key], each, room, committed=committed)
    return found


def _piece(key: Key, offset: int, told: PartitionData, room: _Room, *, committed: bool) -> Piece:
    error = code_error(told.error_code)
    if error is not None and told.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        raise AdminError(f"{key[0]}-{key[1]}: {error_text(error)}")
    end = told.last_stable_offset if committed and told.last_stable_offset >= 0 else told.high_watermark
    piece = Piece(next_offset=offset, end=max(end, 0), begin=max(told.log_start_offset, 0))
    if error is not None:
        piece.next_offset = max(offset, piece.begin)
        return piece
    aborts = _Aborts(told)
    buffer = bytes(told.records or b"")
    try:
        for position, header in iter_batches(buffer):
            batch = memoryview(buffer)[position : position + header.size]
            aborted = aborts.enter(header)
            try:
                if compute_crc(batch) != header.crc:
                    raise Malformed("the CRC is not that of the bytes")
                if header.is_control:
                    aborts.leave(header, batch)
                elif not (committed and aborted):
                    for each in _records(key, header, batch, offset):
                        if room.is_full:
                            return piece
                        room.take(each)
                        piece.records.append(each)
                        piece.next_offset = each.offset + 1
            except Malformed as broken:
                raise UnreadableBatch(key, header, broken) from None
            piece.next_offset = max(piece.next_offset, header.last_offset + 1)
    except Malformed as broken:
        raise AdminError(f"{key[0]}-{key[1]} cannot be read at offset {piece.next_offset}: {broken}") from None
    return piece


def unreadable_at(admin: Any, key: Key, offset: int) -> UnreadableBatch | None:
    """Return the batch that keeps a reader at `offset` from going on, None where there is none; raises AdminError.

    It may end right before: of a batch that holds more bytes than records a reader sees the records first.
    """
    view = cluster_view(admin, [key[0]])
    led = view.leaders()
    if key not in led:
        raise AdminError(f"{key[0]}-{key[1]} has no leader")
    for place in (offset, max(offset - 1, 0)):
        try:
            fetch(admin, led, {key: place}, {key[0]: view.topics[key[0]].topic_id})
        except UnreadableBatch as found:
            if found.offset <= offset <= found.next_offset:
                return found
    return None


class _Room:
    """How much more a fetch may find."""

    def __init__(self) -> None:
        self._records = MOST_RECORDS
        self._bytes = MOST_KEPT

    @property
    def is_full(self) -> bool:
        return self._records <= 0 or self._bytes <= 0

    def take(self, record: Found) -> None:
        self._records -= 1
        self._bytes -= record.size


def _records(key: Key, header: BatchHeader, batch: memoryview, begin: int) -> Iterator[Found]:
    """Yield the records of a batch from an offset on; rests, as a broker may be in the same process."""
    codec = _CODECS[header.codec] if header.codec < len(_CODECS) else str(header.codec)
    breaks = Breaks()
    for each in stream_records(batch, max_bytes=_MOST_UNPACKED, begin=begin):
        breaks.rest()
        if each is None or each.offset < begin:
            continue
        yield Found(
            key[0],
            key[1],
            each.offset,
            each.timestamp,
            each.key,
            each.value,
            each.headers,
            bool(header.timestamp_type),
            codec,
            header.producer_id,
            header.producer_epoch,
            header.is_transactional,
        )


class _Aborts:
    """Which transactions were aborted: an answer has their list if committed records were asked for, and only then."""

    def __init__(self, told: PartitionData) -> None:
        self._waiting = sorted(told.aborted_transactions or (), key=lambda each: each.first_offset)
        self._open: set[int] = set()

    def enter(self, header: BatchHeader) -> bool:
        """Tell whether a batch belongs to an aborted transaction."""
        while self._waiting and self._waiting[0].first_offset <= header.last_offset:
            self._open.add(self._waiting.pop(0).producer_id)
        return header.is_transactional and not header.is_control and header.producer_id in self._open

    def leave(self, header: BatchHeader, batch: memoryview) -> None:
        """Note the marker that ends a transaction."""
        for each in read_records(batch, max_bytes=_MOST_UNPACKED):
            if each.key is not None and int.from_bytes(each.key[-2:], "big") == _ABORT:
                self._open.discard(header.producer_id)
