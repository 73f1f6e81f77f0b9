"""The registry as a state machine over the only partition of `_schemas`: its leader decides, and assigns ids.

Owns the decisions of Confluent's KafkaSchemaRegistry: registration, both kinds of deletion, configs, modes. Pure: no
I/O; the runtime (kbroker.coordination) writes, replays and answers. Never parses a schema: another thread parses it and
compares it with the state at one revision of its subject (`Checked`). If the subject has changed since, the reply is
STALE, and the caller checks again.

Replies are values, or a RegistryError.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kbroker.coordination.shard import CoordinatorRecord, Outcome
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.records import (
    FORWARD,
    IMPORT,
    MOST,
    READ_ONLY,
    READWRITE,
    Content,
    Version,
    clear_subject_record,
    config_record,
    context_record,
    delete_subject_record,
    mode_record,
    read_key,
    schema_record,
    schema_tombstone,
)
from kbroker.schema_registry.state import State
from kbroker.schema_registry.subjects import DEFAULT_CONTEXT, beside, parse, qualified_context

log = logging.getLogger(__name__)

LATEST: Final = -1
"""A version number that means the newest version."""
LARGEST_RECORD: Final = 1024 * 1024 - 1024
"""The maximum size in bytes of a schema's record: the default of `max.message.bytes`, minus a batch's overhead."""


class Stale:
    """The subject has changed since the schema was checked."""


STALE: Final = Stale()


class More(NamedTuple):
    """A part of a long deletion is decided; the caller must request the next part."""

    done: Any


MOST_AT_ONCE: Final = 200
"""The maximum number of versions or modes that one decision deletes.

All are written and replayed in one step of the broker's loop.
"""


class Checked(NamedTuple):
    """A schema that was parsed, and compared with the versions of its subject.

    `content` includes what the schema inherits from the latest version and the config. `given` is the schema of the
    request alone, or None if no look-up is needed. `version` and `id` are the requested numbers, or 0 and -1. `same_as`
    is a version that means the same as `content`, `given_as` is a version that means the same as `given`; each is 0 if
    there is no such version. `incompatible` are the reasons against its registration.
    """

    subject: str
    content: Content
    version: int = 0
    id: int = -1
    revision: tuple[int, int] = (0, 0)
    same_as: int = 0
    incompatible: Sequence[str] = ()
    given: Content | None = None
    given_as: int = 0


class RegistryShard:
    """Decides about changes of one registry's state."""

    steps_over_unreadable = True

    def __init__(self) -> None:
        self.state = State()

    def replay(self, _offset: int, _producer_id: int, key: bytes, value: bytes | None) -> None:
        self.state.apply(read_key(key), value)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        """Ignore a transaction's end: the topic has no transactions."""

    def on_loaded(self, _now_ms: int) -> Outcome:
        return Outcome()

    def on_unloaded(self, _now_ms: int) -> Outcome:
        return Outcome()

    def on_timer(self, key: Hashable, _now_ms: int) -> Outcome:
        raise ValueError(f"no timer {key!r}")

    # -- schemas

    def register(self, wanted: Checked) -> Outcome:
        """Reply with a new Version, or with the Version that already has the schema, or with STALE."""
        state, subject, content = self.state, wanted.subject, wanted.content
        if state.revision(subject) != wanted.revision or not self._has_all(subject, content):
            return Outcome(reply=STALE)
        found = self._as_given(wanted)
        if found is not None:  # this is allowed in every mode, because nothing is written
            return Outcome(reply=found)
        refusal = self._not_writable(subject, has_id=wanted.id >= 0)
        if refusal is not None:
            return Outcome(reply=refusal)
        context = parse(subject).context
        schema_id = wanted.id
        known = state.id_of(context, content)
        if known is not None and schema_id in (-1, known):
            number = state.with_id(context, known).get(subject, 0)
            held = state.version(subject, number)
            if not wanted.version and held is not None:
                return Outcome(reply=held)
            schema_id = known
        same = state.version(subject, wanted.same_as) if not wanted.version else None
        if same is not None and schema_id in (-1, same.id):
            return Outcome(reply=same)
        is_import = state.mode_in_scope(subject) in (IMPORT, FORWARD)
        every = state.versions(subject, deleted=True)
        if wanted.incompatible and not is_import:
            return Outcome(reply=Refusal.INCOMPATIBLE(subject, ", ".join(wanted.incompatible)))
        following = every[-1].version + 1 if every else 1
        if wanted.version > 0 and wanted.version != following and not is_import:
            return Outcome(reply=Refusal.INVALID_SCHEMA("Version is not one more than previous version"))
        held = state.get_by_id(schema_id, qualified_context(context)) if schema_id >= 0 else None
        if held is not None and held.content != content:
            text = f"Overwrite new schema with id {schema_id} in context {qualified_context(context)} is not permitted."
            return Outcome(reply=Refusal.NOT_PERMITTED(text))
        number = wanted.version if wanted.version > 0 else following
        if schema_id < 0:
            schema_id = state.max_id(context) + 1
        if schema_id > MOST or number > MOST:
            what = "id" if schema_id > MOST else "version"
            text = f"Subject {subject} cannot have another {what}: {MOST} is taken"
            return Outcome(reply=Refusal.NOT_PERMITTED(text))
        version = Version(subject, number, schema_id, content)
        record = schema_record(version)
        if len(record.key) + len(record.value or b"") > LARGEST_RECORD:
            return Outcome(reply=Refusal.SCHEMA_TOO_LARGE.error)
        records = [*self._replaced(version, every), record]
        if context != DEFAULT_CONTEXT and not state.has_context(context):
            records.insert(0, context_record(context))
        return Outcome(reply=version, records=records)

    def _has_all(self, subject: str, content: Content) -> bool:
        """Whether all referenced schemas still exist. The references of existing schemas are never deleted."""
        state = self.state
        for _, name, number in content.references:
            at = beside(subject, name)
            held = state.latest(at) if number == LATEST else state.version(at, number, deleted=True)
            if held is None:
                return False
        return True

    def _as_given(self, wanted: Checked) -> Version | None:
        """Return the existing version that matches the request itself, without what a new version would inherit."""
        state, subject = self.state, wanted.subject
        if wanted.given is None:
            return None
        found = None
        if wanted.version != LATEST:
            context = parse(subject).context
            known = state.id_of(context, wanted.given)
            number = 0 if known is None else state.with_id(context, known).get(subject, 0)
            found = state.version(subject, number)
        if found is None:
            found = state.version(subject, wanted.given_as)
        if found is None or wanted.id not in (-1, found.id):
            return None
        if wanted.version in (0, LATEST):
            return found
        if wanted.id < 0:
            return None
        older = state.version(subject, wanted.version)  # an import may register a schema in several versions
        return older if older is not None and (older.id, older.content) == (found.id, found.content) else None

    def _replaced(self, version: Version, every: Sequence[Version]) -> list[CoordinatorRecord]:
        """Return tombstones of those earlier versions of the schema that are softly deleted and have no referrers."""
        return [
            schema_tombstone(each.subject, each.version)
            for each in every
            if each.deleted
            and each.id == version.id
            and each.version < version.version
            and not self.state.referrers(each.subject, each.version, deleted=True)
        ]

    def _not_writable(self, subject: str, *, has_id: bool) -> RegistryError | None:
        mode = self.state.mode_in_scope(subject)
        if mode in READ_ONLY:
            return _read_only(subject)
        where = f"Subject {subject} in context {qualified_context(parse(subject).context)}"
        if has_id and mode not in (IMPORT, FORWARD):
            return Refusal.NOT_PERMITTED(f"{where} is not in import mode")
        if not has_id and mode != READWRITE:
            return Refusal.NOT_PERMITTED(f"{where} is not in read-write mode")
        return None

    def delete_version(self, subject: str, number: int, *, permanent: bool) -> Outcome:
        """Reply with the number of the deleted version."""
        state = self.state
        version = state.latest(subject) if number == LATEST else state.version(subject, number, deleted=True)
        if version is None:
            if not state.has_subject(subject, deleted=True):
                return Outcome(reply=Refusal.SUBJECT_NOT_FOUND(subject))
            return Outcome(reply=Refusal.VERSION_NOT_FOUND(number))
        number = version.version
        if version.deleted and not permanent:
            return Outcome(reply=Refusal.VERSION_SOFT_DELETED(subject, number))
        if state.mode_in_scope(subject) in READ_ONLY:
            return Outcome(reply=_read_only(subject))
        if state.referrers(subject, number, deleted=permanent):
            return Outcome(reply=Refusal.REFERENCE_EXISTS(subject, number))
        if not permanent:
            return Outcome(reply=number, records=[schema_record(replace(version, deleted=True))])
        if not version.deleted:
            return Outcome(reply=Refusal.VERSION_NOT_SOFT_DELETED(subject, number))
        records = [schema_tombstone(subject, number)]
        if len(state.versions(subject, deleted=True)) == 1:
            records += self._settings_tombstones(subject)
        return Outcome(reply=number, records=records)

    def delete_subject(self, subject: str, *, permanent: bool, goes_on: bool = False) -> Outcome:
        """Reply with the numbers of the deleted versions.

        If there are many versions, delete only the last versions and reply `More`. A call with `goes_on` deletes
        earlier versions.
        """
        state = self.state
        if goes_on and not state.has_subject(subject, deleted=True):
            return Outcome(reply=[])
        if not state.has_subject(subject, deleted=True):
            return Outcome(reply=Refusal.SUBJECT_NOT_FOUND(subject))
        if not permanent and not state.has_subject(subject):
            return Outcome(reply=Refusal.SUBJECT_SOFT_DELETED(subject))
        if state.mode_in_scope(subject) in READ_ONLY:
            return Outcome(reply=_read_only(subject))
        versions = state.versions(subject, deleted=permanent)
        if not versions:
            return Outcome(reply=Refusal.SUBJECT_NOT_FOUND(subject))  # a context has subjects, but no versions
        for version in versions[-MOST_AT_ONCE:] if goes_on else versions:
            is_referenced = state.is_referenced(subject, version.version)
            if is_referenced and self._is_used_elsewhere(version, deleted=permanent):
                return Outcome(reply=Refusal.REFERENCE_EXISTS(subject, version.version))
            if permanent and not version.deleted:
                return Outcome(reply=Refusal.SUBJECT_NOT_SOFT_DELETED(subject))
        numbers = [each.version for each in versions]
        if not permanent:
            return Outcome(reply=numbers, records=[delete_subject_record(subject, numbers[-1])])
        last = numbers[-MOST_AT_ONCE:]
        records = [schema_tombstone(subject, number) for number in reversed(last)]
        if len(last) < len(numbers):
            return Outcome(reply=More(last), records=records, atomic=False)
        return Outcome(reply=last, records=records + self._settings_tombstones(subject), atomic=False)

    def _is_used_elsewhere(self, version: Version, *, deleted: bool) -> bool:
        """Whether a schema of another subject references a version."""
        state = self.state
        return any(
            subject != version.subject and state.version(subject, number, deleted=deleted) is not None
            for user in state.referrers(version.subject, version.version, deleted=deleted)
            for subject, number in state.with_id(*user).items()
        )

    def _settings_tombstones(self, subject: str) -> list[CoordinatorRecord]:
        records = []
        if subject in self.state.modes:
            records.append(mode_record(subject, None))
        if subject in self.state.configs:
            records.append(config_record(subject, None))
        return records

    # -- configs and modes; None is the global one

    def change_config(self, subject: str | None, changes: Mapping[str, Any]) -> Outcome:
        """Reply with the complete config after a change; a value of None removes a field."""
        if self.state.mode_in_scope(subject) in READ_ONLY:
            return Outcome(reply=_read_only(subject))
        fields = dict(self.state.configs.get(subject, {})) | dict(changes)
        config = {name: value for name, value in fields.items() if value is not None}
        return Outcome(reply=config, records=[config_record(subject, config)])

    def delete_config(self, subject: str | None) -> Outcome:
        """Reply with the deleted config."""
        found = self.state.config(subject)
        if found is None:
            return Outcome(reply=Refusal.SUBJECT_NOT_FOUND(subject))
        if self.state.mode_in_scope(subject) in READ_ONLY:
            return Outcome(reply=_read_only(subject))
        return Outcome(reply=found, records=[config_record(subject, None)])

    def set_mode(self, subject: str | None, mode: str | None, *, force: bool) -> Outcome:
        """Reply with the mode. The mode IMPORT needs `force`, or a subject or context that has no schemas.

        IMPORT removes softly deleted schemas for good, because an import may use their ids. If there are many such
        schemas, the reply is `More`.
        """
        state, records = self.state, list[CoordinatorRecord]()
        if mode == IMPORT and state.mode_in_scope(subject) != IMPORT and not force:
            if state.has_subject(subject):
                return Outcome(reply=Refusal.NOT_PERMITTED("Cannot import since found existing subjects"))
            for version in state.versions_within(subject):
                if state.referrers(version.subject, version.version, deleted=True):
                    return Outcome(reply=Refusal.REFERENCE_EXISTS(version.subject, version.version))
                records.append(schema_tombstone(version.subject, version.version))
                if len(records) > MOST_AT_ONCE:
                    return Outcome(reply=More([]), records=records, atomic=False)
            records.append(clear_subject_record(subject))
        return Outcome(reply=mode, records=[*records, mode_record(subject, mode)], atomic=False)

    def delete_mode(self, subject: str | None, *, recursive: bool) -> Outcome:
        """Reply with the deleted mode; for a context, `recursive` also deletes the modes of its subjects.

        If there are many modes, the reply is `More`, with the deleted mode.
        """
        found = self.state.mode(subject)
        if found is None and not recursive:
            return Outcome(reply=Refusal.SUBJECT_NOT_FOUND(subject))
        subjects: list[str | None] = [subject]
        if recursive and (subject is None or parse(subject).is_context):
            context = DEFAULT_CONTEXT if subject is None else parse(subject).context
            subjects += [each for each in self.state.modes if each is not None and parse(each).context == context]
        records = [mode_record(each, None) for each in list(dict.fromkeys(subjects))[:MOST_AT_ONCE]]
        reply = More(found) if len(subjects) > MOST_AT_ONCE else found
        return Outcome(reply=reply, records=records, atomic=False)

    def delete_context(self, context: str) -> Outcome:
        """Delete a context without subjects; its name has the form ":.context:"."""
        if self.state.has_subject(context, deleted=True):
            return Outcome(reply=Refusal.CONTEXT_NOT_EMPTY(context))
        return Outcome(reply=None, records=[context_record(parse(context).context, exists=False)])


def _read_only(subject: str | None) -> RegistryError:
    context = "" if subject is None else qualified_context(parse(subject).context)
    return Refusal.NOT_PERMITTED(f"Subject {subject} in context {context} is in read-only mode")
