"""The operations of a registry's API, by name, for any server that offers them.

Owns the steps of a registration: create a draft from the state, check it on another thread, decide, and repeat all of
this if the subject has changed in the meantime. If concurrent registrations of one subject make each other fail, they
take turns. Owns the content of the lists. Does not use HTTP.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from kbroker.coordination.shard import Outcome
from kbroker.long_work import each, in_order, turn
from kbroker.schema_registry.drafts import (
    FORMS,
    Draft,
    Request,
    check_additions,
    drafted,
    drafted_comparison,
    drafted_question,
    formatted,
    merged_rules,
    normal_addition,
    resolved,
    without_rules,
)
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.formats.levels import LEVELS
from kbroker.schema_registry.formats.tags import Tagged, tagged
from kbroker.schema_registry.records import AVRO, MODES, Json, Version
from kbroker.schema_registry.shard import LATEST, Checked, More, RegistryShard, Stale
from kbroker.schema_registry.state import State
from kbroker.schema_registry.subjects import (
    ANY_CONTEXT,
    DEFAULT_CONTEXT,
    GLOBAL_CONTEXT,
    Subject,
    is_valid,
    normalised,
    parse,
    qualified_context,
)

_WITHOUT_EFFECT: Final = ("aliasForDeks", "compatibilityPolicy", "validateRules")
"""Fields of a config that have an effect only in Confluent's registry."""
_PATIENCE_S: Final = 20.0
"""The time limit in seconds for the checks of a schema. Each change of its subject requires another check."""
T = TypeVar("T")


class Store(Protocol):
    """A registry's state, independent of where it is stored. All methods raise RegistryError."""

    async def ask(self, question: Callable[[State], T]) -> T:
        """Return the answer to a short question about the state.

        First wait until all records that the answer depends on are safe: they cannot be lost any more.
        """

    async def look(self, question: Callable[[State], T]) -> T:
        """Return the answer to a question that looks up single entries. The question may run in any thread."""

    def at_once(self, question: Callable[[State], T]) -> T | None:
        """Return the answer that `look` would return. Any thread may call this.

        Return None if the question fails or has to wait.
        """

    async def ask_long(self, question: Callable[[State], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a long question, which awaits `turn` once per element."""

    async def decide(self, decision: Callable[[RegistryShard], Outcome]) -> Any:
        """Return the reply to a decision when its records are safe; raise the reply if it is a RegistryError."""

    async def aside(self, work: Callable[[], T]) -> T:
        """Run long work where it delays no other request, and return its result."""


class Registry:
    """The operations. They accept names of subjects as written by the client."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """The locks of subjects whose registrations make each other fail: without a lock, one might never succeed."""

    async def resolved(self, subject: str) -> str:
        """Return the subject that a name refers to."""
        name = normalised(subject)
        return await self._store.look(lambda state: state.aliased(name))

    # -- schemas by subject

    async def register(self, subject: str, request: Request, *, normalize: bool, force: bool = False) -> Version:
        """Register a schema; return its version. With `force`, the schema need not be compatible."""
        if not is_valid(subject):
            raise Refusal.INVALID_SUBJECT(subject)
        subject = normalised(subject)
        version = None
        if subject not in self._turns:
            version = await self._try(subject, request, normalize=normalize, force=force)
        if version is not None:
            return version
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S
        async with self._turns.setdefault(subject, asyncio.Lock()):
            while version is None and loop.time() < until:  # other registries have their own locks
                version = await self._try(subject, request, normalize=normalize, force=force)
        if version is None:
            raise Refusal.TIMED_OUT("Register operation timed out")
        return version

    async def _try(self, subject: str, request: Request, *, normalize: bool, force: bool) -> Version | None:
        """Check and register a schema; return None if the subject has changed in between."""
        draft = await self._store.ask_long(
            lambda state: drafted(state, state.aliased(subject), request, normalize=normalize)
        )
        if draft is None:
            return None
        checked = await self._store.aside(draft.check)
        if force:
            checked = checked._replace(incompatible=())
        reply = await self._store.decide(lambda shard: shard.register(checked))
        return None if isinstance(reply, Stale) else reply

    async def look_up(self, subject: str, request: Request, *, normalize: bool, deleted: bool) -> Version:
        """Return the version that has a schema: in this subject, or in a subject of the same name in any context."""
        names = await self._store.ask(lambda state: _in_contexts(state, state.aliased(normalised(subject))))
        for name in names if request.schema.strip() else ():
            try:
                found = await self._look_up(name, request, normalize=normalize, deleted=deleted)
            except RegistryError as error:
                if name == names[0] or error.code != 42201:
                    raise
                found = None  # in another context the schema's references may be missing
            if found is not None:
                return found
        if await self._store.ask(lambda state: state.has_subject(names[0], deleted=deleted)):
            raise Refusal.NO_SCHEMA.error
        raise Refusal.SUBJECT_NOT_FOUND(names[0])

    async def _look_up(self, name: str, request: Request, *, normalize: bool, deleted: bool) -> Version | None:
        """Look up a schema as given, and then with the metadata and rules that it would inherit."""
        for inherits in (False, True):
            draft = await self._store.ask_long(
                lambda state, inherits=inherits: drafted_question(  # type: ignore[misc]
                    state, name, request, normalize=normalize, deleted=deleted, inherits=inherits
                )
            )
            if draft is None:
                continue
            checked = await self._store.aside(draft.check)
            found = await self._store.ask(
                lambda state, checked=checked: _registered(state, checked, deleted=deleted)  # type: ignore[misc]
            )
            if found is not None:
                return found
        return None

    async def compare(self, subject: str, version: int | None, request: Request, *, normalize: bool) -> Sequence[str]:
        """Return the reasons why a schema is incompatible with one version, or with those that the config selects."""

        async def draft(state: State) -> Draft:
            name = state.aliased(normalised(subject))
            if version is None:
                against = state.versions(name)
            else:
                held = state.latest(name) if version == LATEST else state.version(name, version)
                if held is None and version != LATEST:
                    raise Refusal.VERSION_NOT_FOUND(version)
                against = [] if held is None else [held]
            return await drafted_comparison(state, name, request, normalize=normalize, against=against)

        made = await self._store.ask_long(draft)
        checked = await self._store.aside(made.check)
        return checked.incompatible

    async def retag(
        self, subject: str, number: int, change: Request, *, merge: Json | None, remove: Sequence[str]
    ) -> Version:
        """Register a version again with other tags, metadata and rules; return the new version.

        The new version has the number `change.version`. `merge` and `remove` change the rules of the version before it.
        """
        if not is_valid(subject):
            raise Refusal.INVALID_SUBJECT(subject)
        check_additions([], [merge])

        def asked(state: State) -> tuple[Version, Version | None]:
            name = state.aliased(normalised(subject))
            held = _version(state, name, number, deleted=False)
            return held, state.version(name, change.version - 1) if change.version > 1 else state.latest(name)

        held, before = await self._store.ask(asked)
        rules = change.rule_set
        if merge is not None or remove:
            rules = merged_rules(None if before is None else before.content.rule_set, merge)
            rules = without_rules(rules, remove)
        content = held.content
        wanted = replace(
            change,
            schema=content.schema,
            schema_type=content.schema_type,
            references=content.references,
            metadata=content.metadata if change.metadata is None else change.metadata,
            rule_set=rules,
            version=change.version or LATEST,
        )
        return await self.register(held.subject, wanted, normalize=False)

    async def tags(self, version: Version, wanted: Sequence[str]) -> list[Tagged]:
        """Return the entities of a version with one of these tags, or all tagged entities if `wanted` contains "*"."""
        if version.content.schema_type != AVRO:
            return []
        found = await self._store.aside(lambda: tagged(version.content.schema))
        return [each for each in found if "*" in wanted or set(wanted) & set(each.tags)]

    async def latest_with(self, subject: str, properties: Mapping[str, str], *, deleted: bool) -> Version:
        """Return the newest version of a subject whose metadata has these properties."""

        def asked(state: State) -> Version:
            name = state.aliased(normalised(subject))
            for version in reversed(state.versions(name, deleted=deleted)):
                held = (version.content.metadata or {}).get("properties") or {}
                if version.content.metadata is not None and properties.items() <= held.items():
                    return version
            if state.has_subject(name, deleted=deleted):
                raise Refusal.NO_SCHEMA.error
            raise Refusal.SUBJECT_NOT_FOUND(name)

        return await self._store.ask(asked)

    async def version(self, subject: str, number: int, *, deleted: bool = False) -> Version:
        """Return a version of a subject, or of a subject of the same name in any context."""
        return await self._store.ask(
            lambda state: _version(state, state.aliased(normalised(subject)), number, deleted=deleted)
        )

    async def versions(
        self, subject: str, *, deleted: bool = False, deleted_only: bool = False, negative: bool = False
    ) -> list[int]:
        """Return the numbers of a subject's versions; with `negative`, numbers of deleted versions are negative."""

        def listed(state: State) -> list[int]:
            name = state.aliased(normalised(subject))
            if not state.has_subject(name, deleted=deleted or deleted_only):
                raise Refusal.SUBJECT_NOT_FOUND(name)
            found = state.versions(name, deleted=deleted or deleted_only or negative)
            if negative:
                return [-each.version if each.deleted else each.version for each in found]
            return [each.version for each in found if each.deleted or not deleted_only]

        return await self._store.ask(listed)

    async def subjects(self, prefix: str, *, deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Return the subjects whose names begin with a prefix."""

        async def listed(state: State) -> list[str]:
            return [
                name
                async for name in _named(prefix, state.subjects())
                if (deleted and not deleted_only) or state.has_subject(name) is not deleted_only
            ]

        return await self._store.ask_long(listed)

    async def referenced_by(self, subject: str, number: int, *, deleted: bool = False) -> list[int]:
        """Return the ids of the schemas that reference a version."""
        held = await self.version(subject, number, deleted=True)
        return await self._store.ask(
            lambda state: [each for _, each in state.referrers(held.subject, held.version, deleted=deleted)]
        )

    async def delete_version(self, subject: str, number: int, *, permanent: bool) -> int:
        """Delete a version; return its number."""
        deleted: int = await self._store.decide(
            lambda shard: shard.delete_version(shard.state.aliased(normalised(subject)), number, permanent=permanent)
        )
        return deleted

    async def delete_subject(self, subject: str, *, permanent: bool) -> list[int]:
        """Delete a subject; return the numbers of its versions."""
        name = await self._store.ask(lambda state: state.aliased(normalised(subject)))
        deleted: list[int] = []
        while True:
            goes_on = bool(deleted)
            reply = await self._store.decide(
                lambda shard, goes_on=goes_on: shard.delete_subject(  # type: ignore[misc]
                    name, permanent=permanent, goes_on=goes_on
                )
            )
            if not isinstance(reply, More):
                return [*reply, *deleted]
            deleted = [*reply.done, *deleted]

    # -- schemas by id

    async def by_id(self, schema_id: int, subject: str | None) -> Version:
        """Return a version that has an id."""
        name = normalised(subject or "")
        found = await self._store.look(lambda state: state.find_by_id(schema_id, state.aliased(name)))
        if found is None:
            raise Refusal.SCHEMA_NOT_FOUND(schema_id)
        return found

    def by_id_at_once(self, schema_id: int) -> Version | None:
        """Return the result of `by_id` without a subject, or None if `by_id` would fail or wait."""
        found = self._store.at_once(lambda state: (state.find_by_id(schema_id, state.aliased("")),))
        return None if found is None else found[0]

    async def by_guid(self, guid: str) -> Version:
        """Return a version that has a GUID, from the first context with such a version."""

        def asked(state: State) -> Version | None:
            return next((state.get_by_id(number, qualified_context(at)) for at, number in _ids(state, guid)), None)

        found = await self._store.ask(asked)
        if found is None:
            raise Refusal.SCHEMA_NOT_FOUND(guid)
        return found

    async def ids_of_guid(self, guid: str) -> list[tuple[str, int]]:
        """Return the context and the id for each context that contains a GUID."""
        return await self._store.ask(lambda state: _ids(state, guid))

    async def max_id(self, subject: str) -> int:
        """Return the highest id in a subject's context."""
        return await self._store.ask(lambda state: state.max_id(parse(subject).context))

    async def versions_of_id(self, schema_id: int, subject: str | None, *, deleted: bool) -> list[Version]:
        """Return the newest version that has an id, for each subject."""

        async def listed(state: State) -> list[Version]:
            found = state.find_by_id(schema_id, state.aliased(normalised(subject or "")))
            if found is None:
                raise Refusal.NO_SCHEMA.error
            among = state.with_id(parse(found.subject).context, schema_id)
            held = await each(list(among.items()), lambda at: state.version(at[0], at[1], deleted=deleted))
            return [version for version in held if version is not None]

        return await self._store.ask_long(listed)

    async def schemas(
        self,
        prefix: str,
        most: int,
        *,
        deleted: bool,
        latest_only: bool,
        rule_type: str = "",
        aliases: bool = False,
        shows: Callable[[str], bool] = lambda _name: True,
    ) -> list[tuple[Version, list[str]]]:
        """Return the first versions of subjects whose names begin with a prefix, with each subject's aliases.

        With `aliases`, also return subjects with an alias that begins with the prefix. Omit subjects and aliases that
        `shows` does not accept.
        """

        async def listed(state: State) -> list[tuple[Version, list[str]]]:
            names = [name async for name in _named(prefix, state.subjects()) if shows(name)]
            other: dict[str, list[str]] = {}
            if aliases:
                configured = [each for each, config in state.configs.items() if each and config.get("alias")]
                async for name in _named(prefix, configured):
                    if shows(name) and shows(subject := state.aliased(name)):
                        other.setdefault(subject, []).append(name)
                names = [name async for name in _named("", [*{*names, *other}], everywhere=True)]
            found = []
            for name in names:
                versions = state.versions(name, deleted=deleted)
                for version in versions[-1:] if latest_only else versions:
                    if not rule_type or _has_rule(version, rule_type):
                        found.append((version, other.get(name, [])))
                        if len(found) >= most:
                            return found
                    await turn
            return found

        return await self._store.ask_long(listed)

    async def formatted(self, version: Version, form: str) -> str:
        """Return a version's text in a form, or in the stored form if `form` is not known."""
        content = version.content
        if form not in FORMS:
            return content.schema
        texts = await self._store.ask_long(lambda state: resolved(state, version.subject, content.references))
        return await self._store.aside(lambda: formatted(content, texts, form))

    # -- configs, modes, contexts; an empty name is the global one

    async def config(self, subject: str, *, in_scope: bool) -> Json:
        """Return a subject's own config, or with `in_scope` the config that applies to it."""
        name = _setting_of(subject)
        found = await self._store.ask(lambda state: state.config_in_scope(name) if in_scope else state.config(name))
        if found is None:
            raise Refusal.NO_SUBJECT_CONFIG(name)
        return found

    async def change_config(self, subject: str, changes: Mapping[str, Any]) -> Json:
        """Change a config; return the complete config. A value of None removes a field."""
        check_additions(
            [changes.get("defaultMetadata"), changes.get("overrideMetadata")],
            [changes.get("defaultRuleSet"), changes.get("overrideRuleSet")],
        )
        for field in _WITHOUT_EFFECT:
            if changes.get(field) not in (None, False, "", "STRICT"):
                raise Refusal.NOT_PERMITTED(f"{field} has no effect in this registry")
        level = changes.get("compatibilityLevel")
        if level is not None and str(level).upper() not in LEVELS:
            raise Refusal.INVALID_COMPATIBILITY.error
        if level is not None:
            changes = {**changes, "compatibilityLevel": str(level).upper()}
        changes = {name: normal_addition(name, value) for name, value in changes.items()}
        name = _checked_setting(subject)
        config: Json = await self._store.decide(lambda shard: shard.change_config(name, changes))
        return config

    async def delete_config(self, subject: str) -> Json:
        """Delete a config; return the deleted config."""
        name = _setting_of(subject)
        config: Json = await self._store.decide(lambda shard: shard.delete_config(name))
        return config

    async def mode(self, subject: str, *, in_scope: bool) -> str:
        """Return a subject's own mode, or with `in_scope` the mode that applies to it."""
        name = _setting_of(subject)
        found = await self._store.ask(lambda state: state.mode_in_scope(name) if in_scope else state.mode(name))
        if found is None:
            raise Refusal.NO_SUBJECT_MODE(name)
        return found

    async def set_mode(self, subject: str, mode: str | None, *, force: bool) -> None:
        """Set a mode; None removes it."""
        name = _checked_setting(subject)
        if mode is not None and mode.upper() not in MODES:
            raise Refusal.INVALID_MODE.error
        is_global = name is not None and parse(name) == Subject(GLOBAL_CONTEXT, "")
        if mode is not None and mode.upper() == "FORWARD" and not is_global:
            raise Refusal.FORWARD_IS_GLOBAL.error
        wanted = None if mode is None else mode.upper()
        while isinstance(await self._store.decide(lambda shard: shard.set_mode(name, wanted, force=force)), More):
            pass

    async def delete_mode(self, subject: str, *, recursive: bool) -> str | None:
        """Delete a mode; return the deleted mode."""
        name = _setting_of(subject)
        reply = first = await self._store.decide(lambda shard: shard.delete_mode(name, recursive=recursive))
        while isinstance(reply, More):
            reply = await self._store.decide(lambda shard: shard.delete_mode(name, recursive=True))
        mode: str | None = first.done if isinstance(first, More) else first
        return mode

    async def contexts(self, prefix: str = "") -> list[str]:
        """Return the contexts whose names begin with a prefix."""
        return await self._store.ask(
            lambda state: [each for each in (DEFAULT_CONTEXT, *state.contexts) if each.startswith(prefix)]
        )

    async def delete_context(self, context: str) -> None:
        """Delete a context that has no subjects."""
        name = normalised(context)
        await self._store.decide(lambda shard: shard.delete_context(name))


def _version(state: State, subject: str, number: int, *, deleted: bool) -> Version:
    for name in _in_contexts(state, subject):
        found = state.latest(name) if number == LATEST else state.version(name, number, deleted=deleted)
        if found is not None:
            return found
    if state.has_subject(subject, deleted=deleted):
        raise Refusal.VERSION_NOT_FOUND(number)
    raise Refusal.SUBJECT_NOT_FOUND(subject)


def _in_contexts(state: State, subject: str) -> list[str]:
    """Return a subject and, if its name has no context, the subjects of that name in the other contexts."""
    return [subject, *state.elsewhere(subject)]


def _registered(state: State, checked: Checked, *, deleted: bool) -> Version | None:
    context = parse(checked.subject).context
    known = state.id_of(context, checked.content)
    if known is not None:
        number = state.with_id(context, known).get(checked.subject, 0)
        found = state.version(checked.subject, number, deleted=deleted)
        if found is not None:
            return found
    return state.version(checked.subject, checked.same_as, deleted=deleted)


def _ids(state: State, guid: str) -> list[tuple[str, int]]:
    try:
        return state.ids_of(uuid.UUID(guid).bytes)
    except ValueError:
        return []


async def _named(prefix: str, subjects: list[str], *, everywhere: bool = False) -> AsyncIterator[str]:
    """Yield the subjects whose names begin with a prefix, in order.

    The prefix may apply to any context (":*:"). A prefix without a context applies to the default context, unless
    `everywhere` is set.
    """
    everywhere = everywhere or prefix.startswith((":.", ANY_CONTEXT))
    is_any, rest = prefix.startswith(ANY_CONTEXT), prefix.removeprefix(ANY_CONTEXT)
    for name in await in_order(subjects):
        within = parse(name)
        begins = within.name.startswith(rest) if is_any else name.startswith(prefix)
        if begins and (everywhere or within.context == DEFAULT_CONTEXT):
            yield name
        await turn


def _has_rule(version: Version, kind: str) -> bool:
    rules = version.content.rule_set or {}
    lists = (rules.get(each) or () for each in ("migrationRules", "domainRules", "encodingRules"))
    return any(rule.get("type") == kind for each in lists for rule in each)


def _setting_of(subject: str) -> str | None:
    """Return the name under which a subject's config or mode is stored."""
    return normalised(subject) or None


def _checked_setting(subject: str) -> str | None:
    if not is_valid(subject, for_settings=True):
        raise Refusal.INVALID_SUBJECT(subject)
    return _setting_of(subject)
