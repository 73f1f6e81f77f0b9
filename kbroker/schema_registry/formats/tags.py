"""Tags within the text of an Avro schema: which records and fields have them, and the text with others.

Owns the names of tagged entities, "namespace.Record" and "namespace.Record.field" (Confluent: AvroSchema,
SchemaEntity). Only what the text itself defines is seen, not what it refers to. Schemas of other types have no tags
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from kbroker.schema_registry.formats.common import InvalidSchema, from_json, to_json

RECORD: Final = "sr_record"
FIELD: Final = "sr_field"
_PROPERTY: Final = "confluent:tags"


class Tagged(NamedTuple):
    """An entity, by its path and kind, and tags."""

    path: str
    kind: str
    tags: tuple[str, ...]


def tagged(text: str) -> list[Tagged]:
    """Return what has tags in an Avro schema, in the order of the text."""
    return [Tagged(path, kind, tags) for path, kind, node in _entities(from_json(text)) if (tags := _tags(node))]


def retagged(text: str, add: Sequence[Tagged], remove: Sequence[Tagged]) -> str:
    """Return an Avro schema with tags added and then removed; raises InvalidSchema for what the text does not have."""
    document = from_json(text)
    places: dict[tuple[str, str], dict[str, Any]] = {}
    for path, kind, node in _entities(document):
        short = path.split(".")[-1 if kind == RECORD else -2 :]
        for name in (path, ".".join(short)):  # a path without a namespace means the first record with the name
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
    """Yield path, kind and place of each record and field."""
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
