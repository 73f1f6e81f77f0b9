"""Finds the schema that each key or value of well-formed records names (formats/framing.py).

Owns the walk over a batch's records to their tokens; also runs in the process that reads values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from kbroker.log import record_walk
from kbroker.protocol.records import read_number
from kbroker.schema_registry.formats.framing import ID_BYTES, KEY_HEADER, VALUE_HEADER, token_length

_PAUSE: Final = 512
"""The number of headers of a record that are read between two pauses."""


class Field(NamedTuple):
    """The key or the value of a record; `start` and `end` are the bounds of the data after the token."""

    token: bytes | None
    """The token, or None if the field is null and so names no schema."""
    before: bytes
    """The bytes to insert before the data: the indexes of a Protobuf message if a header names the schema."""
    start: int
    end: int


def tokens_and_data(data: bytes, count: int, *, of_keys: bool) -> Iterator[tuple[bytes | None, bytes]]:
    """Yield the token and the data of each record's key or value, without pauses (for a separate process)."""
    header = KEY_HEADER if of_keys else VALUE_HEADER
    found = None if record_walk.places is None else record_walk.places(data, 0, count, of_keys, header)
    if found is None:
        for field in fields(data, count, of_keys=of_keys):
            if field is not None:
                yield field.token, field.before + data[field.start : field.end]
        return
    at = memoryview(found).cast("i")
    for start, end in zip(at[::2], at[1::2], strict=True):
        yield (None, b"") if start < 0 else (data[start : start + ID_BYTES], data[start + ID_BYTES : end])


def fields(data: bytes | memoryview, count: int, *, of_keys: bool) -> Iterator[Field | None]:
    """Yield the key or value of each of `count` well-formed, uncompressed records, and None for each pause."""
    wanted = KEY_HEADER if of_keys else VALUE_HEADER
    position = 0
    for _ in range(count):
        _, place = read_number(data, position, 5)
        position, place = place + _, place + 1
        while data[place] > 0x7F:
            place += 1
        _, place = read_number(data, place + 1, 5)
        size, place = read_number(data, place, 5)
        start, place = place, place + max(size, 0)
        value_size, place = read_number(data, place, 5)
        if not of_keys:
            size, start = value_size, place
        place += max(value_size, 0)
        end = start + max(size, 0)
        headers, place = read_number(data, place, 5)
        named = None
        for index in range(headers):
            if index % _PAUSE == _PAUSE - 1:
                yield None
            name_size, place = read_number(data, place, 5)
            is_wanted = name_size == len(wanted) and data[place : place + name_size] == wanted
            place += name_size
            content, place = read_number(data, place, 5)
            if is_wanted:
                named = None if content < 0 else bytes(data[place : place + content])
            place += max(content, 0)
        if size < 0:
            yield Field(None, b"", start, start)
        elif named is not None:
            length = token_length(named)
            yield Field(named[:length], named[length:], start, end)
        else:
            yield Field(bytes(data[start : min(start + ID_BYTES, end)]), b"", start + ID_BYTES, end)
