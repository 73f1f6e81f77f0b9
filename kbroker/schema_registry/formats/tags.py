"""Tags within the text of an Avro schema: the tagged records and fields, and changes of their tags.

Owns the names of tagged entities, "namespace.Record" and "namespace.Record.field" (Confluent: AvroSchema,
SchemaEntity). Reads only the types that the text itself defines, not the types of references. This module supports tags
only for Avro.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from kbroker.schema_registry.formats.common import InvalidSchema, from_json, to_json

RECORD: Final = "sr_record"
FIELD: Final = "sr_field"
_PROPERTY: Final = "confluent:tags"


class Tagged(NamedTuple):
    """The path and kind of an entity, with tags."""

    path: str
    kind: str
    tags: tuple[str, ...]


def tagged(text: str) -> list[Tagged]:
    """Return the tagged records and fields of an Avro schema, in the order of the text."""
    return [Tagged(path, kind, tags) for path, kind, node in _entities(from_json(text)) if (tags := _tags(node))]


def retagged(text: str, add: Sequence[Tagged], remove: Sequence[Tagged]) -> str:
    """Return an Avro schema after adding and then removing tags. Raises InvalidSchema if an entity is missing."""
    document = from_json(text)
    places: dict[tuple[str, str], dict[str, Any]] = {}
    for path, kind, node in _entities(document):
        short = path.split(".")[-1 if kind == RECORD else -2 :]
        for name in (path, ".".join(short)):  # a path without a namespace names the first match
            places.setdefault((name, kind), node)
    for each in add:
        node = _at(places, each)
        node[_PROPERTY] = list(dict.fromkeys([*_tags(node), *each.tags]))
    for each in remove:
        node = _at(places, each)
        node[_PROPERTY] = [tag for tag in _tags(node) if tag not in each.tags]
    for node in places.values():
        if _PROPERTY in node and not node[_PROPERTY]:
            del node[_PROPERTY]
    return to_json(document, java_doubles=True)


def _at(places: dict[tuple[str, str], dict[str, Any]], wanted: Tagged) -> dict[str, Any]:
    found = places.get((wanted.path, wanted.kind))
    if found is None:
        raise InvalidSchema(f"No matching path '{wanted.path}' found in the schema")
    return found


def _tags(node: dict[str, Any]) -> tuple[str, ...]:
    found = node.get(_PROPERTY)
    return tuple(str(each) for each in found) if isinstance(found, list) else ()


def _entities(document: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, kind and JSON object of each record and field."""
    waiting: list[tuple[Any, str]] = [(document, "")]
    while waiting:
        node, space = waiting.pop()
        inner: Iterable[Any] = ()
        if isinstance(node, list):
            inner = node
        elif isinstance(node, dict) and node.get("type") in ("record", "error"):
            name = str(node.get("name", ""))
            space = name.rpartition(".")[0] or str(node.get("namespace", space) or "")
            full = f"{space}.{name.rpartition('.')[2]}" if space else name
            yield full, RECORD, node
            fields = [each for each in node.get("fields") or () if isinstance(each, dict)]
            for each in fields:
                yield f"{full}.{each.get('name')}", FIELD, each
            inner = [each.get("type") for each in fields]
        elif isinstance(node, dict):
            inner = [node.get(each) for each in ("type", "items", "values")]
        waiting += [(each, space) for each in reversed([*inner])]
