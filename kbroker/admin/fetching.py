"""Records of partitions by Fetch requests, with facts from their batches: transaction, codec, producer.

Owns the request, and the rule that decides which records belong to aborted transactions. A fetch waits for records only
if the caller requests this. Never joins a group and never commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.errors import AdminError, check_code, code_error, error_text
from kbroker.admin.own_request import ask_broker
from kbroker.admin.placement import Key
from kbroker.long_work import Pauses
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from kbroker.protocol.records import (
    BatchHeader,
    Headers,
    Record,
    compute_crc,
    iter_batches,
    read_records,
    stream_records,
)

MOST_BYTES: Final = 4 * 1024 * 1024
"""The maximum size in bytes of one answer; a single larger batch is still returned completely."""
MOST_RECORDS: Final = 20_000
MOST_KEPT: Final = 32 * 1024 * 1024
"""The limits of one fetch: its records, and the bytes of their keys and values. A fetch may end within a batch.

The limits are needed because a few kilobytes can decompress to hundreds of megabytes, or to a million records.
"""
_MOST_UNPACKED: Final = 128 * 1024 * 1024
"""The maximum size in bytes of one batch after decompression."""
_ABORT: Final = 0
"""The type of a control record that marks an abort; the last two bytes of a control record's key contain its type."""
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Found:
    """A record with the facts of its batch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    appended: bool
    """Whether the broker has set the timestamp (LogAppendTime)."""
    codec: str
    producer_id: int
    producer_epoch: int
    transactional: bool

    @property
    def size(self) -> int:
        """The size in bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


class PartitionRefused(AdminError):  # noqa: N818 - an outcome
    """A broker refuses to return records of a partition; `error` is kafka-python's exception class for the reason."""

    def __init__(self, key: Key, error: Any) -> None:
        super().__init__(f"{key[0]}-{key[1]}: {error_text(error)}")
        self.error = error


class UnreadableBatch(AdminError):  # noqa: N818 - an outcome
    """The records of a batch cannot be read."""

    def __init__(self, key: Key, header: BatchHeader, cause: object) -> None:
        super().__init__(f"{key[0]}-{key[1]} cannot be read at offset {header.base_offset}: {cause}")
        self.offset = header.base_offset
        self.next_offset = header.last_offset + 1
        """The offset at which the next batch may begin."""


@dataclass(slots=True)
class Piece:
    """The result of a fetch for one partition."""

    records: list[Found] = field(default_factory=list)
    controls: list[Record] = field(default_factory=list)
    """The control records that belong to no transaction."""
    next_offset: int = 0
    """The offset at which the next fetch must begin."""
    end: int = 0
    """The end offset for a reader. With `committed` it is the last stable offset, otherwise the high watermark."""
    begin: int = 0
    out_of_range: bool = False
    """Whether the requested offset is after the log's end or before its first record."""


def fetch(
    admin: Any,
    led: Mapping[Key, int],
    offsets: Mapping[Key, int],
    topic_ids: Mapping[str, Any],
    *,
    committed: bool = False,
    wait_ms: int = 0,
    most_bytes: int = MOST_BYTES,
    epochs: Mapping[Key, int] | None = None,
) -> dict[Key, Piece]:
    """Fetch records of partitions from their leaders. Raises AdminError, PartitionRefused and UnreadableBatch.

    A result ends before a batch that cannot be read; only a fetch that begins at this batch raises UnreadableBatch. If
    the broker throttles the client, the answer may lack partitions (KIP-219).

    `epochs` are the leaders' epochs: a former leader that does not know of its successor then returns an error. With
    `committed`, returns only committed records, and none after the start of an open transaction (as read_committed).
    """
    found: dict[Key, Piece] = {}
    room = _Room()
    for broker in sorted({led[key] for key in offsets}):
        topics: dict[str, FetchTopic] = {}
        for key, offset in offsets.items():
            if led[key] == broker:
                topic = topics.setdefault(key[0], FetchTopic(key[0], topic_ids[key[0]], []))
                known = -1 if epochs is None else epochs[key]
                topic.partitions.append(
                    FetchPartition(key[1], known, fetch_offset=offset, partition_max_bytes=most_bytes)
                )
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=most_bytes,
            isolation_level=int(committed),
            topics=list(topics.values()),
        )
        answer = ask_broker(admin, broker, request, FetchResponse)
        check_code(answer.error_code, f"broker {broker} gives no records")
        names = {topic.topic_id: name for name, topic in topics.items()}
        for response in answer.responses:
            name = response.topic or names[response.topic_id]
            for each in response.partitions:
                key = (name, each.partition_index)
                found[key] = _piece(key, offsets[key], each, room, committed=committed)
    return found


def _piece(key: Key, offset: int, response: PartitionData, room: _Room, *, committed: bool) -> Piece:
    error = code_error(response.error_code)
    if error is not None and response.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        raise PartitionRefused(key, error)
    end = response.last_stable_offset if committed and response.last_stable_offset >= 0 else response.high_watermark
    piece = Piece(next_offset=offset, end=max(end, 0), begin=max(response.log_start_offset, 0))
    if error is not None:
        piece.out_of_range = True
        piece.next_offset = max(offset, piece.begin)
        return piece
    aborts = _Aborts(response)
    buffer = bytes(response.records or b"")
    try:
        for position, header in iter_batches(buffer):
            batch = memoryview(buffer)[position : position + header.size]
            aborted = aborts.enter(header)
            before = len(piece.records), len(piece.controls), piece.next_offset
            try:
                if compute_crc(batch) != header.crc:
                    raise Malformed("the CRC is not that of the bytes")
                if header.is_control and header.producer_id < 0:
                    piece.controls += read_records(batch, max_bytes=_MOST_UNPACKED)
                elif header.is_control:
                    aborts.leave(header, batch)
                elif not (committed and aborted):
                    for each in _records(key, header, batch, offset):
                        if room.is_full:
                            return piece
                        room.take(each)
                        piece.records.append(each)
                        piece.next_offset = each.offset + 1
            except Malformed as broken:
                if before[2] <= offset:
                    raise UnreadableBatch(key, header, broken) from None
                del piece.records[before[0] :], piece.controls[before[1] :]
                piece.next_offset = before[2]
                return piece
            piece.next_offset = max(piece.next_offset, header.last_offset + 1)
    except Malformed as broken:
        raise AdminError(f"{key[0]}-{key[1]} cannot be read at offset {piece.next_offset}: {broken}") from None
    return piece


def unreadable_at(admin: Any, key: Key, offset: int) -> UnreadableBatch | None:
    """Return the batch that blocks a reader at `offset`, or None. Raises AdminError.

    The batch may end directly before the offset, because a batch with surplus bytes fails only after its records were
    read.
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
    """The numbers of records and bytes that a fetch may still return."""

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
    """Yield the records of a batch from an offset on; pause regularly, because a broker may run in the same process."""
    codec = _CODECS[header.codec] if header.codec < len(_CODECS) else str(header.codec)
    breaks = Pauses()
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
    """The aborted transactions in an answer. An answer lists them only if the request was for committed records."""

    def __init__(self, response: PartitionData) -> None:
        self._waiting = sorted(response.aborted_transactions or (), key=lambda each: each.first_offset)
        self._open: set[int] = set()

    def enter(self, header: BatchHeader) -> bool:
        """Whether a batch belongs to an aborted transaction; must be called for each batch in order."""
        while self._waiting and self._waiting[0].first_offset <= header.last_offset:
            self._open.add(self._waiting.pop(0).producer_id)
        return header.is_transactional and not header.is_control and header.producer_id in self._open

    def leave(self, header: BatchHeader, batch: memoryview) -> None:
        """Record the marker that ends a transaction."""
        for each in read_records(batch, max_bytes=_MOST_UNPACKED):
            if each.key is not None and int.from_bytes(each.key[-2:], "big") == _ABORT:
                self._open.discard(header.producer_id)
