"""Resetting the offsets of a group: the page first shows the changes, and then makes exactly these changes.

Owns the preview and its form. The form contains the shown offsets, so later commits and records do not affect the
reset.
"""

from __future__ import annotations

import re
from typing import Any, Final

from kafka.structs import TopicPartition

from kbroker.admin.errors import AdminError, WrongInput
from kbroker.admin.group_offsets import (
    WITHOUT_MEMBERS,
    Target,
    named_partitions,
    new_offsets,
    offsets_of,
    set_offsets,
)
from kbroker.admin.groups import group_of
from kbroker.console.console import Console
from kbroker.console.listing import place
from kbroker.console.page_and_action import Action, Done, Facts, Page
from kbroker.console.values import Values

TARGETS: Final = ("earliest", "latest", "time", "shift", "offset", "current")
_MOST: Final = 5_000
_ENTRY: Final = re.compile(r"([A-Za-z0-9._-]{1,249}):(\d{1,9}):(\d{1,19})")


async def find(console: Console, values: Values) -> Facts:
    """Return the effect of a reset, once the form is complete."""
    name = values.needed("name", "the group")
    to = values.text("to")
    facts: Facts = {"name": name, "values": values, "rows": None, "failure": None}
    state, topics = await console.ask(lambda admin: _state(admin, name))
    facts |= {"topics": topics, "state": state, "empty": state in WITHOUT_MEMBERS}
    if to:
        try:
            chosen = _target(values)
            facts["rows"] = await console.ask(lambda admin: _preview(admin, name, values, chosen))
        except AdminError as error:
            facts["failure"] = str(error)
    return facts


def _state(admin: Any, name: str) -> tuple[str | None, list[str]]:
    state, kind = _state_and_type(admin, name)
    return state, sorted({each.topic for each in offsets_of(admin, name, kind)})


def _state_and_type(admin: Any, name: str) -> tuple[str | None, str | None]:
    group = group_of(admin, name)
    return (None, None) if group is None else (group["state"], group["type"])


def _target(values: Values) -> Target:
    kind = values.one_of("to", TARGETS)
    if kind == "time":
        time_ms = values.time("time")
        if time_ms is None:
            raise WrongInput("the time is missing")
        return Target(time_ms=time_ms)
    if kind == "shift":
        text = values.needed("shift", "the number of records")
        if not re.fullmatch(r"[+-]?\d{1,18}", text):
            raise WrongInput(f"a shift is a number of records (negative to go back), not {text[:50]!r}")
        return Target(shift=int(text))
    if kind == "offset":
        return Target(offset=values.needed_number("offset", "the offset"))
    return Target(earliest=kind == "earliest", latest=kind == "latest", current=kind == "current")


def _preview(admin: Any, name: str, values: Values, target: Target) -> list[dict[str, Any]]:
    committed = offsets_of(admin, name, _state_and_type(admin, name)[1])
    topics = values.all("topic")
    partitions = named_partitions(admin, topics) if topics else sorted(committed)
    wanted = values.text("partitions")
    if wanted:
        if not re.fullmatch(r"\d+(,\s*\d+)*", wanted):
            raise WrongInput(f"partitions are numbers like 0,2, not {wanted[:50]!r}")
        numbers = {int(each) for each in wanted.split(",")}
        partitions = [each for each in partitions if each.partition in numbers]
    if not partitions:
        raise WrongInput("there is nothing to move: choose a topic")
    if len(partitions) > _MOST:
        raise WrongInput(f"at most {_MOST:,} partitions are moved at once; choose some topics")
    new = new_offsets(admin, partitions, committed, target)
    return [
        {"topic": each.topic, "partition": each.partition, "old": committed.get(each), "new": new[each]}
        for each in partitions
    ]


def reset(admin: Any, values: Values) -> Done:
    """Set the offsets that were shown."""
    name = values.needed("name", "the group")
    new: dict[TopicPartition, int] = {}
    for text in values.all("set"):
        match = _ENTRY.fullmatch(text)
        if match is None:
            raise WrongInput("the form's offsets cannot be read")
        new[TopicPartition(match[1], int(match[2]))] = int(match[3])
    if not new:
        raise WrongInput("there is nothing to move")
    state, kind = _state_and_type(admin, name)
    if state not in WITHOUT_MEMBERS:
        raise AdminError(
            f"group {name} has members (its state is {state}); stop them first; "
            "a member that did not leave the group counts until its session expires (45 s by default)"
        )
    set_offsets(admin, name, kind, new)
    count = len(new)
    return Done(f"{count} offset{'s' if count != 1 else ''} of {name} moved.", place("/group", name=name))


PAGES: Final = (Page("/group/reset", "reset.html", find),)
ACTIONS: Final = (Action("group-reset", reset, "name", long=frozenset()),)
