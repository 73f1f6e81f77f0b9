"""Avro: parsing, the two printed forms, values, compatibility.

The `avro` library decides about compatibility: for each pair of different types, and for names, sizes and symbols. The
library's result merges all reasons into sets, but Confluent's messages name the place of each reason. So this module
visits the pairs itself, in the order of Confluent's messages. fastavro reads values.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from kbroker.schema_registry.formats import avro_model, avro_values
from kbroker.schema_registry.formats.common import (
    Incompatibility,
    InvalidSchema,
    InvalidValue,
    Schema,
    Steps,
    from_json,
    need,
    run,
    value_in,
)

_TEXTS: Final = {
    "FIXED_SIZE_MISMATCH": "The size of FIXED type field at path '{path}' in the {reader} schema does not match with "
    "the {writer} schema",
    "TYPE_MISMATCH": "The type (path '{path}') of a field in the {reader} schema does not match with the {writer} "
    "schema",
    "NAME_MISMATCH": "The name of the schema has changed (path '{path}')",
    "MISSING_ENUM_SYMBOLS": "The {reader} schema is missing enum symbols '{info}' at path '{path}' in the {writer} "
    "schema",
    "MISSING_UNION_BRANCH": "The {reader} schema is missing a type inside a union field at path '{path}' in the "
    "{writer} schema",
    "READER_FIELD_MISSING_DEFAULT_VALUE": "The field '{info}' at path '{path}' in the {reader} schema has no default "
    "value and is missing in the {writer} schema",
}
"""The texts of the messages of Confluent's registry; clients and people search for these words."""


def parse(text: str, references: Mapping[str, str], *, is_new: bool = True) -> AvroSchema:
    """Parse a schema. Raises InvalidSchema."""
    need("avro")
    try:
        reader = avro_model.Reader(is_new=is_new)
        given = tuple(reader.read(from_json(each)) for each in references.values())
        known = frozenset(reader.names)
        return AvroSchema(text, references, reader.read(_json_or_name(text)), given, known)
    except (InvalidSchema, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidSchema(f"Invalid schema of type AVRO, details: {reason}") from None


def _json_or_name(text: str) -> Any:
    """Return a schema's JSON. Like Java, accept a bare name as the text of a type."""
    bare = text.strip()
    return bare if bare.isidentifier() else from_json(text)


@dataclass(frozen=True)
class AvroSchema(Schema):
    """An Avro schema, and the names that its references define."""

    root: avro_model.Type
    given: tuple[avro_model.Type, ...]
    known: frozenset[str]
    schema_type = "AVRO"

    @cached_property
    def canonical(self) -> str:
        """The text that Avro's Java library prints."""
        return avro_model.canonical(self.root, self.known)

    @cached_property
    def normalized(self) -> str:
        """Confluent's normalized form."""
        return avro_model.canonical(self.root, self.known, normalize=True)

    @cached_property
    def resolved(self) -> str:
        """The text that defines each type at the first use of its name."""
        return avro_model.canonical(self.root)

    @property
    def name(self) -> str | None:
        """The full name, if the schema is a record."""
        return self.root.full if self.root.kind in ("record", "error") else None

    @property
    def names(self) -> tuple[str, ...]:
        """The full name, if the schema is a record, an enum or a fixed."""
        return (self.root.full,) if self.root.full else ()

    @property
    def fields(self) -> frozenset[str]:
        """The names of a record's fields."""
        return frozenset(each.name for each in self.root.fields)

    @cached_property
    def library(self) -> Any:
        """The schema as an object of the `avro` library. Raises InvalidSchema if only the library refuses it."""
        from avro.errors import AvroException
        from avro.name import Names
        from avro.schema import make_avsc_object

        names, known = Names(), set[str]()
        try:
            for each in self.given:
                make_avsc_object(avro_model.plain(each, known), names)
            if self.root.named is not None:
                return names.names[avro_model.whole(self.root.full)]
            return make_avsc_object(avro_model.plain(self.root, known), names)
        except (AvroException, RecursionError) as error:
            raise InvalidSchema(f"Invalid schema of type AVRO, details: {str(error)[:500]}") from None

    def _of_fastavro(self, *, logical: bool) -> Any:
        """Return the schema in fastavro's form."""
        need("fastavro")
        from fastavro.schema import parse_schema

        if has_free_items(self.root):
            raise InvalidValue("this schema has a list of elements without bytes: a few bytes could make it endless")
        try:
            return parse_schema(avro_model.plain(self.root, set(), defaults=True, logical=logical))
        except Exception as error:  # noqa: BLE001 - whatever fastavro says of a schema that Avro's rules allow
            raise InvalidValue(f"this schema cannot be read: {str(error)[:200]}") from None

    def _reader(self, schema: Any, *, named: bool = False) -> Callable[[bytes], object]:
        if holds_itself(self.root):
            # The reader in C has no limit of depth, so a deeply nested value would crash the process.
            from fastavro._read_py import schemaless_reader
        else:
            from fastavro import schemaless_reader
        return lambda data: _decoded(schemaless_reader, schema, data, named=named)

    @cached_property
    def _checked(self) -> Callable[[bytes], object]:
        return self._reader(self._of_fastavro(logical=False))  # logical types cost time and refuse some values

    @cached_property
    def _values(self) -> Any:
        return self._of_fastavro(logical=True)

    @cached_property
    def _read(self) -> Callable[[bytes], object]:
        return self._reader(self._values)

    def check_value(self, data: bytes) -> None:
        """Raise InvalidValue unless the bytes are exactly one value of this schema."""
        self._checked(data)

    def value_of(self, data: bytes) -> Any:
        """Return the value."""
        return self._read(data)

    @cached_property
    def _read_stored(self) -> Callable[[bytes], object]:
        return self._reader(self._of_fastavro(logical=False), named=True)

    def stored_value(self, data: bytes) -> Any:
        """Return the stored value without logical types. A value of a union's named branch is (full name, value)."""
        return self._read_stored(data)

    def data_of(self, text: str) -> bytes:
        """Encode a value in Avro's JSON encoding, or in plain JSON; return its bytes."""
        from fastavro._write_py import schemaless_writer  # the writer in C has no limit of depth

        value, out = value_in(text, "Avro schema"), io.BytesIO()
        try:
            schemaless_writer(out, self._values, avro_values.from_json(self.root, value))
        except (ValueError, TypeError, RecursionError, ArithmeticError) as error:
            raise InvalidValue(f"does not match the Avro schema: {str(error)[:300]}") from None
        return out.getvalue()


def _decoded(read: Callable[..., Any], schema: Any, data: bytes, *, named: bool) -> object:
    stream = io.BytesIO(data)
    try:
        value: object = read(stream, schema, None, return_named_type=named)
    except Exception as error:  # noqa: BLE001 - hostile bytes may raise anything
        raise InvalidValue(f"does not match the Avro schema: {type(error).__name__}") from None
    if stream.tell() != len(data):
        raise InvalidValue("does not match the Avro schema: bytes remain")
    return value


def has_free_items(root: avro_model.Type) -> bool:
    """Whether a list has items that take no bytes: then five bytes can encode a billion items."""
    free = _free_types(root)
    return any(each.kind == "array" and _is_free(each.inner[0], free) for each in _types(root))


def _types(root: avro_model.Type) -> list[avro_model.Type]:
    """Return all types within a type; each named type only once."""
    found, waiting, seen = [], [root], set()
    while waiting:
        kind = waiting.pop()
        kind = kind.named or kind
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        found.append(kind)
        waiting += [each.type for each in kind.fields] + kind.inner
    return found


def _free_types(root: avro_model.Type) -> set[str]:
    """Return the names of types whose values have no bytes, or that have no finite value."""
    named = [each for each in _types(root) if each.full]
    free: set[str] = {each.full for each in named if each.kind in ("record", "error", "fixed")}
    changed = True
    while changed:
        changed = False
        for each in named:
            if each.full in free and (each.size > 0 or any(not _is_free(one.type, free) for one in each.fields)):
                free.discard(each.full)
                changed = True
        named.reverse()  # types are defined before their use, so one of the two directions ends soon
    return free


def _is_free(kind: avro_model.Type, free: set[str]) -> bool:
    return kind.kind == "null" or kind.full in free


def holds_itself(root: avro_model.Type) -> bool:
    """Whether values of the type may be nested without limit."""
    entered: set[int] = set()
    left: set[int] = set()
    waiting = [(root.named or root, False)]
    while waiting:
        kind, is_done = waiting.pop()
        if is_done:
            left.add(id(kind))
        elif id(kind) not in entered:
            entered.add(id(kind))
            waiting.append((kind, True))
            waiting += [(each.named or each, False) for each in [one.type for one in kind.fields] + kind.inner]
        elif id(kind) not in left:
            return True
    return False


def compatible(reader: AvroSchema, writer: AvroSchema) -> list[Incompatibility]:
    """Return the reasons why the reader's schema cannot read the writer's data, in the order of Avro's Java library."""
    try:
        found = run(_Pairs().of(reader.library, writer.library, "/", []))
    except RecursionError:
        raise InvalidSchema("these schemas are nested too deeply to be compared") from None
    return [
        Incompatibility("AVRO", kind, _place(location), _TEXTS.get(kind, ""), info) for kind, location, info in found
    ]


_Finding = tuple[str, list[str], str]
_Work = Generator[Any, list[_Finding], list[_Finding]]
"""A comparison that yields further comparisons and receives their findings (common.run)."""


class _Pairs:
    """Compares pairs of the library's types.

    If a comparison meets its own pair again, the inner pair counts as compatible.
    """

    def __init__(self) -> None:
        from avro import compatibility

        self._library = compatibility
        self._leaves = cast("Any", compatibility.ReaderWriterCompatibilityChecker)()
        self._known: dict[tuple[int, int], list[_Finding]] = {}
        self._steps = Steps()

    def of(self, reader: Any, writer: Any, token: str, location: list[str]) -> _Work:
        pair = (id(reader), id(writer))
        if pair not in self._known:
            self._known[pair] = []
            self._known[pair] = yield self._calculate(reader, writer, [*location, token])
        self._steps.take(1 + len(self._known[pair]))
        return self._known[pair]

    def _calculate(self, reader: Any, writer: Any, at: list[str]) -> _Work:
        if reader.type != writer.type:
            return (yield self._of_different(reader, writer, at))
        if reader.type == "union":
            return (yield self._of_unions(reader, writer, at))
        if reader.type == "array":
            return (yield self.of(reader.items, writer.items, "items", at))
        if reader.type == "map":
            return (yield self.of(reader.values, writer.values, "values", at))
        found: list[_Finding] = []
        if reader.type in ("record", "enum", "fixed") and not self._library.schema_name_equals(reader, writer):
            found.append(("NAME_MISMATCH", [*at, "name"], f"expected: {_shown(writer.fullname)}"))
        if reader.type == "record":
            return found + (yield self._of_records(reader, writer, at))
        if reader.type == "fixed" and reader.size != writer.size:
            found.append(("FIXED_SIZE_MISMATCH", [*at, "size"], f"expected: {writer.size}, found: {reader.size}"))
        if reader.type == "enum" and self._fails(
            self._library.check_reader_enum_contains_writer_enum(reader, writer, at)
        ):
            missing = ", ".join(sorted(set(writer.symbols) - set(reader.symbols)))
            found.append(("MISSING_ENUM_SYMBOLS", [*at, "symbols"], f"[{missing}]"))
        return found

    def _fails(self, result: Any) -> bool:
        return bool(result.compatibility is self._library.SchemaCompatibilityType.incompatible)

    def _of_different(self, reader: Any, writer: Any, at: list[str]) -> _Work:
        if writer.type == "union":
            found: list[_Finding] = []
            for branch in writer.schemas:
                found += yield self.of(reader, branch, "/", [])
            return found
        if reader.type == "union":
            for branch in reader.schemas:
                if not (yield self.of(branch, writer, "/", [])):
                    return []
            return [("MISSING_UNION_BRANCH", at, f"reader union lacking writer type: {writer.type.upper()}")]
        if self._fails(self._leaves.calculate_compatibility(reader, writer, at)):
            info = f"reader type: {reader.type.upper()} not compatible with writer type: {writer.type.upper()}"
            return [("TYPE_MISMATCH", at, info)]
        return []

    def _of_unions(self, reader: Any, writer: Any, at: list[str]) -> _Work:
        found: list[_Finding] = []
        for index, branch in enumerate(writer.schemas):
            if (yield self.of(reader, branch, "/", [])):
                lacking = f"reader union lacking writer type: {branch.type.upper()}"
                found.append(("MISSING_UNION_BRANCH", [*at, str(index)], lacking))
        return found

    def _of_records(self, reader: Any, writer: Any, at: list[str]) -> _Work:
        found: list[_Finding] = []
        written = writer.fields_dict
        for index, one in enumerate(reader.fields):
            names = [one.name, *(one.props.get("aliases") or ())]
            other = next((written[name] for name in names if name in written), None)
            place = [*at, "fields", str(index)]
            if other is not None:
                found += yield self.of(one.type, other.type, "type", place)
            elif not one.has_default:
                if one.type.type == "enum" and one.type.props.get("default"):
                    found += yield self.of(one.type, writer, "type", place)
                else:
                    found.append(("READER_FIELD_MISSING_DEFAULT_VALUE", place, one.name))
        return found


def _shown(name: str) -> str:
    return name.removeprefix(f"{avro_model.NO_NAMESPACE}.")


def _place(location: list[str]) -> str:
    path = "/".join(location)
    return path[1:] if len(location) > 1 else path
