"""Quotas of users, client ids and addresses. Owns the page and its two changes."""

from __future__ import annotations

import math
from typing import Any, Final

from kbroker.admin.errors import WrongInput
from kbroker.admin.quotas import LIMITS, TYPES, Entity, alter_quotas, described_quotas, entity_text, number_text
from kbroker.console.console import Console
from kbroker.console.listing import Listing
from kbroker.console.number_text import size
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values

_KINDS: Final = tuple(TYPES)


async def find(console: Console, values: Values) -> Facts:
    """Return a page of the quotas."""
    found, failure = await console.ask_or_fail(lambda admin: described_quotas(admin, {}, strict=False))
    rows = [
        {
            "entity": entity,
            "text": entity_text(entity),
            "key": key,
            "value": number_text(limits[key]),
            "means": _means(key, limits[key]),
        }
        for entity, limits in found or ()
        for key in sorted(limits)
    ]
    return {
        "list": Listing(rows, values.page(), "/quotas"),
        "limits": LIMITS,
        "kinds": _KINDS,
        "failure": failure,
        "tab": "quotas",
    }


def _means(key: str, value: float) -> str:
    """Return a limit of bytes in a readable unit; empty if the number itself is readable."""
    return f"{size(round(value))}/s" if key.endswith("_byte_rate") and value >= 1000 else ""


def _entity(values: Values) -> Entity:
    """Return the entity that the fields of a form name: for each type a name, or None for the default.

    Raises WrongInput.
    """
    found: Entity = {}
    for kind in _KINDS:
        if values.flag(f"default-{kind}"):
            found[kind] = None
        elif values.text(kind):
            found[kind] = values.text(kind)
    if not found:
        raise WrongInput("name the client of the limit: a user, a client id, an address, or a default")
    return found


def change(admin: Any, values: Values) -> Done:
    """Set a limit."""
    entity = _entity(values)
    key = values.one_of("key", tuple(LIMITS))
    try:
        value = float(values.needed("value", "the limit"))
    except ValueError:
        raise WrongInput("a limit must be a number") from None
    if not math.isfinite(value) or value < 0:
        raise WrongInput("a limit must be a number, and not negative")
    alter_quotas(admin, entity, {key: value})
    return Done(f"{entity_text(entity)}: {key} is {number_text(value)}.", "/quotas")


def remove(admin: Any, values: Values) -> Done:
    """Remove a limit."""
    entity = _entity(values)
    key = values.one_of("key", tuple(LIMITS))
    alter_quotas(admin, entity, {key: None})
    return Done(f"{entity_text(entity)} has no {key} any more.", "/quotas")


PAGES: Final = (Page("/quotas", "quotas.html", find),)
ACTIONS: Final = (Action("quota-set", change), Action("quota-remove", remove))
