"""Subjects of a schema registry: their versions, the changes between versions, and the check of a new version.

Owns the pages, and the forms that check, register and delete schemas. The registry checks the content of these forms;
this module parses no schema.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from kbroker.admin.errors import AdminError, NotThere, WrongInput
from kbroker.admin.schemas import Forbidden, SchemaRegistry, Unknown, pretty, reference_in
from kbroker.console.console import Console
from kbroker.console.listing import Listing, has_words, place
from kbroker.console.number_text import plural
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values

T = TypeVar("T")
_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
_LEVELS: Final = (
    "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE",
)  # fmt: skip
_AS_GLOBAL: Final = ""
_MOST_USERS: Final = 50
"""The maximum number of shown schemas that reference a version, and of shown topics that use a subject."""
_LONGEST_DIFF: Final = 2_000
"""The maximum number of lines of a compared schema. The time of a comparison grows with the square of this number."""


async def _asked(console: Console, question: Callable[[SchemaRegistry], T]) -> T:
    registry = _registry(console)
    try:
        return await console.cluster.work(lambda: question(registry))
    except Unknown as error:
        raise NotThere(str(error)) from None


def _registry(console: Console) -> SchemaRegistry:
    if console.schemas.registry is None:
        raise NotThere("this console has no schema registry: `kbroker console --registry URL`")
    return console.schemas.registry.registry


# -- the list


async def find(console: Console, values: Values) -> Facts:
    """Return a page of the subjects with their latest versions."""
    text, deleted = values.text("q"), values.flag("deleted")

    def found(registry: SchemaRegistry) -> Facts:
        names = [each for each in registry.ask("GET", "subjects", deleted=deleted) if has_words(each, text)]
        listed = Listing(sorted(names), values.page(), "/subjects", {"q": text, "deleted": deleted or None})
        rows = [_row(registry, each, deleted=deleted) for each in listed.items]
        return {"list": listed, "rows": rows, "level": registry.level()}

    return {
        **await _asked(console, found),
        "q": text,
        "deleted": deleted,
        "url": _registry(console).url,
        "types": _TYPES,
    }


def _row(registry: SchemaRegistry, name: str, *, deleted: bool) -> dict[str, Any]:
    try:
        latest = registry.ask("GET", "subjects", name, "versions", "latest", deleted=deleted)
    except (Unknown, Forbidden):  # the subject was deleted meanwhile, or the user may only list its name
        return {"name": name, "version": None, "id": None, "type": None}
    return {
        "name": name,
        "version": latest["version"],
        "id": latest["id"],
        "type": latest.get("schemaType", "AVRO"),
    }


# -- one subject


async def find_one(console: Console, values: Values) -> Facts:
    """Return a version of a subject, and its changes since another version."""
    name = values.needed("name", "the subject")
    facts = await _asked(console, lambda registry: _subject(registry, name, values))
    topics = (await console.view()).topics
    users = [each for each in _topics_of(name, facts["names"]) if each in topics]
    return {**facts, "topics": users, "types": _TYPES, "levels": _LEVELS}


def _subject(registry: SchemaRegistry, name: str, values: Values) -> Facts:
    every = registry.ask("GET", "subjects", name, "versions", deleted=True)
    try:
        alive = registry.ask("GET", "subjects", name, "versions")
    except Unknown:
        alive = []
    number = values.number("version", "the version", (alive or every)[-1], least=1)
    shown = registry.ask("GET", "subjects", name, "versions", number, deleted=True)
    earlier = [each for each in every if each < number]
    against = values.number("against", "the version", earlier[-1] if earlier else 0)
    before = registry.ask("GET", "subjects", name, "versions", against, deleted=True) if against in every else None
    text = pretty(shown)
    return {
        "name": name,
        "versions": every,
        "alive": set(alive),
        "version": number,
        "against": against if before is not None else None,
        "shown": shown,
        "type": shown.get("schemaType", "AVRO"),
        "text": text,
        "diff": None if before is None else _diff(pretty(before), text),
        "own_level": _own_level(registry, name),
        "level": registry.level(name),
        "references": shown.get("references") or [],
        "users": _users(registry, name, number),
        "names": _names(shown),
    }


def _own_level(registry: SchemaRegistry, name: str) -> str:
    try:
        return str(registry.ask("GET", "config", name).get("compatibilityLevel") or _AS_GLOBAL)
    except (Unknown, Forbidden):
        return _AS_GLOBAL


def _users(registry: SchemaRegistry, name: str, version: int) -> list[Mapping[str, Any]]:
    """Return the versions of other subjects that reference a version."""
    found: list[Mapping[str, Any]] = []
    for number in registry.ask("GET", "subjects", name, "versions", version, "referencedby")[:_MOST_USERS]:
        with suppress(Forbidden):
            found += registry.ask("GET", "schemas", "ids", number, "versions")
    return found[:_MOST_USERS]


def _names(shown: Mapping[str, Any]) -> list[str]:
    """Return the name of an Avro record. Strategies other than TopicNameStrategy use it in the names of subjects."""
    try:
        schema = json.loads(shown["schema"])
    except (ValueError, RecursionError):
        return []
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        return []
    space = schema.get("namespace")
    return [f"{space}.{schema['name']}" if isinstance(space, str) and space else schema["name"]]


def _topics_of(subject: str, names: Iterable[str]) -> list[str]:
    """Return the topics that may use a subject. Its name must follow TopicNameStrategy or TopicRecordNameStrategy."""
    ends = ["-value", "-key", *(f"-{each}" for each in names)]
    return [subject.removesuffix(end) for end in ends if subject.endswith(end)]


def _diff(before: str, after: str) -> list[tuple[str, str]] | None:
    """Return the lines of both texts, each preceded by "+", "-" or " "; None if the texts are too long."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > _LONGEST_DIFF:
        return None
    lines = difflib.unified_diff(old, new, lineterm="", n=max(len(old), len(new)))
    return [(line[:1], line[1:]) for line in lines if not line.startswith(("---", "+++", "@@"))]


# -- changes


def _body(values: Values) -> dict[str, Any]:
    references = []
    for line in values.raw("references").splitlines():
        if line.strip():
            reference = reference_in(line.strip())
            if reference is None:
                raise WrongInput(f"a reference is NAME=SUBJECT:VERSION, not {line.strip()[:80]!r}")
            references.append(reference)
    return {
        "schema": values.needed("schema", "the schema"),
        "schemaType": values.one_of("type", _TYPES),
        "references": references,
    }


def check(console: Console, values: Values) -> Done:
    """Check whether a schema may be the next version."""
    name, body = values.needed("name", "the subject"), _body(values)
    told = _registry(console).ask("POST", "compatibility", "subjects", name, "versions", body=body, verbose=True)
    if not told["is_compatible"]:
        reasons = "; ".join(told.get("messages") or ()) or "no reason is given"
        raise AdminError(f"The schema cannot be the next version: {reasons}"[:2_000])
    return Done("The schema may be the next version. Nothing is registered yet.", _of(name), stays=True)


def register(console: Console, values: Values) -> Done:
    """Register a schema."""
    name = values.needed("name", "the subject")
    normalize = values.flag("normalize") or None
    told = _registry(console).ask("POST", "subjects", name, "versions", body=_body(values), normalize=normalize)
    return Done(f"The schema of {name} has the id {told['id']}.", _of(name))


def set_level(console: Console, values: Values) -> Done:
    """Set a subject's compatibility level, or remove it, so that the global level applies."""
    name, level = values.needed("name", "the subject"), values.one_of("level", (_AS_GLOBAL, *_LEVELS))
    registry = _registry(console)
    if level != _AS_GLOBAL:
        registry.ask("PUT", "config", name, body={"compatibility": level})
        return Done(f"The level of {name} is {level}.", _of(name))
    with suppress(Unknown):  # the subject has no level of its own
        registry.ask("DELETE", "config", name)
    return Done(f"The global level applies to {name}.", _of(name))


def delete(console: Console, values: Values) -> Done:
    """Delete a version or a subject: softly, or for good if it is already softly deleted."""
    name, version = values.needed("name", "the subject"), values.optional_number("version", "the version", least=1)
    path = ["subjects", name] if version is None else ["subjects", name, "versions", version]
    told = _registry(console).ask("DELETE", *path, permanent=values.flag("permanent") or None)
    numbers = told if isinstance(told, list) else [told]
    what = f"{plural(len(numbers), 'version')} of {name} {'is' if len(numbers) == 1 else 'are'} deleted"
    return Done(f"{what}{' for good' if values.flag('permanent') else ''}.", "/subjects")


def _of(name: str) -> str:
    return place("/subject", name=name)


PAGES: Final = (Page("/subjects", "subjects.html", find), Page("/subject", "subject.html", find_one))
_SCHEMA: Final = frozenset({"schema"})
ACTIONS: Final = (
    Action("subject-check", check, long=_SCHEMA, of_console=True),
    Action("subject-register", register, long=_SCHEMA, of_console=True),
    Action("subject-level", set_level, of_console=True),
    Action("subject-delete", delete, confirms="name", of_console=True),
)
