"""A column for a JSON Schema. Objects with properties are structs; values without a single type are JSON text.

Owns the type of each schema, if the schema defines one, and reads values by the names of properties. A value must only
fit the type: the patterns and bounds in the writer's schema are not checked. Properties that the reader's schema does
not name are omitted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from kbroker.pipeline.decoding import spark_types as types
from kbroker.pipeline.decoding.spark_types import Budget, Part
from kbroker.schema_registry.formats.common import InvalidValue, Schema
from kbroker.schema_registry.formats.json_schema import JsonSchema
from kbroker.schema_registry.formats.json_schema_model import Model, Node

_NOTHING: Final = "nothing"
_UNKNOWN: Final = "unknown"
_MOST_PARTS: Final = 1_000
"""The maximum number of alternatives that are examined to find the type of one part."""


@dataclass(slots=True)
class _Said:
    """The information in a schema about the type of its values."""

    kind: str
    properties: dict[str, Node] = field(default_factory=dict)
    values: Node | None = None
    """The schema of a map's additional properties, or of an array's items."""
    nodes: frozenset[int] = frozenset()
    """The nodes that have been examined."""


class JsonColumn:
    """The column for a schema. Raises InvalidSchema for references that have no target."""

    def __init__(self, schema: JsonSchema) -> None:
        self._model: Model = schema.model
        self._budget = Budget()
        part = self._part(self._model.root, frozenset(), 0)
        self.type = part.type
        self._convert = part.convert

    def read_by(self, writer: Schema) -> Callable[[bytes], Any]:
        """Return a function that converts bytes of the schema `writer` to a value of this column."""
        convert = self._convert
        return lambda data: convert(writer.value_of(data))

    def _part(self, node: Node, within: frozenset[int], depth: int) -> Part:
        said = self._said(node, set())
        if said.nodes & within:
            return _TEXT
        within |= said.nodes
        if said.kind in _SIMPLE:
            return _SIMPLE[said.kind]
        if said.kind == "array" and said.values is not None and depth < types.DEEPEST:
            return _array(self._part(said.values, within, depth + 1))
        if said.kind == "object" and said.properties and self._budget.allows(tuple(said.properties), depth):
            return _struct({name: self._part(each, within, depth + 1) for name, each in said.properties.items()})
        if said.kind == "object" and not said.properties and said.values is not None and depth < types.DEEPEST:
            return _map(self._part(said.values, within, depth + 1))
        return _TEXT

    def _said(self, node: Node, seen: set[int]) -> _Said:
        node = self._model.target(node)
        if id(node) in seen or len(seen) > _MOST_PARTS:
            return _Said(_NOTHING)
        seen.add(id(node))
        nodes = frozenset((id(node),))
        if node.kind == "combined":
            parts = [self._said(each, seen) for each in node.parts]
            found = _all(parts) if node.criterion == "allOf" else _any(parts)
            return _Said(found.kind, found.properties, found.values, nodes.union(*(each.nodes for each in parts)))
        if node.kind == "object":
            values = node.extra_schema
            if values is None and len(node.patterns) == 1 and not node.extra:
                values = next(iter(node.patterns.values()))
            return _Said("object", node.properties, values, nodes)
        if node.kind == "array":
            return _Said("array", {}, None if node.parts else node.all_items, nodes)
        if node.kind == "number":
            return _Said("integer" if node.is_integer else "number", nodes=nodes)
        if node.kind in ("enum", "const"):
            found = _any([_Said(_kind_of(json.loads(each))) for each in node.values])
            return _Said(found.kind if found.kind in _SIMPLE else _UNKNOWN, nodes=nodes)
        return _Said(node.kind if node.kind in ("string", "boolean", "null") else _NOTHING, nodes=nodes)


def _all(parts: Iterable[_Said]) -> _Said:
    """Return the combined information of schemas that must all be valid for a value."""
    told = [each for each in parts if each.kind not in (_NOTHING, _UNKNOWN)]
    kinds = {each.kind for each in told}
    if not told:
        return _Said(_UNKNOWN)
    if kinds == {"object"}:
        properties = {name: node for each in reversed(told) for name, node in each.properties.items()}
        return _Said("object", properties, next((each.values for each in told if each.values is not None), None))
    if kinds == {"integer", "number"}:
        return _Said("integer")
    return told[0] if len(kinds) == 1 else _Said(_UNKNOWN)


def _any(parts: Iterable[_Said]) -> _Said:
    """Return the combined information of alternative schemas, one of which must be valid. Null is always allowed."""
    told = [each for each in parts if each.kind != "null"]
    kinds = {each.kind for each in told}
    if len(told) == 1:
        return told[0] if told[0].kind != _NOTHING else _Said(_UNKNOWN)
    if kinds == {"integer", "number"}:
        return _Said("number")
    if not told:
        return _Said("null")
    if len(kinds) == 1 and (told[0].kind in _SIMPLE or not any(each.properties or each.values for each in told)):
        return told[0]
    return _Said(_UNKNOWN)


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "integer" if isinstance(value, int) else "number" if isinstance(value, float) else _UNKNOWN


def _nullable(convert: types.Convert) -> types.Convert:
    return lambda value: None if value is None else convert(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("a value is no boolean")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidValue("a value is no whole number")
    return types.whole_number(value)


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidValue("a value is no number")
    try:
        return float(value)
    except OverflowError:
        raise InvalidValue("a number is larger than a double") from None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue("a value is no text")
    return types.text(value)


def _array(items: Part) -> Part:
    convert = items.convert

    def converted(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise InvalidValue("a value is no array")
        return [convert(each) for each in value]

    return Part(types.array_type(items.type), _nullable(converted))


def _map(values: Part) -> Part:
    convert = values.convert

    def converted(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InvalidValue("a value is no object")
        return {types.text(name): convert(each) for name, each in value.items()}

    return Part(types.map_type(values.type), _nullable(converted))


def _struct(properties: dict[str, Part]) -> Part:
    parts = [(name, part.convert) for name, part in properties.items()]

    def converted(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, dict):
            raise InvalidValue("a value is no object")
        return tuple(convert(value.get(name)) for name, convert in parts)

    fields = [(name, part.type) for name, part in properties.items()]
    return Part(types.struct_type(fields), _nullable(converted))


_TEXT: Final = Part(types.STRING, _nullable(types.json_text))
_SIMPLE: Final = {
    "boolean": Part(types.BOOLEAN, _nullable(_boolean)),
    "integer": Part(types.LONG, _nullable(_integer)),
    "number": Part(types.DOUBLE, _nullable(_number)),
    "string": Part(types.STRING, _nullable(_string)),
}
