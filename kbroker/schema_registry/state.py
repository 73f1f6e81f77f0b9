"""The state of a registry: versions of subjects, ids, configs, modes and contexts, as defined by the records.

Owns the indexes (by id, by content, by reference), which follow from the versions, and the effect of each record of
`_schemas` (Confluent: InMemoryCache and KafkaStoreMessageHandler). Ids belong to a context: two contexts may assign the
same id to different schemas. Never decides, and never writes.

`get_by_id` and `version` only look up single entries; another thread may call them while records are applied.
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from kbroker.schema_registry.records import Content, Key, Version, read_config, read_deletion, read_mode, read_version
from kbroker.schema_registry.subjects import (
    DEFAULT_CONTEXT,
    GLOBAL_CONTEXT,
    Subject,
    beside,
    normalised,
    parse,
    qualified_context,
)

log = logging.getLogger(__name__)

BACKWARD: Final = "BACKWARD"
"""The compatibility level of a registry without a global config."""
READWRITE: Final = "READWRITE"
_INHERITED: Final = (
    "normalize",
    "validateFields",
    "validateNewSchemas",
    "validateRules",
    "compatibilityPolicy",
    "compatibilityGroup",
)
"""The fields that a subject's config inherits from the global config, if the subject's config does not set them."""
_states: Final = itertools.count()
Config = dict[str, Any]
V = TypeVar("V")


class _Context:
    """The ids of one context."""

    __slots__ = ("by_digest", "by_id", "live", "max_id", "others", "repeated")

    def __init__(self) -> None:
        self.by_id: dict[int, dict[str, int]] = {}
        """By id: the newest version of each subject with this id."""
        self.by_digest: dict[bytes, int] = {}
        """The last assigned id of each content, by digest."""
        self.others: dict[bytes, list[int]] = {}
        """The earlier ids of a content that has several ids; an import can assign several."""
        self.repeated: set[tuple[int, str]] = set()
        """Pairs of an id and a subject that have, or had, several versions."""
        self.live = 0
        """The number of versions that are not deleted."""
        self.max_id = 0

    def add(self, subject: str, version: Version) -> None:
        """Add a version, whether or not it is the newest version with its id."""
        numbers = self.by_id.setdefault(version.id, {})
        held = numbers.get(subject, version.version)
        if held != version.version:
            self.repeated.add((version.id, subject))
        numbers[subject] = max(held, version.version)
        digest = version.content.digest()
        known = self.by_digest.get(digest, version.id)
        if known != version.id:
            others = self.others.setdefault(digest, [])
            if version.id in others:
                others.remove(version.id)
            others.append(known)
        self.by_digest[digest] = version.id
        self.max_id = max(self.max_id, version.id)

    def remove(self, subject: str, version: Version, among: Mapping[int, Version]) -> bool:
        """Remove a version; `among` are its subject's other versions. Return whether the id has no version any more."""
        numbers = self.by_id.get(version.id, {})
        if numbers.get(subject) == version.version:
            del numbers[subject]
            if (version.id, subject) in self.repeated:
                left = [number for number, each in among.items() if each.id == version.id]
                if left:
                    numbers[subject] = max(left)
                else:
                    self.repeated.discard((version.id, subject))
        if numbers:
            return False
        self.by_id.pop(version.id, None)
        digest = version.content.digest()
        others = self.others.get(digest, [])
        if version.id in others:
            others.remove(version.id)
        elif self.by_digest.get(digest) == version.id:
            if others:
                self.by_digest[digest] = others.pop()
            else:
                del self.by_digest[digest]
        if not others:
            self.others.pop(digest, None)
        return True


class State:
    """A registry's state. All names of subjects are normalised."""

    def __init__(self) -> None:
        self._subjects: dict[str, dict[int, Version]] = {}
        self._ids: dict[str, _Context] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self._elsewhere: dict[str, list[str]] = {}
        """By a subject's name: the sorted contexts that have a subject of this name, without the default context."""
        self.contexts: list[str] = []
        """The sorted contexts, without the default context."""
        self.configs: dict[str | None, Config] = {}
        self.modes: dict[str | None, str] = {}
        self._change = 0
        self._changes: dict[str, int] = {}
        # Two states never have the same revision, so a schema that was compared with one state is stale for the other.
        self._settings_changes = next(_states) << 32

    # -- questions

    def version(self, subject: str, number: int, *, deleted: bool = False) -> Version | None:
        """Return a version of a subject. Return a softly deleted version only with `deleted`."""
        found = self._subjects.get(subject, {}).get(number)
        return found if found is not None and (deleted or not found.deleted) else None

    def versions(self, subject: str, *, deleted: bool = False) -> list[Version]:
        """Return the versions of a subject, in order."""
        found = self._subjects.get(subject, {})
        return [found[number] for number in sorted(found) if deleted or not found[number].deleted]

    def latest(self, subject: str) -> Version | None:
        """Return the newest version that is not deleted."""
        return next((each for each in reversed(self.versions(subject))), None)

    def subjects(self) -> list[str]:
        """Return all subjects, including deleted ones."""
        return list(self._subjects)

    def versions_within(self, subject: str | None) -> Iterator[Version]:
        """Yield all versions of a subject, or of all subjects in a context; None stands for all contexts."""
        is_context = subject is None or parse(subject).is_context
        for name in list(self._subjects):
            if name == subject or (is_context and is_within(name, subject)):
                yield from self.versions(name, deleted=True)

    def has_subject(self, subject: str | None, *, deleted: bool = False) -> bool:
        """Whether a subject has versions.

        For a context, or None (all contexts): whether any of the subjects has versions.
        """
        if subject is not None and not parse(subject).is_context:
            return any(deleted or not each.deleted for each in self._subjects.get(subject, {}).values())
        context = GLOBAL_CONTEXT if subject is None else parse(subject).context
        among = self._ids.values() if context == GLOBAL_CONTEXT else [self._ids.get(context, _Context())]
        return any(each.live or (deleted and each.by_id) for each in among)

    def get_by_id(self, schema_id: int, subject: str = "") -> Version | None:
        """Return a version with an id, deleted or not: of the subject or, for a context, of any of its subjects."""
        wanted = parse(subject)
        context = self._ids.get(wanted.context)
        found = None if context is None else context.by_id.get(schema_id)
        if not found:
            return None
        if not wanted.is_context:
            return self.version(subject, found.get(subject, 0), deleted=True)
        while True:
            try:
                subject, number = next(iter(found.items()), ("", 0))
            except RuntimeError:
                continue  # this runs in another thread, and a record was applied meanwhile
            return self.version(subject, number, deleted=True)

    def find_by_id(self, schema_id: int, subject: str = "") -> Version | None:
        """Return a version with an id, searched as in Confluent's registry.

        A subject without a context is searched in all contexts. If no version is found, any subject of the default
        context is accepted.
        """
        wanted = parse(subject)
        found = self.get_by_id(schema_id, subject)
        if found is not None or wanted.is_context or wanted.context != DEFAULT_CONTEXT:
            return found
        for name in self.elsewhere(subject):
            found = self.get_by_id(schema_id, name)
            if found is not None:
                return found
        return self.get_by_id(schema_id)

    def elsewhere(self, subject: str) -> list[str]:
        """Return the subjects of the same name in other contexts, if a subject is in the default context."""
        wanted = parse(subject)
        if wanted.context != DEFAULT_CONTEXT:
            return []
        return [str(Subject(context, wanted.name)) for context in self._elsewhere.get(wanted.name, ())]

    def has_context(self, context: str) -> bool:
        """Whether a context other than the default context was created."""
        at = bisect_left(self.contexts, context)
        return self.contexts[at : at + 1] == [context]

    def ids_of(self, digest: bytes) -> list[tuple[str, int]]:
        """Return the context and the id for each context that contains a content, in order."""
        found = [(context, self._by_digest(context, digest)) for context in (DEFAULT_CONTEXT, *self.contexts)]
        return [(context, number) for context, number in found if number is not None]

    def aliased(self, subject: str) -> str:
        """Return the subject that a name refers to: the alias in its config, or the name itself."""
        alias = self.configs.get(subject, {}).get("alias") if subject else None
        return beside(subject, alias) if alias else subject

    def id_of(self, context: str, content: Content) -> int | None:
        """Return the id of a content in a context.

        Different contents may have the same digest: Confluent's digest does not separate its parts, and MD5 is broken.
        """
        found = self._by_digest(context, content.digest())
        held = None if found is None else self.get_by_id(found, qualified_context(context))
        return found if held is not None and held.content == content else None

    def _by_digest(self, context: str, digest: bytes) -> int | None:
        held = self._ids.get(context)
        return None if held is None else held.by_digest.get(digest)

    def with_id(self, context: str, schema_id: int) -> dict[str, int]:
        """Return the newest version that has an id, for each subject of a context."""
        held = self._ids.get(context)
        return {} if held is None else held.by_id.get(schema_id, {})

    def max_id(self, context: str) -> int:
        """Return the highest id that was ever used in a context, or 0."""
        held = self._ids.get(context)
        return 0 if held is None else held.max_id

    def referrers(self, subject: str, number: int, *, deleted: bool) -> list[tuple[str, int]]:
        """Return context and id of the schemas that reference a version; `deleted` includes softly deleted schemas."""
        return sorted(
            each
            for each in self._referrers.get((subject, number), ())
            if deleted or any(self.version(*at) is not None for at in self.with_id(*each).items())
        )

    def is_referenced(self, subject: str, number: int) -> bool:
        """Whether a schema, which may be softly deleted, references a version."""
        return (subject, number) in self._referrers

    def config(self, subject: str | None) -> Config | None:
        """Return a subject's own config or None; the global config always exists."""
        found = self.configs.get(subject)
        if found is None and not _is_global(subject):
            return None
        return {"compatibilityLevel": BACKWARD, **(found or {})}

    def config_in_scope(self, subject: str | None) -> Config:
        """Return the config that applies to a subject: its own config, its context's, or the global config."""
        own = None if subject is None else self.config(subject)
        if own is None:
            return {"compatibilityLevel": BACKWARD, **(_in_scope(self.configs, subject) or {})}
        everywhere = self.configs.get(None, {})
        return {name: everywhere[name] for name in _INHERITED if name in everywhere} | own

    def mode(self, subject: str | None) -> str | None:
        """Return a subject's own mode or None; the global mode always exists."""
        return self.modes.get(subject, READWRITE if _is_global(subject) else None)

    def mode_in_scope(self, subject: str | None) -> str:
        """Return the mode that applies to a subject."""
        own = None if subject is None else self.modes.get(subject)
        return own or _in_scope(self.modes, subject) or READWRITE

    @property
    def subject_count(self) -> int:
        """The number of subjects of all contexts, including deleted ones."""
        return len(self._subjects)

    @property
    def live_versions(self) -> int:
        """The number of versions that are not deleted, of all subjects."""
        return sum(each.live for each in self._ids.values())

    @property
    def changes(self) -> int:
        """The number of applied changes of versions, for all subjects together."""
        return self._change

    def revision(self, subject: str) -> tuple[int, int]:
        """Return a value that changes when the subject, or any config or mode, changes."""
        return self._changes.get(subject, 0), self._settings_changes

    # -- records

    def apply(self, key: Key, value: bytes | None) -> None:
        """Apply a record. Raises ValueError if its value cannot be parsed."""
        value = value or None  # Karapace deletes by writing an empty value
        match key:
            case ("SCHEMA", str(subject), number):
                self._apply_version(normalised(subject), number, None if value is None else read_version(value))
            case ("CONFIG", subject, _):
                self._apply_setting(self.configs, subject, None if value is None else read_config(value))
            case ("MODE", subject, _):
                self._apply_setting(self.modes, subject, None if value is None else read_mode(value))
            case ("DELETE_SUBJECT", str(subject), _) if value is not None:
                self._delete_softly(normalised(subject), read_deletion(value))
            case ("CLEAR_SUBJECT", subject, _) if value is not None:
                self._forget_deleted(None if subject is None else normalised(subject))
            case ("CONTEXT", str(context), _):
                if context != DEFAULT_CONTEXT and (value is not None) is not self.has_context(context):
                    if value is None:
                        self.contexts.remove(context)
                    else:
                        insort(self.contexts, context)
            case _:
                pass  # ignore NOOP, and keys of newer registries

    def _apply_setting(self, settings: dict[str | None, Any], subject: str | None, value: Any) -> None:
        where = None if subject is None else normalised(subject) or None
        if value is None:
            settings.pop(where, None)
        else:
            settings[where] = value
        self._settings_changes += 1

    def _apply_version(self, subject: str, number: int, version: Version | None) -> None:
        if version is None:
            self._remove(subject, number)
            return
        context = parse(subject).context
        ids = self._ids.setdefault(context, _Context())
        held = self.get_by_id(version.id, qualified_context(context))
        content = version.content
        if held is not None:
            if held.content.schema != content.schema:
                log.error("%s version %d: another schema has its id %d; it is ignored", subject, number, version.id)
                return
            if held.content == content:
                content = held.content
        before = self.version(subject, number, deleted=True)
        made = Version(subject, number, version.id, content, version.deleted)
        self._put(subject, number, made)
        if before is not None and (before.id != version.id or before.content != content):
            self._unlink(subject, before)  # an import, or another registry, has replaced a version
        ids.add(subject, made)
        for reference in content.references:
            at = beside(subject, reference.subject), reference.version
            self._referrers.setdefault(at, set()).add((context, version.id))

    def _put(self, subject: str, number: int, version: Version | None) -> None:
        """Set or remove a version. Update the number of versions that are not deleted, and the number of changes."""
        versions = self._subjects.setdefault(subject, {})
        before = versions.get(number)
        context, name = parse(subject)
        ids = self._ids[context]
        ids.live += (version is not None and not version.deleted) - (before is not None and not before.deleted)
        self._change += 1
        self._changes[subject] = self._change
        if version is not None:
            if not versions and context != DEFAULT_CONTEXT:
                insort(self._elsewhere.setdefault(name, []), context)
            versions[number] = version
        elif before is not None:
            del versions[number]
        if not versions:
            del self._subjects[subject], self._changes[subject]
            if before is not None and context != DEFAULT_CONTEXT:
                self._elsewhere[name].remove(context)
                if not self._elsewhere[name]:
                    del self._elsewhere[name]

    def _remove(self, subject: str, number: int) -> None:
        removed = self.version(subject, number, deleted=True)
        if removed is not None:
            self._put(subject, number, None)
            self._unlink(subject, removed)

    def _unlink(self, subject: str, removed: Version) -> None:
        """Remove a version from the indexes by id and by reference."""
        context = parse(subject).context
        if not self._ids[context].remove(subject, removed, self._subjects.get(subject, {})):
            return
        for reference in removed.content.references:
            at = beside(subject, reference.subject), reference.version
            users = self._referrers.get(at, set())
            users.discard((context, removed.id))
            if not users:
                self._referrers.pop(at, None)

    def _delete_softly(self, subject: str, last: int) -> None:
        versions = self._subjects.get(subject, {})
        living = [each for each in versions.values() if not each.deleted and each.version <= last]
        if living:
            for each in living:
                versions[each.version] = Version(subject, each.version, each.id, each.content, True)
            self._ids[parse(subject).context].live -= len(living)
            self._change += 1
            self._changes[subject] = self._change

    def _forget_deleted(self, subject: str | None) -> None:
        for version in self.versions_within(subject):
            if version.deleted:
                self._remove(version.subject, version.version)


def is_within(subject: str, context: str | None) -> bool:
    """Whether a subject is in a context (in the form ":.context:"); None means all contexts."""
    wanted = GLOBAL_CONTEXT if context is None else parse(context).context
    return wanted in (GLOBAL_CONTEXT, parse(subject).context)


def _is_global(subject: str | None) -> bool:
    return subject is None or parse(subject).context == GLOBAL_CONTEXT


def _in_scope(settings: Mapping[str | None, V], subject: str | None) -> V | None:
    """Return the setting of a subject's context, or else of all contexts."""
    context = DEFAULT_CONTEXT if subject is None else parse(subject).context
    found = settings.get(None if context == DEFAULT_CONTEXT else qualified_context(context))
    return settings.get(qualified_context(GLOBAL_CONTEXT)) if found is None else found
