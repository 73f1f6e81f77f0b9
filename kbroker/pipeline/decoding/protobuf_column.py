"""A column for a Protobuf message. Messages are structs; Timestamp, the wrappers and Struct have special types.

Owns the type of each field, and its value. The writer's message checks the bytes, then the reader's message decodes
them; so fields are found by their numbers. A field without a value is null if Protobuf can detect the missing value,
else it has its default.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, cast

from kbroker.pipeline.decoding import spark_types as types
from kbroker.pipeline.decoding.spark_types import Budget, Convert, Part
from kbroker.schema_registry.formats.common import InvalidValue, Schema
from kbroker.schema_registry.formats.protobuf import ProtobufSchema

_UNSIGNED: Final = types.decimal_type(20, 0)


class ProtobufColumn:
    """The column for a message. Without a name, this is the first message of its file. Raises InvalidValue."""

    def __init__(self, schema: ProtobufSchema, name: str | None = None) -> None:
        self._schema = schema
        self._name = name or schema.name
        if self._name is None:
            raise InvalidValue("the Protobuf schema has no message")
        self._class = schema.message_class(self._name)
        self._budget = Budget()
        part = self._message(self._class.DESCRIPTOR, frozenset(), 0)
        self.type = part.type
        self._convert = part.convert

    def read_by(self, writer: Schema) -> Callable[[bytes], Any]:
        """Return a function that converts bytes of the schema `writer` to a value of this column."""
        convert, name, reader, own = self._convert, self._name, self._class, writer == self._schema
        written = cast("ProtobufSchema", writer).message_of

        def value(data: bytes) -> Any:
            message = written(data)
            found = message.DESCRIPTOR.full_name
            if found != name:
                raise InvalidValue(f"is a message {found}, and the column is of {name}")
            return convert(message if own else _parsed(reader, message.SerializeToString()))

        return value

    def _message(self, kind: Any, within: frozenset[str], depth: int) -> Part:
        name = str(kind.full_name)
        if name in _KNOWN:
            return _KNOWN[name]
        fields = list(kind.fields)
        if name in within or name in _AS_JSON or not self._budget.allows([each.name for each in fields], depth):
            return _JSON
        within |= {name}
        parts = [self._field(each, within, depth + 1) for each in fields]
        reads = tuple(part.convert for part in parts)
        kinds = [(each.name, part.type) for each, part in zip(fields, parts, strict=True)]
        return Part(types.struct_type(kinds), lambda message: tuple(read(message) for read in reads))

    def _field(self, field: Any, within: frozenset[str], depth: int) -> Part:
        """Return the part for a field. Its conversion receives the message that contains the field."""
        get: Callable[[Any], Any] = attrgetter(field.name)
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key = self._single(inner.fields_by_name["key"], within, depth)
            value = self._single(inner.fields_by_name["value"], within, depth)
            make_key, make = key.convert, value.convert
            return Part(
                types.map_type(value.type, key.type),
                lambda message: {make_key(name): make(each) for name, each in get(message).items()},
            )
        single = self._single(field, within, depth)
        convert, name = single.convert, field.name
        if _is_repeated(field):
            return Part(types.array_type(single.type), lambda message: [convert(each) for each in get(message)])
        if field.has_presence:
            return Part(single.type, lambda message: convert(get(message)) if message.HasField(name) else None)
        return Part(single.type, lambda message: convert(get(message)))

    def _single(self, field: Any, within: frozenset[str], depth: int) -> Part:
        if field.message_type is not None:
            return self._message(field.message_type, within, depth)
        if field.enum_type is not None:
            names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
            return Part(types.STRING, lambda number: names.get(number) or str(number))
        return _SCALARS[_name_of(field)]


def _is_repeated(field: Any) -> bool:
    known = getattr(field, "is_repeated", None)  # older versions of protobuf have only the label
    return bool(field.label == field.LABEL_REPEATED if known is None else known)


_TYPES: Final = (
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message"),
    *("bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
"""The names of field types, by their numbers in descriptor.proto, starting at 1."""


def _name_of(field: Any) -> str:
    return _TYPES[field.type - 1]


def _parsed(kind: Any, data: bytes) -> Any:
    from google.protobuf.message import DecodeError

    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, RecursionError, ValueError):
        raise InvalidValue("does not match the Protobuf message of the column") from None
    return message


def _same(value: Any) -> Any:
    return value


def _unsigned(value: int) -> Any:
    return types.from_unscaled(value, 20, 0)


def _json(message: Any) -> str:
    from google.protobuf.json_format import MessageToDict

    try:
        return types.json_text(MessageToDict(message, preserving_proto_field_name=True))
    except (ValueError, TypeError, RecursionError) as error:  # such as an Any of an unknown type
        raise InvalidValue(f"the Protobuf message has no JSON form: {str(error)[:300]}") from None


def _timestamp(message: Any) -> int:
    return types.whole_number(message.seconds * 1_000_000 + message.nanos // 1_000)


def _part_of(kind: types.SparkType, convert: Convert = _same) -> Part:
    return Part(kind, convert)


_JSON: Final = Part(types.STRING, _json)
_SCALARS: Final = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), _part_of(types.INT)),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), _part_of(types.LONG)),
    **dict.fromkeys(("uint64", "fixed64"), _part_of(_UNSIGNED, _unsigned)),
    "double": _part_of(types.DOUBLE),
    "float": _part_of(types.FLOAT),
    "bool": _part_of(types.BOOLEAN),
    "string": _part_of(types.STRING, types.text),
    "bytes": _part_of(types.BINARY),
}
_WRAPPERS: Final = {
    "DoubleValue": "double",
    "FloatValue": "float",
    "Int64Value": "int64",
    "UInt64Value": "uint64",
    "Int32Value": "int32",
    "UInt32Value": "uint32",
    "BoolValue": "bool",
    "StringValue": "string",
    "BytesValue": "bytes",
}


def _wrapper(scalar: Part) -> Part:
    convert = scalar.convert
    return Part(scalar.type, lambda message: convert(message.value))


_KNOWN: Final = {
    "google.protobuf.Timestamp": Part(types.TIMESTAMP, _timestamp),
    **{f"google.protobuf.{name}": _wrapper(_SCALARS[scalar]) for name, scalar in _WRAPPERS.items()},
}
"""Well-known messages that have special types."""
_AS_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
