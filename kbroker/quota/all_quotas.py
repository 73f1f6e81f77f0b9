"""All quotas of a cluster as a value, built from the configs of users, clients and addresses.

Owns that value, `Quotas`: the limits of each entity. It changes only with a limit, whatever other configs users have
(credentials), and records the last change, so that followers need not compare all of it. Never stores anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.quota.entities import Entity, entity_at
from kbroker.quota.quota_keys import Values, values_of

Configs = Mapping[str, Mapping[str, str]]
"""Configs of one kind by name."""


class Quotas(dict[Entity, Values]):
    """Limits by entity. Never changed once created."""

    __slots__ = ("_altered", "_before", "_mark")

    def __init__(self, values: Mapping[Entity, Values] | None = None) -> None:
        super().__init__(values or {})
        self._mark = object()
        self._before: object = None  # not the previous value, which would keep all earlier ones alive
        self._altered: Entity | None = None

    def altered_since(self, old: Quotas) -> Entity | None:
        """Return the only entity with other limits than in `old`; None if more than one may have changed."""
        return self._altered if self._before is old._mark else None

    def altered(self, entity: Entity, values: Values) -> Quotas:
        """Return the quotas with other limits of one entity."""
        new = Quotas(self)
        new.pop(entity, None)
        if values:
            new[entity] = values
        new._before, new._altered = self._mark, entity
        return new


def quotas_in(by_kind: Mapping[str, Configs]) -> Quotas:
    """Return all quotas in the configs."""
    found = Quotas()
    for kind, all_of_it in by_kind.items():
        for name, configs in all_of_it.items():
            entity = entity_at(kind, name)
            values = None if entity is None else values_of(entity, configs)
            if entity is not None and values:
                found[entity] = values
    return found


def changed(quotas: Quotas, kind: str, name: str, configs: Mapping[str, str]) -> Quotas:
    """Return the quotas after a change of configs: the same value if no limit has changed."""
    entity = entity_at(kind, name)
    if entity is None:
        return quotas
    values = values_of(entity, configs)
    if values == quotas.get(entity, {}):
        return quotas
    return quotas.altered(entity, values)
