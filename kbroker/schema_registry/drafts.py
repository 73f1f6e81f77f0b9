"""A schema that somebody asks about, on its way to a decision: a draft of it, with all that it is compared with.

Owns the steps before a decision. On the loop that owns the state, `drafted` takes what it needs from the state; on
another thread, `Draft.check` parses and compares, for as long as that takes. Never changes the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kbroker.schema_registry.errors import Refusal
from kbroker.schema_registry.formats.common import InvalidSchema, Schema, from_json
from kbroker.schema_registry.formats.levels import check
from kbroker.schema_registry.formats.parsing import parse
from kbroker.schema_registry.formats.rules import InvalidRules, check_metadata, check_rule_set
from kbroker.schema_registry.records import Content, Json, Reference, Version
from kbroker.schema_registry.shard import FORWARD, IMPORT, LATEST, Checked
from kbroker.schema_registry.state import Config, State
from kbroker.schema_registry.subjects import beside, normalised

MOST_REFERENCES: Final = 1_000
"""The most schemas to which one refers, directly or not."""
_OF_LATEST: Final = ("BACKWARD", "FORWARD", "FULL")
Texts = Mapping[str, str]
"""Schemas by the name of the reference to them, each behind those to which it refers."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema, as it was given, and its subject at one revision.

    `previous` are the versions with which it is compared, the oldest first, with what they refer to. `twins` are those
    that may mean the same.
    """

    subject: str
    content: Content
    version: int
    id: int
    normalize: bool
    revision: tuple[int, int]
    config: Config
    is_import: bool
    texts: Texts
    previous: Sequence[tuple[Version, Texts]] = ()
    twins: Sequence[Version] = ()

    def check(self) -> Checked:
        """Return the schema in the form that is stored, with what speaks against it; raises RegistryError."""
        schema = parsed(self.content, self.texts)
        normalize = (self.normalize or bool(self.config.get("normalize"))) and not self.is_import
        content = replace(self.content, schema=schema.normalized if normalize else schema.canonical)
        same_as = next((each.version for each in self.twins if _are_same(content, each.content)), 0)
        reasons: list[str] = []
        if not self.is_import and not same_as:
            earlier = [(each.version, parsed(each.content, texts, is_new=False)) for each, texts in self.previous]
            try:
                reasons = check(self.config["compatibilityLevel"], schema, earlier)
            except InvalidSchema as error:
                raise Refusal.INVALID_SCHEMA(error) from None
        return Checked(self.subject, content, self.version, self.id, self.revision, same_as, reasons)


def _are_same(new: Content, held: Content) -> bool:
    """Whether two contents mean the same; only the texts of JSON schemas are stored as they were written."""
    if replace(new, schema=held.schema) != held:
        return False
    return new.schema == held.schema or (new.schema_type == "JSON" and from_json(new.schema) == from_json(held.schema))


def parsed(content: Content, texts: Texts, *, is_new: bool = True) -> Schema:
    """Parse a schema, less strictly one that is registered already; raises RegistryError."""
    try:
        return parse(content.schema_type, content.schema, texts, is_new=is_new)
    except InvalidSchema as error:
        raise Refusal.INVALID_SCHEMA(error) from None


def formatted(content: Content, texts: Texts, form: str) -> str:
    """Return a schema in a form; "serialized" is the descriptor of a Protobuf file, in base64. Raises RegistryError."""
    if form == "default":
        return content.schema
    found = parsed(content, texts, is_new=False).serialized if form == "serialized" else None
    if found is None:
        raise Refusal.INVALID_SCHEMA(f"Unsupported format type {form} for a schema of type {content.schema_type}")
    return found


@dataclass(frozen=True, slots=True)
class Request:
    """A schema in a request's body."""

    schema: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    version: int = 0
    id: int = -1

    def __post_init__(self) -> None:
        """Check metadata and rules; raises RegistryError."""
        check_additions([self.metadata], [self.rule_set])


def check_additions(metadata: Iterable[Any], rule_sets: Iterable[Any]) -> None:
    """Check metadata and rule sets, each of which may be None; raises RegistryError."""
    try:
        for each in metadata:
            check_metadata(each)
        for each in rule_sets:
            check_rule_set(each)
    except InvalidRules as error:
        raise Refusal.INVALID_RULES(error) from None


def drafted(
    state: State, subject: str, request: Request, *, normalize: bool, against: Sequence[Version] | None = None
) -> Draft:
    """Return a draft; raises RegistryError. It is compared with `against`, or with what the subject's config says."""
    config = state.config_in_scope(subject)
    is_import = state.mode_in_scope(subject) in (IMPORT, FORWARD)
    living = state.versions(subject)
    content = Content(request.schema, request.schema_type, request.references, request.metadata, request.rule_set)
    if not is_import:
        content = _completed(content, living[-1].content if living else None, config, request.version, living)
    if not content.schema.strip():
        raise Refusal.INVALID_SCHEMA("Empty schema")
    previous = _compared(living if against is None else against, content, config, narrow=against is None)
    return Draft(
        subject,
        content,
        request.version,
        request.id,
        normalize,
        state.revision(subject),
        config,
        is_import,
        resolved(state, subject, content.references),
        [(each, resolved(state, subject, each.content.references)) for each in previous],
        living[::-1],
    )


def _compared(versions: Sequence[Version], content: Content, config: Config, *, narrow: bool) -> Sequence[Version]:
    """Return the versions with which a schema is compared."""
    group = config.get("compatibilityGroup")
    if group is not None:
        wanted = _property(content.metadata, group)
        versions = [each for each in versions if _property(each.content.metadata, group) == wanted]
    level = config["compatibilityLevel"]
    if level == "NONE":
        return ()
    return versions[-1:] if narrow and level in _OF_LATEST else versions


def _property(metadata: Json | None, name: str) -> Any:
    return ((metadata or {}).get("properties") or {}).get(name)


def _completed(
    content: Content, previous: Content | None, config: Config, version: int, living: Sequence[Version]
) -> Content:
    """Return a schema with what it inherits: text from the latest version, metadata and rules from there and config."""
    if not content.schema.strip():
        if previous is None:
            raise Refusal.INVALID_SCHEMA("Empty schema")
        content = replace(
            content, schema=previous.schema, schema_type=previous.schema_type, references=previous.references
        )
    inherited = previous or Content("")
    metadata = content.metadata if content.metadata is not None else inherited.metadata
    rules = content.rule_set if content.rule_set is not None else inherited.rule_set
    metadata = merged_metadata(merged_metadata(config.get("defaultMetadata"), metadata), config.get("overrideMetadata"))
    rules = merged_rules(merged_rules(config.get("defaultRuleSet"), rules), config.get("overrideRuleSet"))
    number = _property(metadata, _VERSION)
    if version or number is not None:
        following = max((each.version for each in living), default=0) + 1
        properties = {**((metadata or {}).get("properties") or {}), _VERSION: str(following)}
        metadata = {**(metadata or {}), "properties": properties}
    return replace(content, metadata=metadata, rule_set=rules)


_VERSION: Final = "confluent:version"


def merged_metadata(weak: Json | None, strong: Json | None) -> Json | None:
    """Return metadata with the entries of both; the strong one wins where both have a key."""
    if weak is None or strong is None:
        return strong if weak is None else weak
    found: dict[str, Any] = {}
    for name in ("tags", "properties"):
        entries = {**(weak.get(name) or {}), **(strong.get(name) or {})}
        if entries:
            found[name] = entries
    sensitive = sorted({*(weak.get("sensitive") or ()), *(strong.get("sensitive") or ())})
    return found | ({"sensitive": sensitive} if sensitive else {})


def merged_rules(weak: Json | None, strong: Json | None) -> Json | None:
    """Return the rules of both; of two with one name, the strong one stays."""
    if weak is None or strong is None:
        return strong if weak is None else weak
    found: dict[str, Any] = {}
    for kind in ("migrationRules", "domainRules", "encodingRules"):
        rules = [*(weak.get(kind) or ()), *(strong.get(kind) or ())]
        if rules:
            found[kind] = list({each.get("name"): each for each in rules}.values())
    enabled = strong.get("enableAt") or weak.get("enableAt")
    return found | ({"enableAt": enabled} if enabled else {})


def resolved(state: State, subject: str, references: Iterable[Reference]) -> Texts:
    """Return the schemas to which references lead; raises RegistryError for one that does not exist."""
    texts: dict[str, str] = {}
    begun: set[tuple[str, str, int]] = set()
    steps: list[tuple[str, Reference, str | None]] = [(subject, each, None) for each in reversed([*references])]
    while steps:
        parent, reference, text = steps.pop()
        name, wanted, number = reference
        if text is not None:  # all that it refers to stands before it
            texts.setdefault(name, text)
            continue
        at = normalised(beside(parent, wanted))
        if (name, at, number) in begun:
            continue
        begun.add((name, at, number))
        if len(begun) > MOST_REFERENCES:
            raise Refusal.INVALID_SCHEMA(f"A schema refers to at most {MOST_REFERENCES} others")
        held = state.latest(at) if number == LATEST else state.version(at, number, deleted=True)
        if held is None:
            raise Refusal.INVALID_SCHEMA(f'No schema reference found for subject "{wanted}" and version {number}')
        steps.append((parent, reference, held.content.schema))
        steps += [(at, each, None) for each in reversed(held.content.references)]
    return texts
