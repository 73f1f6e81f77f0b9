"""Avro schemas as a tree of types: read from JSON according to the specification, printed in two ways.

`canonical` returns the text that Avro's Java library prints and Confluent's registry stores. `plain` returns the form
that the `avro` library needs to decide about compatibility: no logical types, full names everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from kbroker.schema_registry.formats.common import InvalidSchema, to_json

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED: Final = ("record", "error", "enum", "fixed")
NO_NAMESPACE: Final = "kbroker_no_namespace"
"""The namespace that this package passes to the libraries for names without a namespace."""
MOST_FIELDS: Final = 10_000
"""The maximum number of fields of a record: the library compares each name with all earlier names."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RESERVED: Final = frozenset(
    ("doc", "fields", "items", "name", "namespace", "size", "symbols", "values", "type", "aliases")
)
_FIELD_RESERVED: Final = frozenset(("default", "doc", "name", "order", "type", "aliases"))
_LOGICAL: Final = ("logicalType", "precision", "scale")
_ORDERS: Final = ("ascending", "descending", "ignore")


@dataclass(slots=True)
class Field:
    """A field of a record; `has_default` distinguishes a default of null from no default."""

    name: str
    type: Type
    doc: str | None
    has_default: bool
    default: Any
    order: str
    aliases: list[str]
    props: dict[str, Any]


@dataclass(slots=True)
class Type:
    """A type, or, if `named` is set, the name of a type that is defined elsewhere."""

    kind: str
    full: str = ""
    doc: str | None = None
    aliases: list[str] = field(default_factory=list)
    fields: list[Field] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    default: str | None = None
    size: int = 0
    inner: list[Type] = field(default_factory=list)
    props: dict[str, Any] = field(default_factory=dict)
    named: Type | None = None

    @property
    def space(self) -> str:
        """The namespace, or an empty text."""
        return self.full.rpartition(".")[0]


class Reader:
    """Reads schemas one at a time; each schema may use the names that earlier schemas defined."""

    def __init__(self, *, is_new: bool) -> None:
        self._is_new = is_new
        self.names: dict[str, Type] = {}

    def read(self, schema: Any, space: str = "") -> Type:
        """Return the type that a JSON value describes within a namespace. Raises InvalidSchema."""
        if isinstance(schema, str):
            return self._by_name(schema, space)
        if isinstance(schema, list):
            return self._union(schema, space)
        if not isinstance(schema, dict):
            raise InvalidSchema(f"No type: {_short(schema)}")
        kind = schema.get("type")
        if isinstance(kind, (dict, list)):
            raise InvalidSchema(f"No type: {_short(schema)}")
        if not isinstance(kind, str):
            raise InvalidSchema(f"No type: {_short(schema)}")
        props = {key: value for key, value in schema.items() if key not in _RESERVED}
        if kind in PRIMITIVES:
            return Type(kind, props=props)
        if kind in ("array", "map"):
            within = "items" if kind == "array" else "values"
            if within not in schema:
                raise InvalidSchema(f"{kind.capitalize()} has no {within} type: {_short(schema)}")
            return Type(kind, inner=[self.read(schema[within], space)], props=props)
        if kind in NAMED:
            return self._named(kind, schema, space, props)
        return self._by_name(kind, space)

    def _by_name(self, name: str, space: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        full = name if "." in name or not space else f"{space}.{name}"
        found = self.names.get(full) or self.names.get(name)
        if found is None:
            raise InvalidSchema(f'Undefined schema: "{_short(full)}"')
        return Type(found.kind, found.full, named=found)

    def _union(self, branches: list[Any], space: str) -> Type:
        read = [self.read(each, space) for each in branches]
        seen: set[str] = set()
        for each in read:
            if each.kind == "union":
                raise InvalidSchema("Nested union")
            name = each.full or each.kind
            if name in seen:
                raise InvalidSchema(f"Duplicate in union:{name}")
            seen.add(name)
        return Type("union", inner=read)

    def _named(self, kind: str, schema: Mapping[str, Any], space: str, props: dict[str, Any]) -> Type:
        name, given = schema.get("name"), schema.get("namespace", space)
        if not isinstance(name, str) or not isinstance(given, str):
            raise InvalidSchema(f"No name in schema: {_short(schema)}")
        full = name if "." in name or not given else f"{given}.{name}"
        for part in full.split("."):
            self._check_name(part)
        if full in PRIMITIVES:
            raise InvalidSchema(f"Schemas may not be named after primitives: {full}")
        if full in self.names:
            raise InvalidSchema(f"Can't redefine: {full}")
        made = Type(kind, full, doc=_text(schema, "doc"), props=props)
        made.aliases = [each if "." in each or not made.space else f"{made.space}.{each}" for each in _aliases(schema)]
        self.names[full] = made
        if kind in ("record", "error"):
            self._read_fields(schema, made)
        elif kind == "enum":
            self._read_symbols(schema, made)
        else:
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidSchema(f"Invalid or no size: {_short(schema)}")
            made.size = size
        return made

    def _read_symbols(self, schema: Mapping[str, Any], made: Type) -> None:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
            raise InvalidSchema(f"Enum has no symbols: {_short(schema)}")
        for each in symbols:
            self._check_name(each)
        if len(set(symbols)) < len(symbols):
            raise InvalidSchema(f"Duplicate enum symbol in {made.full}")
        made.symbols, made.default = symbols, made.props.pop("default", None)
        if made.default is not None and made.default not in symbols:
            raise InvalidSchema(f"The Enum Default: {_short(made.default)} is not in the enum symbol set: {made.full}")

    def _read_fields(self, schema: Mapping[str, Any], made: Type) -> None:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchema(f"Record has no fields: {_short(schema)}")
        if len(fields) > MOST_FIELDS:
            raise InvalidSchema(f"a record has at most {MOST_FIELDS} fields")
        seen = set()
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise InvalidSchema(f"No field name: {_short(each)}")
            name, order = each["name"], each.get("order", "ascending")
            self._check_name(name)
            if name in seen:
                raise InvalidSchema(f"Duplicate field {name} in record {made.full}")
            seen.add(name)
            if "type" not in each:
                raise InvalidSchema(f"No field type: {_short(each)}")
            if order not in _ORDERS:
                raise InvalidSchema(f"No order {_short(order)} for field {name}")
            kind = self.read(each["type"], made.space)
            props = {key: value for key, value in each.items() if key not in _FIELD_RESERVED}
            made.fields.append(
                Field(
                    name, kind, _text(each, "doc"), "default" in each, each.get("default"), order, _aliases(each), props
                )
            )
        if self._is_new:
            for one in made.fields:
                if one.has_default and not fits(one.type, one.default):
                    raise InvalidSchema(
                        f"Invalid default for field {one.name}: {_short(one.default)} "
                        f"not a {_short(canonical(one.type))}"
                    )

    def _check_name(self, name: str) -> None:
        if not name:
            raise InvalidSchema("Empty name")
        legal = _NAME.match(name) if self._is_new else name.isidentifier()
        if not legal:
            if name[0].isalpha() or name[0] == "_":
                raise InvalidSchema(f"Illegal character in: {_short(name)}")
            raise InvalidSchema(f"Illegal initial character: {_short(name)}")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else to_json(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _text(schema: Mapping[str, Any], key: str) -> str | None:
    value = schema.get(key)
    return value if isinstance(value, str) else None


def _aliases(schema: Mapping[str, Any]) -> list[str]:
    aliases = schema.get("aliases")
    if aliases is None:
        return []
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise InvalidSchema(f"aliases not an array of texts: {_short(schema)}")
    return list(dict.fromkeys(aliases))


def fits(kind: Type, value: Any) -> bool:
    """Whether a default in JSON is a value of a type; for a union, a value of any branch."""
    return _fits(kind, value, {})


def _fits(kind: Type, value: Any, known: dict[tuple[int, int], bool]) -> bool:
    kind = kind.named or kind
    pair = (id(kind), id(value))
    if pair not in known:  # branches of unions repeat the same check
        known[pair] = _is_value(kind, value, known)
    return known[pair]


def _is_value(kind: Type, value: Any, known: dict[tuple[int, int], bool]) -> bool:
    if kind.kind in ("string", "bytes", "fixed", "enum"):
        return isinstance(value, str)
    if kind.kind in ("int", "long"):
        bits = 31 if kind.kind == "int" else 63
        return isinstance(value, int) and not isinstance(value, bool) and -(1 << bits) <= value < 1 << bits
    if kind.kind in ("float", "double"):
        return isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if kind.kind == "boolean":
        return isinstance(value, bool)
    if kind.kind == "null":
        return value is None
    if kind.kind == "array":
        return isinstance(value, list) and all(_fits(kind.inner[0], each, known) for each in value)
    if kind.kind == "map":
        return isinstance(value, dict) and all(_fits(kind.inner[0], each, known) for each in value.values())
    if kind.kind == "union":
        return any(_fits(each, value, known) for each in kind.inner)
    return isinstance(value, dict) and all(
        _fits(each.type, value[each.name], known) if each.name in value else each.has_default for each in kind.fields
    )


def canonical(kind: Type, known: Iterable[str] = (), *, normalize: bool = False) -> str:
    """Return the text that Avro's Java library prints; types whose names are known are printed as names.

    With `normalize`, sort other properties and aliases, and drop empty docs, as Confluent's registry does.
    """
    return to_json(_Printer(set(known), normalize).type(kind, ""), java_doubles=True)


class _Printer:
    def __init__(self, known: set[str], normalize: bool) -> None:
        self._known = known
        self._normalize = normalize

    def type(self, kind: Type, space: str) -> Any:
        if kind.kind == "union":
            return [self.type(each, space) for each in kind.inner]
        if kind.kind in ("array", "map"):
            within = "items" if kind.kind == "array" else "values"
            return {"type": kind.kind, within: self.type(kind.inner[0], space), **self._props(kind.props)}
        if not kind.full:
            return {"type": kind.kind, **self._props(kind.props)} if kind.props else kind.kind
        own, _, name = kind.full.rpartition(".")
        if kind.full in self._known:
            return name if own == space and name not in PRIMITIVES else kind.full
        self._known.add(kind.full)
        return self._definition(kind.named or kind, name, own, space)

    def _definition(self, kind: Type, name: str, own: str, space: str) -> dict[str, Any]:
        said: dict[str, Any] = {"type": kind.kind, "name": name}
        if own != space:
            said["namespace"] = own
        if kind.doc is not None and not (self._normalize and not kind.doc):
            said["doc"] = kind.doc
        if kind.kind == "enum":
            said["symbols"] = kind.symbols
            if kind.default is not None:
                said["default"] = kind.default
        elif kind.kind == "fixed":
            said["size"] = kind.size
        else:
            said["fields"] = [self._field(each, own) for each in kind.fields]
        said.update(self._props(kind.props))
        if kind.aliases:
            said["aliases"] = [_relative(each, own) for each in self._in_order(kind.aliases)]
        return said

    def _field(self, one: Field, space: str) -> dict[str, Any]:
        said: dict[str, Any] = {"name": one.name, "type": self.type(one.type, space)}
        if one.doc is not None:
            said["doc"] = one.doc
        if one.has_default:
            said["default"] = _sorted(one.default) if self._normalize else one.default
        if one.order != "ascending":
            said["order"] = one.order
        if one.aliases:
            said["aliases"] = self._in_order(one.aliases)
        return said | self._props(one.props)

    def _in_order(self, names: list[str]) -> list[str]:
        return sorted(names) if self._normalize else names

    def _props(self, props: dict[str, Any]) -> dict[str, Any]:
        if not self._normalize:
            return props
        first = ("logicalType", "precision", "scale") if props.get("logicalType") == "decimal" else ("logicalType",)
        names = [name for name in first if name in props] + sorted(name for name in props if name not in first)
        return {name: _sorted(props[name]) for name in names}


def _relative(full: str, space: str) -> str:
    own, _, name = full.rpartition(".")
    return name if own == space else full


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(each) for each in value]
    return value


def whole(full: str) -> str:
    """Return a full name that means the same in every namespace: libraries treat a name without a dot as relative."""
    return full if "." in full else f"{NO_NAMESPACE}.{full}"


def plain(kind: Type, known: set[str], *, defaults: bool = False, logical: bool = False) -> Any:
    """Return the schema as JSON with full names, without the parts that do not affect compatibility.

    Without `defaults`, every default of a field is null. With `logical`, types keep their logical types.
    """

    def inner(each: Type) -> Any:
        return plain(each, known, defaults=defaults, logical=logical)

    if kind.kind == "union":
        return [inner(each) for each in kind.inner]
    if kind.kind in ("array", "map"):
        return {"type": kind.kind, "items" if kind.kind == "array" else "values": inner(kind.inner[0])}
    meaning: dict[str, Any] = {name: kind.props[name] for name in _LOGICAL if logical and name in kind.props}
    if not kind.full:
        return {"type": kind.kind, **meaning} if meaning else kind.kind
    if kind.full in known:
        return whole(kind.full)
    known.add(kind.full)
    kind = kind.named or kind
    said: dict[str, Any] = {"type": "record" if kind.kind == "error" else kind.kind, "name": whole(kind.full)}
    if kind.aliases:
        said["aliases"] = [whole(each) for each in kind.aliases]
    if kind.kind == "enum":
        said["symbols"] = kind.symbols
        if kind.default is not None:
            said["default"] = kind.default
    elif kind.kind == "fixed":
        said |= {"size": kind.size, **meaning}
    else:
        said["fields"] = [_plain_field(each, inner(each.type), defaults=defaults) for each in kind.fields]
    return said


def _plain_field(one: Field, kind: Any, *, defaults: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"name": one.name, "type": kind}
    if one.has_default:
        said["default"] = plain_numbers(one.default) if defaults else None
    if one.aliases:
        said["aliases"] = one.aliases
    return said


def plain_numbers(value: Any) -> Any:
    """Return a default with numbers as int and float, as Python's JSON parser returns numbers."""
    if isinstance(value, dict):
        return {name: plain_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain_numbers(each) for each in value]
    return float(value) if isinstance(value, Decimal) else value
