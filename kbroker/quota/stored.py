"""All quotas of a cluster as a value, made of the configs of users, clients and addresses.

Owns that value, `Quotas`: who has which limits. It changes only where a limit does, whatever else users' configs have
(credentials). Never stores anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from kbroker.quota.entities import Entity, entity_at
from kbroker.quota.values import Values, values_of

Quotas = Mapping[Entity, Values]
Configs = Mapping[str, Mapping[str, str]]
"""Configs of one kind by name."""


def quotas_in(by_kind: Mapping[str, Configs]) -> Quotas:
    """Return all quotas that stand among configs."""
    found: dict[Entity, Values] = {}
    for kind, all_of_it in by_kind.items():
        for name, configs in all_of_it.items():
            entity = entity_at(kind, name)
            values = None if entity is None else values_of(entity, configs)
            if entity is not None and values:
                found[entity] = values
    return found


def changed(quotas: Quotas, kind: str, name: str, configs: Mapping[str, str]) -> Quotas:
    """Return the quotas once something has other configs: the same value where none has changed."""
    entity = entity_at(kind, name)
    if entity is None:
        return quotas
    values = values_of(entity, configs)
    if values == quotas.get(entity, {}):
        return quotas
    new = dict(quotas)
    new.pop(entity, None)
    if values:
        new[entity] = values
    return new
