"""A column for an Avro schema, with the types that Spark's own Avro source uses.

Owns the type of each schema, and Avro's resolution of a value from the writer's schema to the reader's: fields by name
or alias, defaults, promotions, branches of unions. fastavro reads the bytes with the writer's schema, without logical
types. This module handles the logical types of both schemas, so that a decimal or a timestamp with another scale stays
exact. The name of a record matters only within unions, as in Java.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, cast
from uuid import UUID

from kbroker.pipeline.decoding import spark_types as types
from kbroker.pipeline.decoding.spark_types import Budget, Convert, SparkType
from kbroker.schema_registry.formats.avro import AvroSchema
from kbroker.schema_registry.formats.avro_model import Field, Type, whole
from kbroker.schema_registry.formats.common import InvalidValue, Schema

_MICROS: Final = {"timestamp-millis": 1_000, "timestamp-micros": 1}
_LOCAL_MICROS: Final = {f"local-{name}": factor for name, factor in _MICROS.items()}
_PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_PRIMITIVE: Final = {
    "boolean": types.BOOLEAN,
    "int": types.INT,
    "long": types.LONG,
    "float": types.FLOAT,
    "double": types.DOUBLE,
    "string": types.STRING,
    "bytes": types.BINARY,
    "enum": types.STRING,
    "fixed": types.BINARY,
    "null": types.STRING,
}


@dataclass(slots=True)
class _Node:
    """A part of the column: the type at one place in the reader's schema."""

    form: str
    """One of: json, plain, struct, array, map, union (a struct of members), choice (numbers of two sizes)."""
    type: SparkType
    avro: Type
    inner: list[_Node] = field(default_factory=list)
    """The fields, items or values of the type, or the branches of a union except null."""
    takes_null: bool = False


class AvroColumn:
    """The column for a schema."""

    def __init__(self, schema: AvroSchema) -> None:
        self._budget = Budget()
        self._root = self._node(schema.root, frozenset(), 0)
        self.type = self._root.type

    def read_by(self, writer: Schema) -> Callable[[bytes], Any]:
        """Return a function that converts bytes of the schema `writer` to a value of this column."""
        schema = cast("AvroSchema", writer)
        try:
            convert = _resolved(schema.root, self._root, "value")
        except InvalidValue as error:
            convert = _failing(str(error))
        read = schema.stored_value
        return lambda data: convert(read(data))

    # -- the type ---------------------------------------------------------------------------------------------

    def _node(self, kind: Type, within: frozenset[str], depth: int) -> _Node:
        kind = kind.named or kind
        if kind.kind == "union":
            return self._union(kind, within, depth)
        if kind.full in within or depth >= types.DEEPEST:
            return _Node("json", types.STRING, kind)
        if kind.kind in ("record", "error"):
            names = [each.name for each in kind.fields]
            if not self._budget.allows(names, depth):
                return _Node("json", types.STRING, kind)
            within |= {kind.full}
            inner = [self._node(each.type, within, depth + 1) for each in kind.fields]
            fields = [(name, each.type) for name, each in zip(names, inner, strict=True)]
            return _Node("struct", types.struct_type(fields), kind, inner)
        if kind.kind == "array":
            items = self._node(kind.inner[0], within, depth + 1)
            return _Node("array", types.array_type(items.type), kind, [items])
        if kind.kind == "map":
            values = self._node(kind.inner[0], within, depth + 1)
            return _Node("map", types.map_type(values.type), kind, [values])
        return _Node("plain", _plain_type(kind), kind)

    def _union(self, kind: Type, within: frozenset[str], depth: int) -> _Node:
        branches = [each.named or each for each in kind.inner if each.kind != "null"]
        takes_null = len(branches) < len(kind.inner)
        if len(branches) == 1:
            found = self._node(branches[0], within, depth)
            found.takes_null = takes_null
            return found
        kinds = {each.kind for each in branches}
        if len(branches) == 2 and kinds in ({"int", "long"}, {"float", "double"}):
            larger = types.LONG if "long" in kinds else types.DOUBLE
            return _Node("choice", larger, kind, [_Node("plain", larger, each) for each in branches], takes_null)
        names = [f"member{index}" for index in range(len(branches))]
        if not self._budget.allows(names, depth):
            return _Node("json", types.STRING, kind, takes_null=takes_null)
        inner = [self._node(each, within, depth + 1) for each in branches]
        fields = [(name, each.type) for name, each in zip(names, inner, strict=True)]
        return _Node("union", types.struct_type(fields), kind, inner, takes_null)


def _plain_type(kind: Type) -> SparkType:
    logical = _logical(kind)
    if logical == "decimal":
        return types.decimal_type(*_scale(kind))
    if logical == "date":
        return types.DATE
    if logical in _MICROS:
        return types.TIMESTAMP
    if logical in _LOCAL_MICROS:
        return types.LOCAL_TIMESTAMP
    return types.STRING if logical == "uuid" else _PRIMITIVE[kind.kind]


def _logical(kind: Type) -> str | None:
    """Return the logical type if it is valid here. By Avro's rules, an invalid logical type is ignored."""
    said = kind.props.get("logicalType")
    if not isinstance(said, str):
        return None
    if said == "decimal":
        precision, scale = _scale(kind)
        fits = 0 < precision <= _most_digits(kind) and 0 <= scale <= precision
        return said if kind.kind in ("bytes", "fixed") and fits else None
    if said == "uuid":
        return said if kind.kind == "string" or (kind.kind == "fixed" and kind.size == 16) else None
    if said == "date":
        return said if kind.kind == "int" else None
    return said if kind.kind == "long" and (said in _MICROS or said in _LOCAL_MICROS) else None


def _scale(kind: Type) -> tuple[int, int]:
    precision, scale = kind.props.get("precision"), kind.props.get("scale", 0)
    return (precision if type(precision) is int else 0), (scale if type(scale) is int else -1)


def _most_digits(kind: Type) -> int:
    most = 100_000
    return len(str((1 << (8 * min(kind.size, most) - 1)) - 1)) - 1 if kind.kind == "fixed" and kind.size else most


# -- resolution -----------------------------------------------------------------------------------------------


def _failing(reason: str) -> Convert:
    def fail(_: Any) -> Any:
        raise InvalidValue(reason)

    return fail


def _resolved(writer: Type, node: _Node, place: str) -> Convert:
    """Return a function that converts a value of the writer's type to a value of a node. Raises InvalidValue."""
    writer = writer.named or writer
    if writer.kind == "union":
        return _from_union(writer, node, place)
    if writer.kind == "null":
        if not node.takes_null and node.avro.kind != "null":
            raise InvalidValue(f"{place}: null cannot be read as {_name(node.avro)}")
        return _none
    if node.form == "json":
        return lambda value: types.json_text(_plain_json(writer, value))
    if node.form in ("union", "choice"):
        return _into_union(writer, node, place)
    return _of_one_type(writer, node, place)


def _of_one_type(writer: Type, node: _Node, place: str) -> Convert:
    reader = node.avro
    if node.form == "struct" and writer.kind in ("record", "error"):
        return _struct(writer, node, place)
    if node.form == "array" and writer.kind == "array":
        items = _resolved(writer.inner[0], node.inner[0], f"{place}[]")
        return lambda value: [items(each) for each in value]
    if node.form == "map" and writer.kind == "map":
        values = _resolved(writer.inner[0], node.inner[0], f"{place}.*")
        return lambda value: {name: values(each) for name, each in value.items()}
    if node.form != "plain" or not _reads(writer, reader):
        raise InvalidValue(f"{place}: {_name(writer)} cannot be read as {_name(reader)}")
    return _plain(writer, node)


def _struct(writer: Type, node: _Node, place: str) -> Convert:
    written = {each.name: each for each in writer.fields}
    reads: list[tuple[str | None, Convert]] = []
    for one, inner in zip(node.avro.fields, node.inner, strict=True):
        name = next((name for name in (one.name, *one.aliases) if name in written), None)
        where = f"{place}.{one.name}"
        if name is not None:
            reads.append((name, _resolved(written[name].type, inner, where)))
        else:
            reads.append((None, _always(_default(one, inner, where))))
    return lambda value: tuple(convert(None if name is None else value[name]) for name, convert in reads)


def _always(value: Any) -> Convert:
    return lambda _: value


def _none(_: Any) -> None:
    return None


def _from_union(writer: Type, node: _Node, place: str) -> Convert:
    """Return a conversion that depends on the value's branch. Only values of an unreadable branch raise an error."""
    found: dict[str, Convert] = {}
    for branch in writer.inner:
        try:
            convert = _resolved(branch, node, place)
        except InvalidValue as error:
            convert = _failing(str(error))
        found[whole(branch.full) if branch.full else branch.kind] = convert
    plain = {kind: found[name] for name, kind in reversed(_PYTHON.items()) if name in found}
    sized = {kind for kind, (small, large) in _SIZES.items() if small in found and large in found}

    def converted(value: Any) -> Any:
        kind = type(value)
        if kind is tuple:
            return found[value[0]](value[1])
        if kind in sized and not _is_small(value):
            return found[_SIZES[kind][1]](value)
        return plain[kind](value)

    return converted


_PYTHON: Final[dict[str, type]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "bytes": bytes,
    "array": list,
    "map": dict,
}
"""The Python types with which fastavro returns branches without a name."""
_SIZES: Final = {int: ("int", "long"), float: ("float", "double")}


def _is_small(value: float) -> bool:
    """Whether a number is the same in 32 bits. This is needed because fastavro does not return the branch."""
    try:
        return (
            bool(struct.unpack("f", struct.pack("f", value))[0] == value)
            if isinstance(value, float)
            else (-(1 << 31) <= value < 1 << 31)
        )
    except OverflowError:
        return False


def _into_union(writer: Type, node: _Node, place: str) -> Convert:
    """Return a conversion to a branch of the reader's union.

    This is the first branch of the writer's type or, without such a branch, the first branch that can read this type.
    """
    for is_wanted in (_same, _reads):
        for index, branch in enumerate(node.inner):
            if not is_wanted(writer, branch.avro):
                continue
            try:
                convert = _resolved(writer, branch, place)
            except InvalidValue:
                continue
            return convert if node.form == "choice" else _member(convert, index, len(node.inner))
    raise InvalidValue(f"{place}: {_name(writer)} is no branch of the union")


def _member(convert: Convert, index: int, count: int) -> Convert:
    before, after = (None,) * index, (None,) * (count - index - 1)
    return lambda value: (*before, convert(value), *after)


def _same(writer: Type, reader: Type) -> bool:
    if writer.kind != reader.kind:
        return False
    return not writer.full or writer.full == reader.full or writer.full in reader.aliases


def _reads(writer: Type, reader: Type) -> bool:
    """Whether the reader's type can read values of the writer's type, without a check of inner types."""
    if writer.kind == "fixed" and reader.kind == "fixed":
        return writer.size == reader.size
    return writer.kind == reader.kind or reader.kind in _PROMOTED.get(writer.kind, ())


def _name(kind: Type) -> str:
    return kind.full or kind.kind


# -- values of one type ---------------------------------------------------------------------------------------


def _plain(writer: Type, node: _Node) -> Convert:
    reader, logical = node.avro, _logical(node.avro)
    if logical == "decimal":
        return _decimal(writer, reader)
    if logical in _MICROS or logical in _LOCAL_MICROS:
        return _timestamp(writer, reader)
    if logical == "uuid":
        return _uuid if writer.kind == "fixed" else _text_or_bytes
    if reader.kind == "enum":
        return _symbol(writer, reader)
    if reader.kind == "string":
        return _text_or_bytes
    if reader.kind in ("bytes", "fixed"):
        return lambda value: value.encode() if isinstance(value, str) else value
    if node.type in (types.INT, types.DATE):
        return _int
    return float if node.type in (types.FLOAT, types.DOUBLE) else _unchanged


_INTS: Final = range(-(1 << 31), 1 << 31)


def _int(value: int) -> int:
    if value not in _INTS:  # fastavro reads an int like a long, and Spark would truncate it
        raise InvalidValue("an int has more than 32 bits")
    return value


def _unchanged(value: Any) -> Any:
    return value


def _text_or_bytes(value: Any) -> str:
    if isinstance(value, str):
        return types.text(value)
    try:
        return bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidValue("bytes that are read as a text are not UTF-8") from None


def _uuid(value: bytes) -> str:
    return str(UUID(bytes=bytes(value)))


def _symbol(writer: Type, reader: Type) -> Convert:
    known, default = frozenset(reader.symbols), reader.default

    def converted(value: str) -> str:
        if value in known:
            return value
        if default is None:
            raise InvalidValue(f"{reader.full} has no symbol {value}")
        return default

    return _unchanged if known.issuperset(writer.symbols) else converted


def _decimal(writer: Type, reader: Type) -> Convert:
    """Return a conversion to exact decimals of the reader's scale. Decimals with too many digits become text."""
    precision, scale = _scale(reader)
    written = _scale(writer)[1] if _logical(writer) == "decimal" else scale

    def converted(value: Any) -> Any:
        unscaled = int.from_bytes(value.encode() if isinstance(value, str) else value, signed=True)
        found = types.from_unscaled(types.rescaled(unscaled, written, scale), precision, scale)
        return found if precision <= types.MOST_DIGITS else f"{found:f}"

    return converted


def _timestamp(writer: Type, reader: Type) -> Convert:
    units = _MICROS | _LOCAL_MICROS
    factor = units.get(_logical(writer) or "", units[_logical(reader) or ""])
    if factor == 1:
        return _unchanged
    return lambda value: types.whole_number(value * factor)


# -- defaults and JSON ----------------------------------------------------------------------------------------


def _default(one: Field, node: _Node, place: str) -> Any:
    if not one.has_default:
        raise InvalidValue(f"{place} is missing, and has no default")
    return _of_json(one.default, one.type, node, place)


def _of_json(value: Any, kind: Type, node: _Node, place: str) -> Any:
    """Return a default, which is JSON, as a value of a node. For a union, use the first branch that accepts it."""
    kind = kind.named or kind
    if kind.kind == "union":
        for branch in kind.inner:
            try:
                return _of_branch(value, branch.named or branch, node, place)
            except InvalidValue:
                continue
        raise InvalidValue(f"{place}: the default is of no branch of the union")
    stored = _stored(value, kind, place)
    return None if stored is None else _resolved(kind, node, place)(stored)


def _of_branch(value: Any, branch: Type, node: _Node, place: str) -> Any:
    stored = _stored(value, branch, place)
    return None if stored is None else _resolved(branch, node, place)(stored)


def _stored(value: Any, kind: Type, place: str) -> Any:
    """Return a default as fastavro would read it. Raises InvalidValue if the default does not fit its type."""
    from kbroker.schema_registry.formats.avro_model import fits

    kind = kind.named or kind
    if not fits(kind, value):
        raise InvalidValue(f"{place}: the default is no {_name(kind)}")
    if kind.kind == "union":
        branch = next(each.named or each for each in kind.inner if fits(each, value))
        stored = _stored(value, branch, place)
        return (whole(branch.full), stored) if branch.full else stored
    if kind.kind in ("record", "error"):
        return {each.name: _stored(value.get(each.name, each.default), each.type, place) for each in kind.fields}
    if kind.kind == "array":
        return [_stored(each, kind.inner[0], place) for each in value]
    if kind.kind == "map":
        return {name: _stored(each, kind.inner[0], place) for name, each in value.items()}
    if kind.kind in ("bytes", "fixed"):
        try:
            return value.encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidValue(f"{place}: the default is bytes, but has a character beyond U+00FF") from None
    return float(value) if isinstance(value, Decimal) or kind.kind in ("float", "double") else value


def _plain_json(kind: Type, value: Any) -> Any:
    """Return a value of its writer's schema as JSON. Dates and times are in ISO 8601; decimals are texts."""
    kind = kind.named or kind
    if kind.kind == "union":
        if isinstance(value, tuple):
            kind = next(each for each in kind.inner if each.full and whole(each.full) == value[0])
            return _plain_json(kind, value[1])
        found = next((each for each in kind.inner if not each.full and _PYTHON[each.kind] is type(value)), None)
        return value if found is None else _plain_json(found, value)
    if kind.kind in ("record", "error"):
        return {each.name: _plain_json(each.type, value[each.name]) for each in kind.fields}
    if kind.kind == "array":
        return [_plain_json(kind.inner[0], each) for each in value]
    if kind.kind == "map":
        return {name: _plain_json(kind.inner[0], each) for name, each in value.items()}
    return _simple_json(kind, value)


_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - with or without a zone, as the type has it


def _simple_json(kind: Type, value: Any) -> Any:
    logical = _logical(kind)
    if logical == "decimal":
        return str(types.from_unscaled(int.from_bytes(value, signed=True), *_scale(kind)))
    if logical == "uuid" and kind.kind == "fixed":
        return _uuid(value)
    try:
        if logical == "date":
            return (_EPOCH + datetime.timedelta(days=value)).date().isoformat()
        if logical in _MICROS:
            return (_EPOCH + datetime.timedelta(microseconds=value * _MICROS[logical])).isoformat() + "Z"
        if logical in _LOCAL_MICROS:
            return (_EPOCH + datetime.timedelta(microseconds=value * _LOCAL_MICROS[logical])).isoformat()
    except OverflowError:
        return value  # Python supports no date so far from 1970
    return value
