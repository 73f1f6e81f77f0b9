"""The seven levels of compatibility, composed of one check: whether a reader's schema can read a writer's data.

BACKWARD: the new schema reads data of the old schema. FORWARD: the old schema reads data of the new schema. FULL: both.
*_TRANSITIVE compares with each earlier version, from the latest to the first, and stops at the first version that
fails; the other levels compare with the latest version only. The messages and their order are those of Confluent's
registry 8.x.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kbroker.schema_registry.formats.common import Schema
from kbroker.schema_registry.formats.parsing import compatible

LEVELS: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
LONGEST_SCHEMA_SHOWN: Final = 10 * 1024
"""The maximum number of characters of an old schema that the messages contain."""
_OTHER_TYPE: Final = "Incompatible because of different schema type"


def check(level: str, new: Schema, previous: Iterable[tuple[int | None, Schema]]) -> list[str]:
    """Return the reasons for which a new schema must not follow the previous versions; an empty list if there are none.

    The versions are ordered from the oldest. `previous` are pairs of a version's number (or None) and its schema. The
    messages are the verbose messages of Confluent's registry, which end with the old version, its schema and the level.
    Raises InvalidSchema for schemas that cannot be compared within the limits.
    """
    if level == "NONE":
        return []
    direction, _, transitive = level.partition("_")
    for version, old in list(previous)[::-1]:
        messages = _between(direction, new, version, old)
        if messages:
            return [*messages, f"{{validateFields: 'false', compatibility: '{level}'}}"]
        if not transitive:
            break
    return []


def _between(direction: str, new: Schema, version: int | None, old: Schema) -> list[str]:
    if new.schema_type != old.schema_type:
        return [_OTHER_TYPE]
    found: list[str] = []
    if direction in ("FORWARD", "FULL"):
        found += [each.message("old", "new") for each in compatible(old, new)]
        # With FULL, the messages of the forward direction do not end with the old schema, as in Confluent's registry.
        if found and direction == "FORWARD":
            found += _old(version, old)
    if direction in ("BACKWARD", "FULL"):
        backward = [each.message("new", "old") for each in compatible(new, old)]
        if backward:
            found += backward + _old(version, old)
    return found


def _old(version: int | None, old: Schema) -> list[str]:
    told = [] if version is None else [f"{{oldSchemaVersion: {version}}}"]
    text = old.canonical
    if len(text) <= LONGEST_SCHEMA_SHOWN:
        return [*told, f"{{oldSchema: '{text}'}}"]
    return [*told, f"{{oldSchema: <truncated> '{text[:LONGEST_SCHEMA_SHOWN]}...'}}"]
