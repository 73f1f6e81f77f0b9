"""The fast path of Produce, for requests that differ from an earlier request of the connection only in the batch.

Owns the common parts of such a request and the earlier request: the bytes around the batch, the partition, and the
layout of the response. Responds in about half the time of produce.py, or leaves the request to produce.py. That module
is the reference, and handles all other requests and all errors. (tests/broker/test_express_produce.py checks that both
behave the same.)

    frame   api_key i16, version i16, correlation_id i32, [ as before ] size of the batch, batch [ tags, all empty ]
"""

from __future__ import annotations

import logging
import struct
from typing import Any

from kbroker.handlers.produce_answers import (
    CODEC,
    HEADER_BYTES,
    HEADER_FIELDS,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    ZSTD,
)
from kbroker.handlers.registry import CloseConnection, RequestContext
from kbroker.log.append_info import AppendError
from kbroker.log.record_validation import TakesLonger
from kbroker.protocol.compiler import encode
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from kbroker.protocol.records import rewrite_timestamps
from kbroker.protocol.wire import read_uvarint
from kbroker.topic_names import INTERNAL_TOPICS

log = logging.getLogger(__name__)

_BEGIN = 8
"""The position at which the repeated part of a frame begins: after the correlation id."""
_EMPTY_TAGS = bytes(3)
_NO_OFFSET = bytes(8)
"""The base offset in a batch that a producer sends."""
_FIRST_FLEXIBLE = 9
_KEPT = 64
"""The maximum number of requests that are remembered for one connection."""
_SIZE = struct.Struct(">i")
_OFFSET, _TIME, _START = 0x1122334455667788, 0x2233445566778811, 0x3344556677881122
_unpack_header = HEADER_FIELDS.unpack_from


class KnownRequest:
    """One earlier request: its partition, and the layout of its response."""

    __slots__ = ("_acks", "_ctx", "_flexible", "_get", "_key", "_pack", "_partition", "_parts", "_tagged")

    def __init__(self, ctx: RequestContext, request: ProduceRequest, flexible: bool, name: str) -> None:
        topic = request.topic_data[0]
        index = topic.partition_data[0].index
        self._ctx = ctx
        self._acks = request.acks
        self._flexible = flexible
        self._get = ctx.services.replicas.get
        self._key = (name, index)
        self._partition = self._get(self._key)
        self._pack, self._parts, self._tagged = _layout(ctx.version, flexible, topic.name, topic.topic_id, index)

    @property
    def holds(self) -> bool:
        """Whether the broker still uses the same object for the partition."""
        return self._partition is not None and self._get(self._key) is self._partition

    def answer(self, frame: memoryview, position: int, correlation_id: int, out: bytearray) -> bool:
        """Append the batch at `position` to the log, and append the response to `out`.

        Return False if nothing was appended.
        """
        if self._flexible:
            size = frame[position]
            if size < 128:
                position += 1
            else:
                try:
                    size, position = read_uvarint(frame, position)
                except Malformed:
                    return False
            stop = position + size - 1
            if stop != len(frame) - 3 or frame[stop:] != _EMPTY_TAGS:
                return False
        else:
            stop = position + 4 + _SIZE.unpack_from(frame, position)[0]
            position += 4
            if stop != len(frame):
                return False
        size = stop - position
        if size < HEADER_BYTES:
            return False
        records = frame[position:stop]
        length, magic, attributes = _unpack_header(records)
        partition = self._partition
        if (
            length + LENGTH_OVERHEAD != size
            or magic != MAGIC
            or attributes & TRANSACTIONAL
            or attributes & CODEC >= ZSTD
            or partition is None
            or self._get(self._key) is not partition
        ):
            return False
        now_ms = self._ctx.services.clock.now_ms()
        try:
            info = partition.append(records, self._acks, now_ms)
        except TakesLonger:
            return False  # the log is unchanged, and produce.py handles the request
        except AppendError as err:
            if not records.readonly:
                if err.code == ErrorCode.KAFKA_STORAGE_ERROR:
                    records[:8] = _NO_OFFSET  # Undo the base offset that the log wrote before the disk failed.
                if _unpack_header(records)[2] != attributes:  # Undo the append time that the log has set.
                    rewrite_timestamps(records, attributes, now_ms)
            return False
        except Exception as err:
            # The batch may be in the log, so it must not be appended again. Earlier responses are still sent.
            log.exception("Produce failed")
            raise CloseConnection("a Produce failed") from err
        before, after = self._parts
        if self._tagged:
            out += self._pack(
                len(before) + len(after) + 28, correlation_id, before, info.base_offset, info.log_append_time_ms,
                info.log_start_offset, after,
            )  # fmt: skip
        else:
            out += self._pack(
                len(before) + len(after) + 20, correlation_id, before, info.base_offset, info.log_append_time_ms, after
            )
        return True


class KnownRequests:
    """The earlier requests of one connection that may be repeated."""

    __slots__ = ("__weakref__", "_by_bytes", "_end", "_version")

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, KnownRequest] = {}
        self._end = 0
        self._version = -1

    def forget(self) -> None:
        """Forget all known requests. produce.py handles their next repetitions, because rights may have changed."""
        self._by_bytes.clear()

    def answer(self, frame: memoryview, version: int, correlation_id: int, out: bytearray) -> bool:
        """Respond to a frame that repeats a known request. Return False if the frame is not a repetition."""
        end = self._end
        if version != self._version or len(frame) < end + HEADER_BYTES:
            return False
        known = self._by_bytes.get(bytes(frame[_BEGIN:end]))
        return known is not None and known.answer(frame, end, correlation_id, out)

    def learn(
        self, ctx: RequestContext, frame: memoryview, position: int, request: ProduceRequest, answer: ProduceResponse
    ) -> None:
        """Remember a request that was just answered, if it can be repeated. Its body is at `position`."""
        if request.acks not in (-1, 1) or request.transactional_id is not None or len(request.topic_data) != 1:
            return
        (topic,) = request.topic_data
        if len(topic.partition_data) != 1 or answer.responses[0].partition_responses[0].error_code:
            return
        version = ctx.version
        flexible = version >= _FIRST_FLEXIBLE
        size = len(topic.partition_data[0].records)
        end = len(frame) - size - (3 + _uvarint_bytes(size + 1) if flexible else 4)
        if version != self._version or len(self._by_bytes) >= _KEPT:
            self._by_bytes.clear()
        self._version, self._end = version, end
        key = bytes(frame[_BEGIN:end])
        known = self._by_bytes.get(key)
        name = topic.name if version <= 12 else ctx.services.controller.state.topic_names.get(topic.topic_id, "")
        if known is not None and known.holds:
            return
        partition = ctx.services.replicas.get((name, topic.partition_data[0].index))
        if partition is not None and partition.is_replicated and request.acks == -1:
            return  # The responses wait for other replicas, even for replicas that are added later.
        # If the request equals our own encoding, the batch is at the expected position, and no unknown fields follow
        # it.
        if name not in INTERNAL_TOPICS and frame[position:] == encode(request, version):
            self._by_bytes[key] = KnownRequest(ctx, request, flexible, name)


def _uvarint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _layout(version: int, flexible: bool, name: str, topic_id: Any, index: int) -> tuple[Any, Any, bool]:
    """Return a response's packing function, the bytes around its numbers, and whether it has a log start offset.

    To find the places of the numbers, encode a response with recognizable numbers, and search for them in the bytes.
    """
    partition = PartitionProduceResponse(index, 0, _OFFSET, _TIME, _START)
    answer = ProduceResponse([TopicProduceResponse(name, topic_id, [partition])])
    body = (b"\0" if flexible else b"") + encode(answer, version)
    numbers = struct.pack(">qq", _OFFSET, _TIME)
    before, after = body.split(numbers)
    start = struct.pack(">q", _START)
    tagged = after.startswith(start)
    if tagged:
        after = after[len(start) :]
    pack = struct.Struct(f">ii{len(before)}sqq{'q' if tagged else ''}{len(after)}s").pack
    return pack, (before, after), tagged
