"""Values of Protobuf messages, decoded with a descriptor set from protoc, or without a schema.

Owns the known messages. Their classes are built from descriptors, which are data; no code is loaded. Owns the guess
about a field's bytes without a schema: they are shown as a message if they decode as a message, else as text if
possible, else as bytes. Without a schema, fields are shown by number, because there are no names and no exact types.
Numbers are shown as unsigned numbers, and numbers of fixed length also as floating-point numbers.
"""

from __future__ import annotations

import importlib.util
import math
import struct
from collections.abc import Callable
from typing import Any, Final

from kbroker.admin.errors import WrongInput
from kbroker.extras import how_to_install

_DEEPEST: Final = 20
_MOST_FIELDS: Final = 10_000
_LONGEST: Final = 10


def decode(data: bytes) -> dict[str, Any]:
    """Return the fields by number, without a schema. Raises ValueError for bytes that are not a message."""
    if not data:
        raise ValueError("an empty value may be any message")
    return _message(data, 0, [_MOST_FIELDS])


def _message(data: bytes, depth: int, left: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    position = 0
    while position < len(data):
        left[0] -= 1
        if left[0] < 0:
            raise ValueError("too many fields")
        tag, position = _varint(data, position)
        field, kind = tag >> 3, tag & 7
        if not 1 <= field < 1 << 29:
            raise ValueError("no field has this number")
        value, position = _value(data, position, kind, depth, left)
        name = str(field)
        if name not in found:
            found[name] = value
        elif isinstance(found[name], list):
            found[name].append(value)
        else:
            found[name] = [found[name], value]
    return found


def _value(data: bytes, position: int, kind: int, depth: int, left: list[int]) -> tuple[Any, int]:
    if kind == 0:
        return _varint(data, position)
    if kind == 2:
        size, position = _varint(data, position)
        if position + size > len(data):
            raise ValueError("a field is longer than the message")
        return _bytes(data[position : position + size], depth, left), position + size
    if kind not in (1, 5):
        raise ValueError("groups and unknown kinds of fields cannot be read")
    width, whole, fraction = (8, "<Q", "<d") if kind == 1 else (4, "<I", "<f")
    if position + width > len(data):
        raise ValueError("a number is longer than the message")
    (number,) = struct.unpack_from(whole, data, position)
    (real,) = struct.unpack_from(fraction, data, position)
    likely = math.isfinite(real) and (real == 0 or 1e-9 < abs(real) < 1e15)
    return ({"fixed": number, "or": real} if likely else number), position + width


def _bytes(data: bytes, depth: int, left: list[int]) -> Any:
    try:
        text = data.decode()
        readable = all(each.isprintable() or each in "\n\r\t" for each in text)
    except UnicodeDecodeError:
        text, readable = "", False
    if readable and len(data) != 1:
        return text
    if data and depth < _DEEPEST:
        try:
            return _message(data, depth + 1, left)
        except ValueError:
            pass
    return text if readable else {"bytes": data[:1_000].hex()}


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = 0
    for index in range(_LONGEST):
        if position + index >= len(data):
            raise ValueError("the message ends within a number")
        byte = data[position + index]
        result |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return result & (1 << 64) - 1, position + index + 1
    raise ValueError("a number does not end")


_MOST_MESSAGES: Final = 100


def decoders(data: bytes) -> dict[str, Callable[[bytes], Any]]:
    """Return decoders of values by the full names of messages. Raises WrongInput."""
    if importlib.util.find_spec("google.protobuf") is None:
        raise WrongInput(f"Protobuf by descriptors needs protobuf: {how_to_install('schemas')}")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError:
        raise WrongInput("this is not a descriptor set") from None
    pool = descriptor_pool.DescriptorPool()
    found: dict[str, Callable[[bytes], Any]] = {}
    try:
        for file in files.file:
            pool.Add(file)
        for file in files.file:
            for descriptor in pool.FindFileByName(file.name).message_types_by_name.values():
                found[descriptor.full_name] = _decoder(message_factory.GetMessageClass(descriptor))
    except (TypeError, KeyError) as error:
        raise WrongInput(f"this descriptor set is incomplete (--include_imports): {str(error)[:200]}") from None
    if len(found) > _MOST_MESSAGES:
        raise WrongInput(f"a descriptor set has at most {_MOST_MESSAGES} messages")
    return found


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError

        message = kind()
        try:
            message.ParseFromString(data)
            return MessageToDict(message, preserving_proto_field_name=True)
        except (DecodeError, ValueError, TypeError, RecursionError):
            raise ValueError("does not match this Protobuf message") from None

    return decode
