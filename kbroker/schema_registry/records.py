"""The records of `_schemas`: JSON keys and values, as Confluent's registry writes and reads them.

Owns the names and the order of their fields, because compaction compares keys byte by byte. Unknown fields of a value
are dropped, as in Confluent's registry. Other programs may also write to the topic. So the parser either parses a
record as the kind that its key names, or raises ValueError. Never decides.

A key is one of

    {"keytype":"SCHEMA","subject":S,"version":N,"magic":1}      a version of a subject; a tombstone deletes it for good
    {"keytype":"CONFIG","subject":S,"magic":0}                  a config; without a subject the global one
    {"keytype":"MODE","subject":S,"magic":0}                    a mode, likewise
    {"keytype":"DELETE_SUBJECT","subject":S,"magic":0}          a soft deletion of all versions up to a number
    {"keytype":"CLEAR_SUBJECT","subject":S,"magic":0}           removes all softly deleted versions
    {"keytype":"CONTEXT","tenant":"default","context":C,"magic":0}
    {"keytype":"NOOP","magic":0}
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kbroker.coordination.shard import CoordinatorRecord
from kbroker.schema_registry.formats.levels import LEVELS
from kbroker.schema_registry.formats.rules import InvalidRules, normal_metadata, normal_rule_set

MOST: Final = 2**31 - 1
"""The highest id, and the highest number of a version."""
SCHEMAS_TOPIC: Final = "_schemas"
"""The topic whose only partition contains the records."""
AVRO: Final = "AVRO"
TENANT: Final = "default"
CONFIG_FIELDS: Final = (
    "alias",
    "aliasForDeks",
    "normalize",
    "validateFields",
    "validateNewSchemas",
    "validateRules",
    "compatibilityLevel",
    "compatibilityPolicy",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)
_METADATA: Final = ("defaultMetadata", "overrideMetadata")
_RULE_SETS: Final = ("defaultRuleSet", "overrideRuleSet")
_SWITCHES: Final = ("normalize", "validateFields", "validateNewSchemas", "validateRules")
IMPORT, FORWARD, READWRITE = "IMPORT", "FORWARD", "READWRITE"
READ_ONLY: Final = ("READONLY", "READONLY_OVERRIDE")
MODES: Final = (READWRITE, *READ_ONLY, IMPORT, FORWARD)
Json = Mapping[str, Any]


class Reference(NamedTuple):
    """A reference from a schema to a version of a subject, under a name."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Content:
    """The part of a schema that does not depend on where it is registered: its text, type, references and rules.

    Equal contents have the same id in a context. Metadata and rule set are in normal form (rules.py).
    """

    schema: str
    schema_type: str = AVRO
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None

    def digest(self) -> bytes:
        """Return the MD5 digest of the parts, in Confluent's order; it is also the schema's GUID."""
        found = hashlib.md5(self.schema.encode(), usedforsecurity=False)
        for name, subject, version in self.references:
            found.update(name.encode() + subject.encode() + version.to_bytes(4, "big", signed=True))
        if self.metadata is not None:
            found.update(b"\x01")
            _update(found, _of_metadata(self.metadata))
        if self.rule_set is not None:
            found.update(b"\x01")
            _update(found, _of_rules(self.rule_set))
        return found.digest()

    def as_json(self) -> dict[str, Any]:
        """Return the parts that are not empty, by their names in the API and in the records."""
        found: dict[str, Any] = {}
        if self.schema_type != AVRO:
            found["schemaType"] = self.schema_type
        if self.references:
            found["references"] = [each._asdict() for each in self.references]
        if self.metadata is not None:
            found["metadata"] = self.metadata
        if self.rule_set is not None:
            found["ruleSet"] = self.rule_set
        found["schema"] = self.schema
        return found


def _update(digest: Any, parts: Iterable[str]) -> None:
    for part in parts:
        digest.update(part.encode())


def _of_metadata(metadata: Json) -> Iterable[str]:
    for key, values in sorted((metadata.get("tags") or {}).items()):
        yield key
        yield from sorted(values)
    for key, value in sorted((metadata.get("properties") or {}).items()):
        yield key
        yield value
    yield from sorted(metadata.get("sensitive") or ())


def _of_rules(rule_set: Json) -> Iterable[str]:
    for kind in ("migrationRules", "domainRules", "encodingRules"):
        for rule in rule_set.get(kind) or ():
            for field in ("name", "doc", "kind", "mode", "type"):
                yield rule.get(field) or ""
            yield from sorted(rule.get("tags") or ())
            for key, value in sorted((rule.get("params") or {}).items()):
                yield key
                yield value
            for field in ("expr", "onSuccess", "onFailure"):
                yield rule.get(field) or ""
            if rule.get("disabled"):
                yield "\x01"
    yield rule_set.get("enableAt") or ""


def guid_of(digest: bytes) -> str:
    """Return a schema's GUID from its digest."""
    return str(uuid.UUID(bytes=digest))


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    content: Content
    deleted: bool = False


class Key(NamedTuple):
    """A key of the topic. `subject` may also be a context's name; None means the global config or mode."""

    kind: str
    subject: str | None = None
    version: int = 0


# -- to bytes


def schema_record(version: Version) -> CoordinatorRecord:
    """Return the record of a version."""
    value = {"subject": version.subject, "version": version.version, "id": version.id}
    return CoordinatorRecord(
        _schema_key(version.subject, version.version),
        _encode(value | version.content.as_json() | {"deleted": version.deleted}),
    )


def schema_tombstone(subject: str, version: int) -> CoordinatorRecord:
    """Return the record that deletes a version for good."""
    return CoordinatorRecord(_schema_key(subject, version), None)


def _schema_key(subject: str, version: int) -> bytes:
    return _encode({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def delete_subject_record(subject: str, version: int) -> CoordinatorRecord:
    """Return the record that softly deletes all versions up to a number."""
    return CoordinatorRecord(_subject_key("DELETE_SUBJECT", subject), _encode({"subject": subject, "version": version}))


def clear_subject_record(subject: str | None) -> CoordinatorRecord:
    """Return the record that removes all softly deleted versions."""
    return CoordinatorRecord(_subject_key("CLEAR_SUBJECT", subject), _encode(_present(subject=subject)))


def config_record(subject: str | None, config: Json | None) -> CoordinatorRecord:
    """Return the record of a config; None deletes it."""
    value = None if config is None else _encode(_present(subject=subject) | dict(config))
    return CoordinatorRecord(_subject_key("CONFIG", subject), value)


def mode_record(subject: str | None, mode: str | None) -> CoordinatorRecord:
    """Return the record of a mode; None deletes it."""
    value = None if mode is None else _encode(_present(subject=subject) | {"mode": mode})
    return CoordinatorRecord(_subject_key("MODE", subject), value)


def context_record(context: str, *, exists: bool = True) -> CoordinatorRecord:
    """Return the record of a context, or of its deletion."""
    key = {"keytype": "CONTEXT", "tenant": TENANT, "context": context, "magic": 0}
    return CoordinatorRecord(_encode(key), _encode({"tenant": TENANT, "context": context}) if exists else None)


def _subject_key(kind: str, subject: str | None) -> bytes:
    return _encode({"keytype": kind} | _present(subject=subject) | {"magic": 0})


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _encode(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


# -- from bytes


def read_key(data: bytes) -> Key:
    """Parse a key. Raises ValueError."""
    found = _object(data)
    kind = found.get("keytype")
    if not isinstance(kind, str):
        raise ValueError("the key has no keytype")
    if kind == "SCHEMA":
        return Key(kind, _text(found, "subject"), _number(found, "version"))
    if kind == "CONTEXT":
        return Key(kind, _text(found, "context"))
    subject = found.get("subject")
    return Key(kind, None if subject is None else _text(found, "subject"))


def read_version(data: bytes) -> Version:
    """Parse a version of a subject. Raises ValueError."""
    found = _object(data)
    given = found.get("references") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise ValueError("references are no list of objects")
    references = tuple(
        Reference(_text(each, "name"), _text(each, "subject"), _number(each, "version")) for each in given
    )
    schema_type = AVRO if found.get("schemaType") is None else _text(found, "schemaType")
    try:
        metadata, rule_set = normal_metadata(found.get("metadata")), normal_rule_set(found.get("ruleSet"))
    except InvalidRules as error:
        raise ValueError(error) from None
    content = Content(_text(found, "schema"), schema_type, references, metadata, rule_set)
    if b"\\u" in data:
        content.digest()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair in any text
    subject, number, schema_id = _text(found, "subject"), _number(found, "version"), _number(found, "id")
    if number < 1 or schema_id < 0:
        raise ValueError("the version or the id is too small")
    return Version(subject, number, schema_id, content, bool(found.get("deleted")))


def read_config(data: bytes) -> dict[str, Any]:
    """Parse a config. Raises ValueError."""
    found = _object(data)
    config = {name: found[name] for name in CONFIG_FIELDS if found.get(name) is not None}
    try:
        for name in config:
            config[name] = _setting(name, config)
    except InvalidRules as error:
        raise ValueError(error) from None
    _encode(config)  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair in any text
    return config


def _setting(name: str, config: Json) -> Any:
    if name in _METADATA:
        return normal_metadata(config[name])
    if name in _RULE_SETS:
        return normal_rule_set(config[name])
    if name in _SWITCHES:
        return bool(config[name])
    text = _text(config, name)
    if name == "compatibilityLevel" and text not in LEVELS:
        raise ValueError(f"no level of compatibility: {text}")
    return text


def read_mode(data: bytes) -> str:
    """Parse a mode. Raises ValueError."""
    mode = _text(_object(data), "mode")
    if mode not in MODES:
        raise ValueError(f"no mode: {mode}")
    return mode


def read_deletion(data: bytes) -> int:
    """Parse a soft deletion; return the version up to which it deletes. Raises ValueError."""
    return _number(_object(data), "version")


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    return found


def _text(found: Json, name: str) -> str:
    value = found.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    value.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return value


def _number(found: Json, name: str) -> int:
    value = found.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} is no number")
    if not -MOST <= value <= MOST:
        raise ValueError(f"{name} is not a number of 32 bits")
    return value
