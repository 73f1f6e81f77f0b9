"""The changes of the table `kbroker.changes` over HTTP. Each change is an operation. Knows no particular change."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from kbroker.changes import CHANGES, Change
from kbroker.control.operations import Control, Operation
from kbroker.control.values import Values


def _carried_out(change: Change, control: Control, values: Values) -> dict[str, Any]:
    given = {name: value for name, value in values.items() if name != change.of}
    subject = control.subject
    entity = subject.topics[values[change.of]] if change.of == "topic" else subject.groups[values[change.of]]
    entity.change(change, **given)
    return {"name": values[change.of]}


def operation_of(change: Change) -> Operation:
    """Return the operation for a change."""
    method, path = change.route.split(" ")
    words = f"{change.name}-{change.of}".split("-")
    return Operation(
        method,
        path.replace("{group}", "{group:path}"),  # the id of a group may contain slashes
        words[0] + "".join(each.capitalize() for each in words[1:]),
        change.summary,
        "Changed",
        work=partial(_carried_out, change),
        body=change.fields or None,
    )


OPERATIONS: Final = tuple(operation_of(each) for each in CHANGES)
