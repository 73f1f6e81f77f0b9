"""The changes of the table `kbroker.changes` as actions of the console; their buttons and forms are in parts.html.

Owns the page that shows a change's effect. Does not depend on a particular change.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from kbroker.admin.changes import carry_out
from kbroker.admin.errors import raise_any
from kbroker.changes import CHANGES, Change
from kbroker.console.listing import place
from kbroker.console.page_and_action import Action, Done
from kbroker.console.values import Values
from kbroker.fields import Field

_LEAST: Final = -(2**63)


def changes_of(kind: str) -> list[Change]:
    """Return the changes of a kind of entity."""
    return [each for each in CHANGES if each.of == kind]


def _carried_out(change: Change, admin: Any, values: Values) -> Done:
    name = values.needed(change.of, f"the {change.of}")
    given = {field.name: _read(field, values) for field in change.fields if field.required or values.text(field.name)}
    _, refusals = carry_out(admin, change, [name], given)
    raise_any([each.text for each in refusals])
    text = change.text(change.done, name, given)
    return Done(f"{text[0].upper()}{text[1:]}.", _shows(change, name))


def _read(field: Field, values: Values) -> Any:
    what = f"the value of {field.name}"
    if field.kind == "integer":
        return values.needed_number(field.name, what, least=_LEAST if field.least is None else int(field.least))
    return [values.needed(field.name, what)] if field.kind == "names" else values.needed(field.name, what)


def _shows(change: Change, name: str) -> str:
    if change.of == "topic":
        return "/topics" if change.deletes else place("/topics", name)
    return "/groups" if change.deletes else place("/group", name=name)


def action_of(change: Change) -> Action:
    """Return the action of a change."""
    return Action(change.slug, partial(_carried_out, change), change.of if change.destroys else None)


ACTIONS: Final = tuple(map(action_of, CHANGES))
