"""The check of records that clients produce to a schedule topic: records that cannot fire are refused immediately.

Owns the verdicts, their order and texts, and the size of a delivered record. The meaning of headers is in language.py.
Never appends, and never schedules.

A record passes if its headers name a time and a target, if the target can accept it now, and if its producer has the
right to write to the target. A record with a key and without a value cancels the schedule with its key, and has no
headers of a schedule. If the target changes later, the record stays pending with an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol, cast

from kbroker.cluster_state import ClusterState, TopicState
from kbroker.log.append_info import BatchRefused, invalid_records
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.log.record_check import MayWrite
from kbroker.log.record_validation import MOST_ERRORS
from kbroker.long_work import turn
from kbroker.protocol.compression import NONE, unpack
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, Headers, parse_header, read_number
from kbroker.schedules.language import (
    SCHEDULE,
    ScheduleError,
    fired_headers,
    is_ours,
    read_schedule,
    size_of_fired_headers,
)
from kbroker.schedules.targets import target_fault
from kbroker.schedules.times import LATEST_MS

MOST_HEADERS: Final = 1000
"""The maximum number of headers of a record of a schedule topic, because one step reads all of them."""
LONGEST_NAME: Final = 512
"""The maximum size of a header's name in bytes.

The name must be UTF-8, because clients decode other bytes to longer texts.
"""
AT_ONCE: Final = 4
"""The maximum number of unpacked batches of more than `_SMALL` bytes in memory at the same time."""
_SMALL: Final = 64 << 10
"""The size in bytes of unpacked records up to which a batch does not wait for `room`."""
_LEAST_UNPACKED, _UNPACKED_TIMES, _MOST_UNPACKED = 16 << 20, 16, 64 << 20
"""The limit in bytes of a batch after decompression, as a multiple of the largest message.

The numbers are the smallest limit, the multiple, and the largest limit.
"""
_RECORD_WORK, _WORK = 8, 256
"""Two amounts of work. The unit is the work for one header.

The numbers are the work for a record without its headers, and the work in one slice (about 0.7 ms).
"""
_SIZE_SHIFT: Final = 14
"""A record's work includes its size in bytes, shifted right by this number of bits: long header names take time."""
_LONG: Final = 512
"""Fields with more bytes are not copied, because no header of schedules is so long."""
_PAUSE_S: Final = 0.02
_LARGEST_OFFSET: Final = 2**63 - 1
_NUMBERS: Final = 16
"""The maximum size in bytes of a single record's numbers in a batch of its own, without the lengths of its fields."""


class Topics(Protocol):
    """The topics of the cluster, and their settings on this broker."""

    patience_s: float
    """The seconds for which a new topic may be unknown to this broker, because the change comes from another broker."""

    @property
    def state(self) -> ClusterState:
        """The cluster as this broker knows it."""

    def settings_of(self, topic: TopicState) -> LogConfig:
        """Return a topic's settings."""


class _Read(NamedTuple):
    """The parts of a record that the check needs."""

    place: int
    """The place of the record in the batch that the client sent."""
    key: bytes | None
    size: int
    """The size of the record in bytes, without the bytes of its length."""
    value_size: int
    """The size of the value in bytes; -1 for a record without value."""
    headers: Headers
    fault: str | None
    """The reason why the headers are refused."""


class _Target(NamedTuple):
    """The facts about a target topic that the check of one batch uses."""

    fault: str | None
    is_allowed: bool
    partitions: int
    max_bytes: int


class ScheduleChecks:
    """The checks of one topic (`RecordChecks`). The topics of a broker share `room`, the limit on unpacked batches."""

    def __init__(self, topic: str, topics: Topics, now_ms: Callable[[], int], room: asyncio.Semaphore) -> None:
        self._topic = topic
        self._topics = topics
        self._now_ms = now_ms
        self._room = room
        self._config: LogConfig | None = None
        self._check: ScheduleCheck | None = None

    def under(self, config: LogConfig) -> ScheduleCheck:
        """Return the check for a config with schedules. The same config gets the same object."""
        check = self._check
        if check is None or self._config is not config:
            target = config.schedule_target_topic
            check = self._check = ScheduleCheck(self._topic, target, self._topics, self._now_ms, self._room)
            self._config = config
        return check


class ScheduleCheck:
    """The check of one topic under one config (`RecordCheck`)."""

    is_quick = False

    def __init__(
        self, topic: str, default_target: str, topics: Topics, now_ms: Callable[[], int], room: asyncio.Semaphore
    ) -> None:
        self._room = room
        self._topic = topic
        self._more = HEADER_SIZE + _NUMBERS + size_of_fired_headers(topic)
        """The maximum number of bytes that the delivery of a record adds to the record and its key."""
        self._default = default_target
        self._topics = topics
        self._now_ms = now_ms

    def passes(self, _data: bytes | memoryview, _start: int, _count: int) -> bool:
        return False

    async def judge(self, batch: memoryview, rules: BatchRules, may_write: MayWrite) -> memoryview:
        header = parse_header(batch)
        data = await _unpacked(batch, header, rules, _SMALL)
        if data is not None:
            await self._judge_all(data, header.record_count, may_write)
        else:
            async with self._room:
                data = await _unpacked(batch, header, rules, None)
                assert data is not None
                await self._judge_all(data, header.record_count, may_write)
        return batch

    async def _judge_all(self, data: memoryview, count: int, may_write: MayWrite) -> None:
        """Raise AppendError if a record is bad."""
        found = await self._verdicts(data, count, may_write)
        if found.missing and self._topics.patience_s and await self._have_appeared(found.missing):
            found = await self._verdicts(data, count, may_write)
        found.refuse()

    async def _have_appeared(self, names: set[str]) -> bool:
        """Wait until this broker knows some topics; return False if it does not know them in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._topics.patience_s
        while not names <= self._topics.state.topics.keys():
            if loop.time() >= until:
                return False
            await asyncio.sleep(_PAUSE_S)
        return True

    async def _verdicts(self, data: memoryview, count: int, may_write: MayWrite) -> _Verdicts:
        found = _Verdicts()
        targets: dict[str, _Target] = {}
        work = 0
        try:
            for record in _records(data, count):
                self._judge(record, targets, may_write, found)
                work += _RECORD_WORK + len(record.headers) + (record.size >> _SIZE_SHIFT)
                if work >= _WORK or _is_costly(record):
                    work = 0
                    await turn
        except Malformed as error:
            raise BatchRefused(ErrorCode.INVALID_RECORD, f"The records cannot be checked: {error}") from None
        return found

    def _judge(self, record: _Read, targets: dict[str, _Target], may_write: MayWrite, found: _Verdicts) -> None:
        if record.fault is not None:
            found.add(record.place, record.fault)
            return
        if record.value_size < 0:
            if record.key is None:
                found.add(record.place, "a record without value cancels its key, but it has no key")
            elif any(is_ours(name) for name, _ in record.headers):
                found.add(record.place, "a record without value cancels its key; it has no headers of a schedule")
            return
        try:
            schedule = read_schedule(record.key, record.headers, self._now_ms(), self._default)
        except ScheduleError as error:
            found.add(record.place, str(error))
            return
        if schedule is None:
            text = "no time: a record of a schedule topic needs one of x-deliver-at, x-deliver-after, x-schedule"
            found.add(record.place, text)
            return
        target = targets.get(schedule.topic)
        if target is None:
            target = targets[schedule.topic] = self._target(schedule.topic, may_write)
        if not target.is_allowed:
            found.add(record.place, f"the producer has no right to write to the target {schedule.topic}")
        elif target.fault is not None:
            found.add(record.place, target.fault)
            if schedule.topic not in self._topics.state.topics:
                found.missing.add(schedule.topic)
        elif schedule.partition is not None and schedule.partition >= target.partitions:
            number = "1 partition" if target.partitions == 1 else f"{target.partitions} partitions"
            text = f"{schedule.topic} has {number}, and none with number {schedule.partition}"
            found.add(record.place, text)
        elif record.size + len(schedule.key or b"") + self._more > target.max_bytes:  # the batch may be too large
            size = self._size(record, schedule.key)
            if size > target.max_bytes:
                found.is_too_large(record.place, schedule.topic, size, target.max_bytes)

    def _target(self, name: str, may_write: MayWrite) -> _Target:
        if not may_write(name):
            return _Target(None, False, 0, 0)
        found = self._topics.state.topics.get(name)
        fault = target_fault(self._topic, name, self._topics.state.topics)
        if fault is not None or found is None:
            return _Target(fault, True, 0, 0)
        return _Target(None, True, len(found.partitions), self._topics.settings_of(found).max_message_bytes)

    def _size(self, record: _Read, key: bytes | None) -> int:
        """Return the maximum size in bytes of the delivered record's batch, if the batch has no other record."""
        headers = fired_headers(record.headers, self._topic, 2**31 - 1, _LARGEST_OFFSET, LATEST_MS)
        size = HEADER_SIZE + _NUMBERS + _field(-1 if key is None else len(key)) + _field(record.value_size)
        return size + sum(
            _field(len(name.encode())) + _field(-1 if value is None else len(value)) for name, value in headers
        )


class _Verdicts:
    """The bad records of a batch."""

    def __init__(self) -> None:
        self._errors: list[tuple[int, str | None]] = []
        self.missing: set[str] = set()
        """The targets that this broker does not know."""
        self._count = self._too_large = 0

    def add(self, index: int, text: str) -> None:
        self._count += 1
        if len(self._errors) < MOST_ERRORS:
            self._errors.append((index, text))

    def is_too_large(self, index: int, target: str, size: int, most: int) -> None:
        self._too_large += 1
        text = (
            f"with the headers of its delivery, the record has {size} bytes; {target} takes {most} (max.message.bytes)"
        )
        self.add(index, f"{text} (max.message.bytes)")

    def refuse(self) -> None:
        """Raise AppendError if a record is bad.

        If all bad records are too large, the error code is MESSAGE_TOO_LARGE. A missing right on a target has no code
        of its own, because clients would relate TOPIC_AUTHORIZATION_FAILED to the topic to which they produce.
        """
        if not self._count:
            return
        index, text = self._errors[0]
        if self._too_large == self._count:
            raise BatchRefused(ErrorCode.MESSAGE_TOO_LARGE, f"record {index}: {text}", self._errors)
        raise invalid_records(self._errors, self._count)


async def _unpacked(batch: memoryview, header: BatchHeader, rules: BatchRules, small: int | None) -> memoryview | None:
    """Return the uncompressed records of a well-formed batch; None if they have more than `small` bytes.

    Raises AppendError.
    """
    body = batch[HEADER_SIZE:]
    if header.codec == NONE:
        return body
    wanted = min(max(_LEAST_UNPACKED, _UNPACKED_TIMES * rules.max_size), _MOST_UNPACKED)
    most = max(min(rules.max_decompressed, wanted), rules.max_size)
    data = bytearray()
    try:
        for piece in unpack(header.codec, body, most):
            data += piece
            if small is not None and len(data) > small:
                return None
            await turn
    except Malformed as error:
        raise BatchRefused(ErrorCode.INVALID_RECORD, f"The records cannot be checked: {error}") from None
    return memoryview(data)


def _records(data: memoryview, count: int) -> Iterator[_Read]:
    """Yield the records of a well-formed batch. Raises Malformed."""
    position = 0
    for _ in range(count):
        whole, position = read_number(data, position, 5)
        end = position + whole
        _, position = read_number(data, position + 1, 10)
        place, position = read_number(data, position, 5)
        size, position = read_number(data, position, 5)
        key = _content(data, position, size)
        position += max(size, 0)
        value_size, position = read_number(data, position, 5)
        position += max(value_size, 0)
        header_count, position = read_number(data, position, 5)
        headers: Headers = ()
        fault = None
        if header_count > MOST_HEADERS:
            fault = f"a record of a schedule topic has at most {MOST_HEADERS} headers"
        else:
            try:
                headers = _headers(data, position, header_count)
            except ScheduleError as error:
                fault = str(error)
        yield _Read(place, key, whole, value_size, headers, fault)
        position = end


def _headers(data: memoryview, position: int, count: int) -> Headers:
    """Return the headers of a record. Raises ScheduleError for a name that is refused."""
    headers = []
    for _ in range(count):
        size, position = read_number(data, position, 5)
        if size > LONGEST_NAME:
            raise ScheduleError(f"a header's name has {size} bytes; a schedule topic takes {LONGEST_NAME}")
        try:
            name = str(data[position : position + size], "utf-8")
        except UnicodeDecodeError:
            raise ScheduleError("a header's name is not in UTF-8") from None
        position += size
        size, position = read_number(data, position, 5)
        headers.append((name, _content(data, position, size)))
        position += max(size, 0)
    return tuple(headers)


def _content(data: memoryview, position: int, size: int) -> bytes | None:
    """Return a field's content. The content of a long field is not copied, because only its size is needed."""
    if size < 0:
        return None
    content = data[position : position + size]
    return bytes(content) if size <= _LONG else cast("bytes", content)


def _is_costly(record: _Read) -> bool:
    """Whether a record may have a cron expression, whose check takes up to 1 ms."""
    return any(name == SCHEDULE for name, _ in record.headers)


def _field(size: int) -> int:
    """Return the number of bytes that a field of `size` bytes takes, with its length; -1 stands for a missing field."""
    doubled = size * 2 if size >= 0 else 1
    return max(size, 0) + max((doubled.bit_length() + 6) // 7, 1)
