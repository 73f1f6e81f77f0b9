"""A draft: a schema in a request that is not yet decided, with all schemas with which it must be compared.

Owns the steps before a decision. On the loop that owns the state, `drafted` reads the needed schemas from the state; on
another thread, `Draft.check` parses and compares them, which may take long. Never changes the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kbroker.long_work import turn
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.formats.common import InvalidSchema, Schema
from kbroker.schema_registry.formats.levels import check
from kbroker.schema_registry.formats.parsing import parse
from kbroker.schema_registry.formats.rules import (
    InvalidRules,
    check_metadata,
    check_rule_set,
    normal_metadata,
    normal_rule_set,
)
from kbroker.schema_registry.formats.tags import Tagged, retagged, tagged
from kbroker.schema_registry.records import AVRO, FORWARD, IMPORT, Content, Json, Reference, Version
from kbroker.schema_registry.shard import LATEST, Checked
from kbroker.schema_registry.state import Config, State
from kbroker.schema_registry.subjects import beside, normalised
from kbroker.schema_registry.twins import NUMBER, Texts, Twin, is_same, property_of

MOST_REFERENCES: Final = 1_000
"""The maximum number of schemas that one schema may reference, directly or indirectly."""
MOST_RESOLVED: Final = 100_000
"""The maximum number of schemas that all versions of a subject together may reference in one comparison."""
FORMS: Final = ("resolved", "serialized")
"""The forms of a schema besides the stored form."""
MOST_INLINED: Final = 8 * 1024 * 1024
"""The maximum length in characters of the versions to compare with a schema that may contain references inline.

This is the total length of the versions and of their references.
"""
_OF_LATEST: Final = ("BACKWARD", "FORWARD", "FULL")
ADDITIONS: Final = ("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet")
"""The fields of a config that are added to each new schema."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema of a request, and its subject at one revision.

    `content` would be stored: it includes what the schema inherits. `given` is the schema of the request alone, or None
    if no caller needs it. `previous` are the versions to compare with, oldest first, each with the schemas that it
    references. `twins` are the versions that may mean the same as the schema, newest first.
    """

    subject: str
    content: Content
    given: Content | None
    version: int
    id: int
    normalize: bool
    revision: tuple[int, int]
    config: Config
    is_import: bool
    texts: Texts
    previous: Sequence[tuple[Version, Texts]] = ()
    twins: Sequence[Twin] = ()
    settled: tuple[Reference, ...] = ()
    """The schema's references, with a version number for each reference to "the latest version"."""
    request: Request | None = None
    """The request, if it changes tags; otherwise None."""
    before: Version | None = None
    """The latest version. A new version must also reserve the field names that the latest version reserves."""

    def check(self) -> Checked:
        """Return the schema in its stored form, with the reasons to refuse it. Raises RegistryError."""
        is_new = self.id < 0 and self.config.get("validateNewSchemas") is not False
        schema = parsed(self.content, self.texts, is_new=is_new)
        if self.request is not None:
            schema = parsed(self._tagged(schema.canonical, self.request), self.texts, is_new=is_new)
        normalize = (self.normalize or bool(self.config.get("normalize"))) and not self.is_import
        text = schema.normalized if normalize else schema.canonical
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refusal.INVALID_SCHEMA("The schema has half of a surrogate pair") from None
        content = replace(self.content, schema=text)
        given = None if self.given is None else replace(self.given, schema=text)
        given_as = 0 if given is None else self._twin(given, self.twins[:1] if self.version == LATEST else self.twins)
        same_as = given_as if given == content else self._twin(content, self.twins)
        exists = (given_as and self.version in (0, LATEST)) or (same_as and not self.version)
        reasons: list[str] = []
        if not self.is_import and not exists:
            earlier = [(each.version, parsed(each.content, texts, is_new=False)) for each, texts in self.previous]
            level = self.config["compatibilityLevel"]
            try:
                reasons = check(level, schema, earlier)
                if self.config.get("validateFields"):
                    reasons = self._with_reserved(schema, reasons, level)
            except InvalidSchema as error:
                raise Refusal.INVALID_SCHEMA(error) from None
        return Checked(self.subject, content, self.version, self.id, self.revision, same_as, reasons, given, given_as)

    def _with_reserved(self, schema: Schema, reasons: list[str], level: str) -> list[str]:
        """Return the reasons to refuse a schema: first the reasons about its fields, then all others.

        Raises InvalidSchema.
        """
        if schema.schema_type == "JSON" and any(name.startswith("$$") for name in schema.fields):
            raise InvalidSchema("Field names cannot start with $$ prefix")
        new, old = _reserved(self.content), set[str]() if self.before is None else _reserved(self.before.content)
        found = [
            f"The new schema has reserved field {name} removed from its metadata which is present in the old schema's "
            "metadata."
            for name in sorted(old - new)
        ]
        found += [
            f"The new schema has field that conflicts with the reserved field {name}."
            for name in sorted(new & schema.fields)
        ]
        found += reasons[:-1]  # the last reason describes the settings
        return [*found, f"{{validateFields: 'true', compatibility: '{level}'}}"] if found else []

    def _tagged(self, text: str, request: Request) -> Content:
        """Return the content after the request's tags are added and removed."""
        if self.content.schema_type != AVRO:
            raise Refusal.INVALID_SCHEMA(f"Tags within schemas of type {self.content.schema_type} are not supported")
        try:
            text = retagged(text, request.add_tags, request.remove_tags)
            if request.keep_tags and self.twins and self.twins[0].version.content.schema_type == AVRO:
                text = retagged(text, tagged(self.twins[0].version.content.schema), ())
        except InvalidSchema as error:
            raise Refusal.INVALID_SCHEMA(error) from None
        return replace(self.content, schema=text)

    def _twin(self, content: Content, twins: Sequence[Twin]) -> int:
        """Return the number of the newest version that means the same as a content, or 0 without such a version."""
        return next((each.version.version for each in twins if is_same(content, self.settled, each)), 0)


def _reserved(content: Content) -> set[str]:
    """Return the reserved names, which no field of a schema may have."""
    named = str(property_of(content.metadata, _RESERVED) or "")
    return {name.strip() for name in named.split(",")} - {""}


def parsed(content: Content, texts: Texts, *, is_new: bool = True) -> Schema:
    """Parse a schema, less strictly if it is already registered (not `is_new`). Raises RegistryError."""
    try:
        return parse(content.schema_type, content.schema, texts, is_new=is_new)
    except InvalidSchema as error:
        raise Refusal.INVALID_SCHEMA(error) from None


def formatted(content: Content, texts: Texts, form: str) -> str:
    """Return a schema in a form, or in its stored form if its type lacks that form (as in Confluent's registry).

    "resolved" is an Avro schema that contains the schemas that it references; "serialized" is the descriptor of a
    Protobuf file, in base64. Raises RegistryError.
    """
    schema = parsed(content, texts, is_new=False)
    found = {"resolved": schema.resolved, "serialized": schema.serialized}.get(form)
    return content.schema if found is None else found


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
    add_tags: tuple[Tagged, ...] = ()
    remove_tags: tuple[Tagged, ...] = ()
    keep_tags: bool = False
    """Whether the schema also gets the tags of the latest version."""

    @property
    def has_tags(self) -> bool:
        """Whether the request adds or removes tags."""
        return bool(self.add_tags or self.remove_tags)

    def __post_init__(self) -> None:
        """Check metadata and rules, and convert them to their normal form. Raises RegistryError."""
        check_additions([self.metadata], [self.rule_set])
        object.__setattr__(self, "metadata", normal_metadata(self.metadata))
        object.__setattr__(self, "rule_set", normal_rule_set(self.rule_set))


def check_additions(metadata: Iterable[Any], rule_sets: Iterable[Any]) -> None:
    """Check metadata and rule sets, each of which may be None. Raises RegistryError."""
    try:
        for each in metadata:
            check_metadata(each)
        for each in rule_sets:
            check_rule_set(each)
    except InvalidRules as error:
        raise Refusal.INVALID_RULES(error) from None


def normal_addition(name: str, value: Any) -> Any:
    """Return a field of a config: metadata or a rule set in normal form, any other value unchanged."""
    if name.endswith("Metadata"):
        return normal_metadata(value)
    return normal_rule_set(value) if name.endswith("RuleSet") else value


async def drafted(state: State, subject: str, request: Request, *, normalize: bool) -> Draft | None:
    """Return a draft for a registration, or None if the subject changed in the meantime. Raises RegistryError.

    Awaits `turn`.
    """
    revision = state.revision(subject)
    try:
        return await _drafted(state, subject, request, revision, normalize=normalize)
    except RegistryError:
        if state.revision(subject) == revision:
            raise
        return None  # the missing schema may belong to a version that was deleted meanwhile


async def _drafted(
    state: State, subject: str, request: Request, revision: tuple[int, int], *, normalize: bool
) -> Draft:
    config = state.config_in_scope(subject)
    is_import = state.mode_in_scope(subject) in (IMPORT, FORWARD)
    every = state.versions(subject, deleted=True)
    living = [each for each in every if not each.deleted]
    given = content = _content(request)
    version = LATEST if request.has_tags and not request.version else request.version
    if not is_import:
        following = max((each.version for each in every), default=0) + 1
        content = _completed(content, living[-1].content if living else None, config, version, following)
    _check_not_empty(content)
    changes_tags = request.has_tags or request.keep_tags
    looks = given.schema.strip() and not changes_tags and not any(config.get(name) for name in ADDITIONS)
    resolver = _Resolver(state, subject)
    return Draft(
        subject,
        content,
        given if looks else None,
        version,
        request.id,
        normalize,
        revision,
        config,
        is_import,
        await resolver.texts(content.references),
        [(each, await resolver.texts(each.content.references)) for each in _compared(living, content, config)],
        await _twins(resolver, living, content),
        resolver.settled(content.references),
        request if changes_tags else None,
        living[-1] if living else None,
    )


async def drafted_question(
    state: State, subject: str, request: Request, *, normalize: bool, deleted: bool, inherits: bool
) -> Draft | None:
    """Return a draft for a look-up. Raises RegistryError. Awaits `turn`.

    With `inherits`, the draft has the metadata and rules that a registration would add; return None if a registration
    would add nothing.
    """
    config = state.config_in_scope(subject)
    content = _content(request)
    if inherits:
        latest = state.latest(subject)
        given = content
        content = given if latest is None else _with_additions(given, latest.content, config)
        if content == given:
            return None
    resolver = _Resolver(state, subject)
    return Draft(
        subject,
        content,
        None,
        0,
        0,
        normalize,
        state.revision(subject),
        {"compatibilityLevel": "NONE", "normalize": config.get("normalize")},
        state.mode_in_scope(subject) in (IMPORT, FORWARD),
        await resolver.texts(content.references),
        (),
        await _twins(resolver, state.versions(subject, deleted=deleted), content),
        resolver.settled(content.references),
    )


async def drafted_comparison(
    state: State, subject: str, request: Request, *, normalize: bool, against: Sequence[Version]
) -> Draft:
    """Return a draft for a comparison alone, with those versions of `against` that the subject's config selects.

    The draft inherits nothing. Raises RegistryError. Awaits `turn`.
    """
    config = state.config_in_scope(subject)
    content = _content(request)
    _check_not_empty(content)
    resolver = _Resolver(state, subject)
    return Draft(
        subject,
        content,
        None,
        0,
        -1,
        normalize,
        state.revision(subject),
        config,
        False,
        await resolver.texts(content.references),
        [(each, await resolver.texts(each.content.references)) for each in _compared(against, content, config)],
        before=against[-1] if against else None,
    )


def _check_not_empty(content: Content) -> None:
    if not content.schema.strip():
        raise Refusal.INVALID_SCHEMA("Empty schema")


def _content(request: Request) -> Content:
    return Content(request.schema, request.schema_type, request.references, request.metadata, request.rule_set)


async def _twins(resolver: _Resolver, versions: Sequence[Version], content: Content) -> Sequence[Twin]:
    found = []
    left = MOST_INLINED
    for each in versions[::-1]:
        references = each.content.references
        holds = content.schema_type == each.content.schema_type == AVRO and not content.references and references
        try:
            texts = await resolver.texts(references) if holds and left > 0 else None
        except RegistryError:  # another registry deleted a reference, or there are too many references
            texts = None
        if texts is not None:
            left -= len(each.content.schema) + sum(map(len, texts.values()))
        found.append(Twin(each, resolver.settled(references), texts))
        await turn
    return found


class _Resolver:
    """Finds the schemas that the versions of one subject reference.

    Limits their number, because a subject may have many versions.
    """

    def __init__(self, state: State, subject: str) -> None:
        self._state = state
        self._subject = subject
        self._known: dict[tuple[Reference, ...], Texts] = {}
        self._left = MOST_RESOLVED

    async def texts(self, references: tuple[Reference, ...]) -> Texts:
        """Return the schemas that references lead to. Raises RegistryError. Awaits `turn`."""
        found = self._known.get(references)
        if found is None:
            found = self._known[references] = await resolved(self._state, self._subject, references)
            self._left -= len(found)
            if self._left < 0:
                raise Refusal.INVALID_SCHEMA(f"The versions of a subject refer to at most {MOST_RESOLVED} others")
        return found

    def settled(self, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        """Return the references, with a version number for each reference to "the latest version"."""
        if all(each.version != LATEST for each in references):
            return references
        latest = [self._state.latest(beside(self._subject, each.subject)) for each in references]
        return tuple(
            each if each.version != LATEST or held is None else each._replace(version=held.version)
            for each, held in zip(references, latest, strict=True)
        )


def _compared(versions: Sequence[Version], content: Content, config: Config) -> Sequence[Version]:
    """Return the versions with which the config wants a schema to be compared."""
    group = config.get("compatibilityGroup")
    if group is not None:
        wanted = property_of(content.metadata, group)
        versions = [each for each in versions if property_of(each.content.metadata, group) == wanted]
    level = config["compatibilityLevel"]
    if level == "NONE":
        return ()
    return versions[-1:] if level in _OF_LATEST else versions


def _completed(content: Content, previous: Content | None, config: Config, version: int, following: int) -> Content:
    """Return a schema with everything that it inherits.

    An empty schema gets the text of the latest version. Metadata and rules come from the latest version and from the
    config. `following` is the version number that the schema would get.
    """
    if not content.schema.strip():
        if previous is None:
            raise Refusal.INVALID_SCHEMA("Empty schema")
        content = replace(
            content, schema=previous.schema, schema_type=previous.schema_type, references=previous.references
        )
    content = _with_additions(content, previous or Content(""), config)
    metadata = content.metadata
    if version or property_of(metadata, NUMBER) is not None:
        properties = {**((metadata or {}).get("properties") or {}), NUMBER: str(following)}
        content = replace(content, metadata=normal_metadata({**(metadata or {}), "properties": properties}))
    return content


def _with_additions(content: Content, previous: Content, config: Config) -> Content:
    """Return a schema with the config's metadata and rules.

    If the schema has no metadata or no rules, those of the latest version are used.
    """
    metadata = content.metadata if content.metadata is not None else previous.metadata
    rules = content.rule_set if content.rule_set is not None else previous.rule_set
    metadata = merged_metadata(merged_metadata(config.get("defaultMetadata"), metadata), config.get("overrideMetadata"))
    rules = merged_rules(merged_rules(config.get("defaultRuleSet"), rules), config.get("overrideRuleSet"))
    return replace(content, metadata=normal_metadata(metadata), rule_set=normal_rule_set(rules))


_RESERVED: Final = "confluent:reserved"


def merged_metadata(weak: Json | None, strong: Json | None) -> Json | None:
    """Return metadata with the entries of `weak` and `strong`. If a key is in both, the value in `strong` wins."""
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
    """Return the rules of both rule sets. If both have a rule of the same name, the rule in `strong` wins."""
    if weak is None or strong is None:
        return strong if weak is None else weak
    found: dict[str, Any] = {}
    for kind in ("migrationRules", "domainRules", "encodingRules"):
        rules = [*(weak.get(kind) or ()), *(strong.get(kind) or ())]
        if rules:
            found[kind] = list({each.get("name"): each for each in rules}.values())
    enabled = strong.get("enableAt") or weak.get("enableAt")
    return found | ({"enableAt": enabled} if enabled else {})


def without_rules(rules: Json | None, names: Iterable[str]) -> Json | None:
    """Return a rule set without the rules that have one of these names."""
    if rules is None:
        return None
    dropped = set(names)
    return {
        kind: [each for each in value if each.get("name") not in dropped] if isinstance(value, list) else value
        for kind, value in rules.items()
    }


async def resolved(state: State, subject: str, references: Iterable[Reference]) -> Texts:
    """Return the referenced schemas, and the schemas that these reference.

    Raises RegistryError if one is missing. Awaits `turn`.
    """
    texts: dict[str, str] = {}
    begun: set[tuple[str, str, int]] = set()
    steps: list[tuple[str, Reference, str | None]] = [(subject, each, None) for each in reversed([*references])]
    while steps:
        parent, reference, text = steps.pop()
        name, wanted, number = reference
        if text is not None:  # all schemas that this schema references are added already
            texts.setdefault(name, text)
            continue
        at = normalised(beside(parent, wanted))
        if (name, at, number) in begun:
            continue
        begun.add((name, at, number))
        if len(begun) > MOST_REFERENCES:
            raise Refusal.INVALID_SCHEMA(f"A schema refers to at most {MOST_REFERENCES} other schemas")
        held = state.latest(at) if number == LATEST else state.version(at, number, deleted=True)
        if held is None:
            raise Refusal.INVALID_SCHEMA(f'No schema reference found for subject "{wanted}" and version {number}')
        steps.append((parent, reference, held.content.schema))
        steps += [(at, each, None) for each in reversed(held.content.references)]
        await turn
    return texts
