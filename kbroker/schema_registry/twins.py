"""Whether a version of a subject means the same as a schema, although their texts may differ.

Owns the comparison of two contents for a registration or a look-up (Confluent: ParsedSchema.canLookup). Never decides
whether one schema can read the values of the other: formats/ does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kbroker.schema_registry.formats.common import InvalidSchema, from_json, to_json
from kbroker.schema_registry.formats.parsing import parse
from kbroker.schema_registry.formats.rules import normal_metadata
from kbroker.schema_registry.records import AVRO, Content, Json, Reference, Version

NUMBER: Final = "confluent:version"
"""The property of metadata that contains a version's number."""
_CANONICAL: dict[bytes, bytes] = {}
_MOST_CANONICAL: Final = 10_000
Texts = Mapping[str, str]
"""The texts of referenced schemas, by the name of the reference; each text comes after the texts that it references."""


class Twin(NamedTuple):
    """A version of a subject whose meaning may be equal to a given schema's meaning.

    `texts` is None unless the given schema may contain its references inline.
    """

    version: Version
    settled: tuple[Reference, ...]
    texts: Texts | None


def is_same(new: Content, settled: tuple[Reference, ...], held: Twin) -> bool:
    """Whether a version means the same as a new schema (Confluent: ParsedSchema.canLookup).

    An Avro schema without references equals a schema with references if it contains these inline.
    """
    old = held.version.content
    if new.schema_type != old.schema_type or not _are_additions_same(new, held.version):
        return False
    if settled == held.settled and _is_text_same(new, old):
        return True
    if new.schema_type != AVRO or new.references or held.texts is None or len(new.schema) < len(old.schema):
        return False
    try:
        return new.schema == parse("AVRO", old.schema, held.texts, is_new=False).resolved
    except InvalidSchema:
        return False


def _is_text_same(new: Content, old: Content) -> bool:
    if new.schema == old.schema:
        return True
    if new.schema_type != "JSON":
        return False
    return _digest_of(new.schema) == _canonical_digest(old.schema)  # older registries store JSON as it was given


def _canonical_digest(text: str) -> bytes:
    """Return the digest of a JSON text without white space, or of the text itself if it is not JSON.

    Each registration needs the digests of all versions of its subject, so recent digests are cached.
    """
    key = _digest_of(text)
    found = _CANONICAL.get(key)
    if found is None:
        try:
            found = _digest_of(to_json(from_json(text)))
        except InvalidSchema:
            found = key
        if len(_CANONICAL) >= _MOST_CANONICAL:
            _CANONICAL.clear()
        _CANONICAL[key] = found
    return found


def _digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _are_additions_same(new: Content, held: Version) -> bool:
    """Whether the metadata and the rules of a new schema and of a version are equal.

    A version number that only one of the two metadata contains is ignored. If it is in the new metadata, it must be the
    number of the version.
    """
    old = held.content
    if new.rule_set != old.rule_set:
        return False
    tells, told = _number_told(new.metadata), _number_told(old.metadata)
    if (tells is None) == (told is None):
        return new.metadata == old.metadata
    if tells is not None and tells != held.version:
        return False
    return _without_number(new.metadata) == _without_number(old.metadata)


def _number_told(metadata: Json | None) -> int | None:
    number = property_of(metadata, NUMBER)
    return int(number) if isinstance(number, str) and re.fullmatch("[+-]?[0-9]{1,10}", number) else None


def _without_number(metadata: Json | None) -> Json:
    found = dict(metadata or {})
    found["properties"] = {name: value for name, value in (found.get("properties") or {}).items() if name != NUMBER}
    return normal_metadata(found) or {}


def property_of(metadata: Json | None, name: str) -> Any:
    """Return a property of metadata, or None."""
    return ((metadata or {}).get("properties") or {}).get(name)
