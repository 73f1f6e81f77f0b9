"""Configs of brokers, of all brokers, of loggers, groups and client metrics; and the levels of features.

Owns the choice of the entities whose configs the pages show, and the changes of these configs.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.admin.configs import TYPES, Subject, alter_configs, described_configs, listed_subjects
from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.features import SAFE_DOWNGRADE, UPGRADE, change_features, described_features
from kbroker.config.operations import Op
from kbroker.console.configs_shown import rows_of
from kbroker.console.console import Console
from kbroker.console.listing import Listing, place
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values
from kbroker.protocol.messages.configs import IncrementalConfig

_KINDS: Final = ("broker", "logger", "client-metrics", "group")
LEVELS: Final = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE")
_PER_PAGE: Final = 400
_OWNERS: Final = {"group": "of groups", "client-metrics": "of subscriptions to clients' metrics"}
_MAKES: Final = {"group": "Set for a group", "client-metrics": "New subscription"}
"""The text of the button that adds an entity to the list."""


async def find(console: Console, values: Values) -> Facts:
    """Return the configs of the chosen entity; the default is the first broker."""
    view = await console.view()
    brokers = [each.node_id for each in view.brokers]
    kind = values.one_of("kind", _KINDS)
    everyone = values.flag("everyone")
    name = values.text("name") or ("" if everyone or kind in ("client-metrics", "group") else str(brokers[0]))
    facts: Facts = {
        "brokers": brokers,
        "kind": kind,
        "name": name,
        "everyone": everyone,
        "q": values.text("q").lower(),
        "own": values.flag("own"),
        "rows": None,
        "list": None,
        "named": [],
        "failure": None,
        "levels": LEVELS,
        "tab": "everyone" if everyone else kind,
        "subject": None,
        "whose": "all brokers" if everyone else _OWNERS.get(kind) or f"{kind} {name}",
        "makes": "Set for all brokers" if everyone else _MAKES.get(kind),
        "left_out": 0,
    }
    try:
        if kind in ("client-metrics", "group"):
            facts["named"] = [each for _, each in await console.ask(lambda admin: listed_subjects(admin, [kind]))]
        if name or everyone:
            facts |= await _described(console, Subject(kind, _checked(kind, name)), facts)
    except AdminError as error:
        facts["failure"] = str(error)
    return facts


def _checked(kind: str, name: str) -> str:
    if kind in ("broker", "logger") and name and not name.isdecimal():
        raise WrongInput(f"a broker has a number, not {name[:50]!r}")
    return name


async def _described(console: Console, subject: Subject, facts: Facts) -> Facts:
    found = await console.ask(lambda admin: described_configs(admin, subject, documentation=subject.kind != "logger"))
    rows = [
        each for each in rows_of(subject, found) if facts["q"] in each.key.lower() and (each.own or not facts["own"])
    ]
    return {"rows": rows[:_PER_PAGE], "subject": subject, "left_out": max(len(rows) - _PER_PAGE, 0)}


async def find_features(console: Console, values: Values) -> Facts:
    """Return the features."""
    found, failure = await console.ask_or_fail(described_features)
    return {
        "list": Listing(found or [], values.page(), "/features", per_page=200),
        "failure": failure,
        "tab": "features",
    }


def change(admin: Any, values: Values) -> Done:
    """Set a config, or reset it to the inherited value."""
    kind = values.one_of("kind", tuple(TYPES))
    everyone = values.flag("everyone")
    name = "" if everyone else _checked(kind, values.needed("name", "the name"))
    key = values.needed("key", "the config")
    unset = values.flag("unset")
    op = IncrementalConfig(key, Op.DELETE, None) if unset else IncrementalConfig(key, Op.SET, values.text("value"))
    subject = Subject(kind, name)
    alter_configs(admin, subject, [op], dry_run=False)
    outcome = "has the inherited value again" if unset else "is set"
    where = place("/configs", kind=kind, name=name, everyone="1" if everyone else None)
    return Done(f"{key} of {subject} {outcome}.", where)


def feature(admin: Any, values: Values) -> Done:
    """Change the level of a feature."""
    name = values.needed("feature", "the feature")
    level = values.needed_number("level", "the level")
    known = {each["feature"]: each["level"] for each in described_features(admin)}
    kind = UPGRADE if level >= known.get(name, 0) else SAFE_DOWNGRADE
    change_features(admin, {name: level}, kind, dry_run=False)
    return Done(f"{name} has level {level}.", "/features")


PAGES: Final = (Page("/configs", "configs.html", find), Page("/features", "features.html", find_features))
ACTIONS: Final = (
    Action("config", change, long=frozenset({"value"})),
    Action("feature", feature, "feature"),
)
