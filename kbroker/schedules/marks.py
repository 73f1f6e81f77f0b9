"""Marks in the log of a schedule topic: the deliveries that the broker is about to make, and their outcomes.

Owns the form of marks. The leader of a partition writes marks as records of control batches. Consumers skip these
records, because they have a type of their own. Their producer id is -1, so they belong to no transaction. Never decides
when a mark is written.

A batch contains one or more marks. The key of each mark has 4 bytes, like the key of all control records: a version and
the type. The value begins with its own version and the kind of the mark. Numbers are big-endian, times are ms since
1970 (UTC).

    INTENT   these records are due, and go to this partition with this producer id, epoch and sequence, in one batch
    DONE     the outcome of an intent: delivered, with the next times of those that repeat, or refused and not appended
    BEGIN    from here on, the topic's records are schedules; with the topic's default target, and the target before
    PAUSE    from here on they are not schedules, because schedule.enable was removed; with the default target before
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, overload

from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import Record, build_batch, read_records

CONTROL_VERSION: Final = 1
"""The version is not Kafka's 0, because librdkafka logs a warning for each record of an unknown type of version 0.

librdkafka skips version 1 silently.
"""
CONTROL_TYPE: Final = 0x4B53
"""A type that Apache Kafka does not know, and calls UNKNOWN."""
_KEY: Final = struct.Struct(">hh")
KEY: Final = _KEY.pack(CONTROL_VERSION, CONTROL_TYPE)
_VERSION: Final = 0
_INTENT, _DONE, _BEGIN, _PAUSE = range(4)
_HEAD: Final = struct.Struct(">bb")
_INTENT_FIELDS: Final = struct.Struct(">qh16siiH")
_DONE_FIELDS: Final = struct.Struct(">qhqq")
_COUNT: Final = struct.Struct(">i")
_BEFORE: Final = b"\0"
"""The byte before the earlier target, if that target is known. No name of a topic contains this byte."""
_MOST: Final = 1 << 30


class Due(NamedTuple):
    """A record of the schedule topic, by its offset, and the time at which the record is or was due."""

    offset: int
    due_ms: int


class Dues(Sequence[Due]):
    """Many Due values as two columns, without an object for each value. Compares like a tuple of Due values."""

    __slots__ = ("offsets", "times")

    def __init__(self, offsets: array[int] | None = None, times: array[int] | None = None) -> None:
        """Create the columns. Both arrays have the type `q`, and the same length."""
        self.offsets: array[int] = array("q") if offsets is None else offsets
        self.times: array[int] = array("q") if times is None else times
        """The times at which the records in `offsets` were due, in the same order."""

    @classmethod
    def of(cls, dues: Iterable[Due]) -> Dues:
        """Return the columns of some records."""
        if isinstance(dues, Dues):
            return dues
        made = cls()
        for due in dues:
            made.append(due)
        return made

    def append(self, due: Due) -> None:
        self.offsets.append(due.offset)
        self.times.append(due.due_ms)

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, place: int) -> Due: ...
    @overload
    def __getitem__(self, place: slice) -> Dues: ...
    def __getitem__(self, place: int | slice) -> Due | Dues:
        if isinstance(place, slice):
            return Dues(self.offsets[place], self.times[place])
        return Due(self.offsets[place], self.times[place])

    def __iter__(self) -> Iterator[Due]:
        return map(Due, self.offsets, self.times)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dues):
            return self.offsets == other.offsets and self.times == other.times
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Intent(NamedTuple):
    """The leader is about to append these records to a partition, as one batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    topic_id: bytes
    topic: str
    partition: int
    records: Sequence[Due]


class Done(NamedTuple):
    """The outcome of an intent. `intent` is the offset of its mark."""

    intent: int
    error_code: int = 0
    """0 if the records were appended. Otherwise nothing was appended, and this is the error of the target."""
    base_offset: int = -1
    """The offset of the first record in the target; -1 if it is unknown, or if nothing was appended."""
    retry_ms: int = -1
    """After an error: the time after which the records are tried again."""
    following: Sequence[Due] = ()
    """The records that repeat, with their next times."""
    message: str = ""


class Begin(NamedTuple):
    """The following records are schedules. `target` is the topic for records that do not name a target, or ""."""

    target: str
    is_change: bool = False
    """Whether the topic was no schedule topic directly before. The first mark in a log decides on earlier records."""
    before: str | None = None
    """The default target that applied directly before this mark; None if unknown.

    Earlier records have this target if the mark that preceded them is deleted.
    """


class Pause(NamedTuple):
    """The following records are not schedules. `before` is as in `Begin`."""

    before: str | None = None


Mark = Intent | Done | Begin | Pause


def build_marks(marks: Iterable[Mark], now_ms: int) -> bytes:
    """Return a control batch with these marks, in this order: the first mark gets the batch's base offset."""
    return build_batch([(now_ms, KEY, value_of(mark), ()) for mark in marks], control=True)


def read_marks(batch: bytes | memoryview) -> Iterator[tuple[int, Mark]]:
    """Yield the offsets and the marks of a control batch; leave out other control records (of transactions).

    Raises Malformed.
    """
    for record in read_records(batch, max_bytes=_MOST):
        mark = mark_of(record)
        if mark is not None:
            yield record.offset, mark


def mark_of(record: Record) -> Mark | None:
    """Return the mark in a record of a control batch; None if it is another control record. Raises Malformed."""
    if record.key != KEY:
        return None
    try:
        return mark_in(record.value or b"")
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise Malformed(f"a mark of a schedule topic at offset {record.offset} is damaged: {error}") from error


def value_of(mark: Mark) -> bytes:
    """Return the value of the record with a mark."""
    if isinstance(mark, Intent):
        name = mark.topic.encode()
        fields = mark.producer_id, mark.producer_epoch, mark.topic_id, mark.partition, mark.base_sequence, len(name)
        return _HEAD.pack(_VERSION, _INTENT) + _INTENT_FIELDS.pack(*fields) + name + _pack_dues(mark.records)
    if isinstance(mark, Done):
        fields_of_done = mark.intent, mark.error_code, mark.base_offset, mark.retry_ms
        text = mark.message.encode()
        return _HEAD.pack(_VERSION, _DONE) + _DONE_FIELDS.pack(*fields_of_done) + _pack_dues(mark.following) + text
    if isinstance(mark, Begin):
        head = _HEAD.pack(_VERSION, _BEGIN) + bytes((mark.is_change,)) + mark.target.encode()
    else:
        head = _HEAD.pack(_VERSION, _PAUSE)
    return head if mark.before is None else head + _BEFORE + mark.before.encode()


def mark_in(data: bytes) -> Mark | None:
    """Return the mark in the value of a record; None for a mark of a later version.

    Raises struct.error, IndexError or UnicodeDecodeError.
    """
    version, kind = _HEAD.unpack_from(data)
    if version != _VERSION:
        return None
    position = _HEAD.size
    if kind == _INTENT:
        producer, epoch, topic_id, partition, sequence, size = _INTENT_FIELDS.unpack_from(data, position)
        position += _INTENT_FIELDS.size
        name = data[position : position + size].decode()
        records, _ = _unpack_dues(data, position + size)
        return Intent(producer, epoch, sequence, topic_id, name, partition, records)
    if kind == _DONE:
        intent, code, base_offset, retry_ms = _DONE_FIELDS.unpack_from(data, position)
        following, position = _unpack_dues(data, position + _DONE_FIELDS.size)
        return Done(intent, code, base_offset, retry_ms, following, data[position:].decode())
    if kind == _BEGIN:
        target, separator, before = data[position + 1 :].partition(_BEFORE)
        return Begin(target.decode(), bool(data[position]), before.decode() if separator else None)
    if kind == _PAUSE:
        _, separator, before = data[position:].partition(_BEFORE)
        return Pause(before.decode() if separator else None)
    return None


def _pack_dues(dues: Sequence[Due]) -> bytes:
    columns = Dues.of(dues)
    numbers = array("q", bytes(16 * len(columns)))
    numbers[::2], numbers[1::2] = columns.offsets, columns.times
    return _COUNT.pack(len(columns)) + _swapped(numbers).tobytes()


def _unpack_dues(data: bytes, position: int) -> tuple[Dues, int]:
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    if not 0 <= count <= (len(data) - position) // 16:
        raise struct.error(f"it claims {count} records")
    end = position + 16 * count
    numbers = _swapped(array("q", data[position:end]))
    return Dues(numbers[::2], numbers[1::2]), end


def _swapped(numbers: array[int]) -> array[int]:
    """Convert big-endian numbers to native numbers, or native numbers to big-endian numbers."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
