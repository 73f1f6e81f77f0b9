"""Snapshots over HTTP. Owns the operations; known_snapshots.py has the snapshots."""

from __future__ import annotations

from typing import Any, Final

from kbroker.control.operations import Control, Operation
from kbroker.control.values import Values


def _take(control: Control, _: Values) -> dict[str, Any]:
    with control.changing:
        control.snapshots.check_room()
        return {"id": control.snapshots.add(control.subject.snapshot())}


def _restore(control: Control, values: Values) -> dict[str, Any]:
    with control.changing:
        control.subject.restore(control.snapshots.one(values["id"]))
        control.known.clear()
    return {"id": values["id"]}


def _remove(control: Control, values: Values) -> dict[str, Any]:
    with control.changing:
        control.snapshots.remove(values["id"])
    return {"id": values["id"]}


OPERATIONS: Final = (
    Operation(
        "POST", "/snapshots", "takeSnapshot",
        "Keep what lies in the broker: topics with records, groups with offsets, transactional ids, configs, users.",
        "Snapshot", status=201, work=_take,
    ),
    Operation(
        "GET", "/snapshots", "listSnapshots", "The snapshots that are kept.", "Snapshots",
        work=lambda control, _: {"snapshots": [{"id": each} for each in control.snapshots.all()]},
    ),
    Operation(
        "POST", "/snapshots/{id:int}/restore", "restoreSnapshot",
        "Be as when the snapshot was taken, without faults or requests; clients stay connected.", "Snapshot",
        work=_restore,
    ),
    Operation(
        "DELETE", "/snapshots/{id:int}", "removeSnapshot", "Forget a snapshot.", "Snapshot", work=_remove,
    ),
)  # fmt: skip
