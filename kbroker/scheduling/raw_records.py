"""The records of a batch as ranges of its bytes: a schedule topic passes keys, values and most headers on unchanged.

Owns the bytes of a delivered record, and the walk over uncompressed records. The walk decodes only the numbers that
lead to the fields. language.py and records.py decode and encode the records that need more than this; both ways result
in the same bytes. Records were checked when they were appended, so only a damaged file raises Malformed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.log import record_walk
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import BatchHeader, Headers, put_number, read_number
from kbroker.schedules.language import AFTER, AT, DELAY, FIRED_PREFIX, TO

_DROPPED: Final = frozenset(name.encode() for name in (AT, AFTER, DELAY, TO))
"""The headers that are dropped. A record without other schedule headers fires once, and keeps its key."""
_DOUBTFUL: Final = (b"x-", b"__")
"""The prefixes of names that need a closer look."""
_FIRED: Final = FIRED_PREFIX.encode()
_RESERVED: Final = (b"x-deliver-", b"x-schedule", b"x-delay")
_FOUND_AT_ONCE: Final = 256
_MOST_SHORT: Final = 0x7F
"""The largest first byte of a varint that has no further bytes."""
_NULL: Final = 1
"""The bit of a length's first byte that marks a negative length. Each negative length stands for null, as in Kafka."""
_LONGEST_STAMP: Final = 10
"""The maximum number of bytes of a timestamp."""


def _number(value: int) -> bytes:
    out = bytearray()
    put_number(out, value)
    return bytes(out)


_RULES: Final = b"".join(
    kind + bytes((len(name),)) + name
    for kind, names in ((b"-=", sorted(_DROPPED)), (b"-*", (_FIRED,)), (b"?*", _RESERVED))
    for name in names
)
"""The treatment of headers by the prefixes of their names, for `deliver` in _record_delivery.c."""
_NUMBERS: Final = tuple(_number(value) for value in range(4096))


class Raw(NamedTuple):
    """One record. The fields are positions in `data`."""

    data: bytes
    stamp_ms: int
    offset: int
    key: int
    """The position at which the key begins, with its length."""
    value: int
    """The position at which the value begins, with its length."""
    headers: int
    """The position at which the headers begin, with their number."""
    end: int

    @property
    def has_no_key(self) -> bool:
        """Whether the key is null."""
        return bool(self.data[self.key] & _NULL)

    def key_bytes(self) -> bytes | None:
        """Return the key."""
        size, start = read_number(self.data, self.key, 5)
        return None if size < 0 else self.data[start : start + size]

    def has_value(self) -> bool:
        """Whether the value is not null."""
        return not self.data[self.value] & _NULL

    def value_bytes(self) -> bytes | None:
        """Return the value."""
        size, start = read_number(self.data, self.value, 5)
        return None if size < 0 else self.data[start : start + size]

    def read_headers(self) -> Headers:
        """Return the headers, decoded. Raises Malformed."""
        data = self.data
        count, position = read_number(data, self.headers, 5)
        found = []
        for _ in range(count):
            size, position = read_number(data, position, 5)
            if size < 0 or position + size > self.end:
                raise Malformed("a record's header does not fit")
            name = data[position : position + size].decode(errors="replace")
            position += size
            size, position = read_number(data, position, 5)
            content = None if size < 0 else data[position : position + size]
            position += max(size, 0)
            found.append((name, content))
        return tuple(found)


def raw_records(data: bytes, position: int, header: BatchHeader, begin: int) -> Iterator[Raw | None]:
    """Yield the records in `data` from `position` on; yield None for records before the offset `begin`.

    Raises Malformed.
    """
    base, stamp = header.base_offset, header.max_timestamp
    is_stamped = bool(header.timestamp_type)
    try:
        for _ in range(header.record_count):
            byte = data[position]
            if byte < 0x80:
                size, start = byte >> 1, position + 1
            else:
                size, start = read_number(data, position, 5)
            position = start + size
            if size < 0 or position > len(data):
                raise Malformed("a record does not fit in its batch")
            place = start + 1
            if is_stamped:
                while data[place] > 0x7F:
                    place += 1
                place += 1
            else:
                delta_ms, place = read_number(data, place, 10)
                stamp = header.base_timestamp + delta_ms
            byte = data[place]
            if byte < 0x80:
                delta, key = byte >> 1, place + 1
            else:
                delta, key = read_number(data, place, 5)
            if base + delta < begin:
                yield None
                continue
            byte = data[key]
            if byte < 0x80:
                value = key + 1 + (0 if byte & _NULL else byte >> 1)
            else:
                size, place = read_number(data, key, 5)
                value = place + max(size, 0)
            byte = data[value]
            if byte < 0x80:
                headers = value + 1 + (0 if byte & _NULL else byte >> 1)
            else:
                size, place = read_number(data, value, 5)
                headers = place + max(size, 0)
            if headers >= position:
                raise Malformed("a record's fields do not fit")
            yield Raw(data, stamp, base + delta, key, value, headers, position)
    except IndexError as error:
        raise Malformed("a batch ends within a record") from error


def raw_at(data: bytes, position: int, header: BatchHeader) -> Raw | None:
    """Return the record that begins at a position; None if it cannot be read."""
    try:
        return next(raw_records(data, position, header, 0), None)
    except Malformed:
        return None


def find(data: bytes | memoryview, position: int, count: int, base: int, wanted: array[int]) -> tuple[bytes, int, int]:
    """Return the positions of the records with the wanted offsets: the result of `find` in _record_delivery.c."""
    if record_walk.find is not None:
        return record_walk.find(data, position, count, base, wanted)
    return find_in_python(data, position, count, base, wanted)


def find_in_python(
    data: bytes | memoryview, position: int, count: int, base: int, wanted: array[int]
) -> tuple[bytes, int, int]:
    """Return the same result as `find`, but without the compiled module.

    One call examines fewer records than a call of `find`.
    """
    places, many = array("q"), len(wanted)
    passed = min(count, _FOUND_AT_ONCE)
    for _ in range(passed):
        begin = position
        try:
            size = data[position]
            if size > _MOST_SHORT or size & 1:
                size, start = read_number(data, position, 5)
            else:
                size, start = size >> 1, position + 1
            place = start + 1
            while data[place] > _MOST_SHORT:
                place += 1
            is_broken = place - start > _LONGEST_STAMP
            delta = data[place + 1]
            if delta > _MOST_SHORT or delta & 1:
                delta, place = read_number(data, place + 1, 5)
            else:
                delta, place = delta >> 1, place + 2
        except (IndexError, Malformed):
            is_broken = True
        if is_broken or size <= 0 or start + size > len(data) or place > start + size:
            count = passed
            break
        position = start + size
        while len(places) < many and wanted[len(places)] < base + delta:
            places.append(-1)
        if len(places) < many and wanted[len(places)] == base + delta:
            places.append(begin)
        if len(places) == many:
            count = passed
            break
    left = count - passed
    if not left:
        places.extend([-1] * (many - len(places)))
    return places.tobytes(), position, left


class Delivered:
    """Builds the records that one partition of a schedule topic delivers."""

    def __init__(self, topic: str, index: int) -> None:
        first = _header(f"{FIRED_PREFIX}topic", topic.encode()) + _header(f"{FIRED_PREFIX}partition", b"%d" % index)
        self._before_offset = first + _name(f"{FIRED_PREFIX}offset")
        self._before_at = _name(f"{FIRED_PREFIX}at")
        self.shape = _RULES, self._before_offset, self._before_at
        """The rules and the headers to add, for `deliver` in _record_delivery.c."""

    def short(self, raw: Raw, due_ms: int, delta: int) -> bytes | None:
        """Return the record as bytes, like `encoded`; None if a header needs a closer check.

        `delta` is the record's offset delta in its batch.
        """
        kept = _kept(raw)
        if kept is None:
            return None
        count, headers = kept
        offset, at = b"%d" % raw.offset, b"%d" % due_ms
        body = b"".join(
            (
                b"\0\0",
                _NUMBERS[delta],
                raw.data[raw.key : raw.headers],
                _NUMBERS[count + 4],
                headers,
                self._before_offset,
                _NUMBERS[len(offset)],
                offset,
                self._before_at,
                _NUMBERS[len(at)],
                at,
            )
        )
        size = len(body)
        return (_NUMBERS[size] if size < len(_NUMBERS) else _number(size)) + body


def encoded(key: bytes | None, value: bytes | None, headers: Headers, delta: int) -> bytes:
    """Return the bytes of a record with the batch's timestamp. `delta` is the record's number in the batch."""
    body = bytearray(b"\0\0")
    put_number(body, delta)
    for content in (key, value):
        _put(body, content)
    put_number(body, len(headers))
    for name, content in headers:
        _put(body, name.encode())
        _put(body, content)
    return _number(len(body)) + bytes(body)


def _put(out: bytearray, content: bytes | None) -> None:
    if content is None:
        out.append(1)
    else:
        put_number(out, len(content))
        out += content


def _kept(raw: Raw) -> tuple[int, bytes] | None:
    """Return the number and the bytes of the headers that stay; None if the record repeats, or has another key."""
    data, position = raw.data, raw.headers
    count, kept = data[position], b""
    if count > 0x7F:
        return None
    position += 1
    number = 0
    for _ in range(count >> 1):
        begin = position
        size = data[position]
        if size > 0x7F:
            size, start = read_number(data, position, 5)
        else:
            size, start = size >> 1, position + 1
        position = start + size
        name = data[start:position]
        size = data[position]
        if size < 0x80:
            position += 1 + (0 if size & _NULL else size >> 1)
        else:
            size, position = read_number(data, position, 5)
            position += max(size, 0)
        if name in _DROPPED:
            continue
        if name[:2] in _DOUBTFUL:
            if name.startswith(_FIRED):
                continue
            if name.startswith(_RESERVED):
                return None
        kept += data[begin:position]
        number += 1
    return number, kept


def _name(name: str) -> bytes:
    return _number(len(name)) + name.encode()


def _header(name: str, content: bytes) -> bytes:
    return _name(name) + _number(len(content)) + content
