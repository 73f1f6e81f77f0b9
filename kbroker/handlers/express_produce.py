"""Produce requests that differ from an earlier one of the same connection in nothing but the batch: most of them.

Owns what is known of such a request from the last time: the bytes around its batch, the partition, and the form of the
answer. Answers by it in about half the time, or leaves the request to produce.py, which stays the reference: whatever
is not as it was, or not plainly in order, goes there, and so does every error. (tests/broker/test_express_produce.py
holds the two to each other.)

    frame   api_key i16, version i16, correlation_id i32, [ as before ] size of the batch, batch [ tags, all empty ]
"""

from __future__ import annotations

import logging
import struct
from typing import Any

from kbroker.handlers.produce_refusals import (
    CODEC,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    LOOK,
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
"""Where a frame begins to be as before: behind the correlation id."""
_EMPTY_TAGS = bytes(3)
_NO_OFFSET = bytes(8)
"""The base offset of a produced batch."""
_FIRST_FLEXIBLE = 9
_KEPT = 64
"""Forms that are kept for one connection."""
_SIZE = struct.Struct(">i")
_OFFSET, _TIME, _START = 0x1122334455667788, 0x2233445566778811, 0x3344556677881122
_LOOK = LOOK.unpack_from


class Form:
    """One request's form: who asks for which partition, and how the answer looks."""

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
        self._pack, self._parts, self._tagged = _answer_form(ctx.version, flexible, topic.name, topic.topic_id, index)

    @property
    def holds(self) -> bool:
        """Whether the partition is still the one that it was."""
        return self._partition is not None and self._get(self._key) is self._partition

    def answer(self, frame: memoryview, position: int, correlation_id: int, out: bytearray) -> bool:
        """Append the batch at `position` and the answer to `out`; False: nothing was done."""
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
        length, magic, attributes = _LOOK(records)
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
            return False  # nothing has changed, and produce.py knows what to do
        except AppendError as err:
            if not records.readonly:
                if err.code == ErrorCode.KAFKA_STORAGE_ERROR:
                    records[:8] = _NO_OFFSET  # where the log has put its own before it came to the disk
                if _LOOK(records)[2] != attributes:  # the log has put its time on it, and will again
                    rewrite_timestamps(records, attributes, now_ms)
            return False
        except Exception as err:
            # Nobody knows whether it stands in the log, so it must not be tried again. What was answered before leaves.
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


class Forms:
    """The forms of the requests of one connection."""

    __slots__ = ("__weakref__", "_by_bytes", "_end", "_version")

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, Form] = {}
        self._end = 0
        self._version = -1

    def forget(self) -> None:
        """Leave all requests to produce.py until they are answered there again: rights may have changed."""
        self._by_bytes.clear()

    def answer(self, frame: memoryview, version: int, correlation_id: int, out: bytearray) -> bool:
        """Answer a frame whose form is known; False: nothing was done."""
        end = self._end
        if version != self._version or len(frame) < end + HEADER_BYTES:
            return False
        form = self._by_bytes.get(bytes(frame[_BEGIN:end]))
        return form is not None and form.answer(frame, end, correlation_id, out)

    def learn(
        self, ctx: RequestContext, frame: memoryview, position: int, request: ProduceRequest, answer: ProduceResponse
    ) -> None:
        """Remember the form of a request that was just answered, if it may come again; its body is at `position`."""
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
            return  # its answers wait for other replicas, if not now then once there are some
        # As we would have written it: so the batch is where it should be, with nothing unknown behind it.
        if name not in INTERNAL_TOPICS and frame[position:] == encode(request, version):
            self._by_bytes[key] = Form(ctx, request, flexible, name)


def _uvarint_bytes(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)


def _answer_form(version: int, flexible: bool, name: str, topic_id: Any, index: int) -> tuple[Any, Any, bool]:
    """Return how an answer is packed: its function, the bytes before and after the numbers, and whether it has a start.

    Found by encoding an answer with numbers that are seen again.
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
