"""The keys of quotas, and the checks of their values (Apache Kafka 4.3: ClientQuotaControlManager).

Owns the keys, the checks in Kafka's words, and the stored text of a value. Never stores anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.quota.entities import CLIENT_ID, IP, USER, Entity

PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"
CLIENT_KEYS: Final = (PRODUCER, CONSUMER, REQUEST, MUTATION)
IP_KEYS: Final = (CONNECTION,)
KEYS: Final = frozenset({*CLIENT_KEYS, *IP_KEYS})
_LARGEST: Final = {PRODUCER: (2.0**63, "LONG"), CONSUMER: (2.0**63, "LONG"), CONNECTION: (2.0**31 - 1, "INT")}
"""Of whole-number keys: the largest value, and its type."""
_ROUGHLY_WHOLE: Final = 1e-6

Values = Mapping[str, float]
"""Limits of one entity by key."""


def checked_entity(parts: Mapping[str, str | None]) -> Entity:
    """Return the entity with these names by type; raises ApiError. The caller checks whether an address is valid."""
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP in parts and len(parts) > 1:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    user, client_id, ip = (_name(parts, kind) for kind in (USER, CLIENT_ID, IP))
    return Entity(user, client_id, ip)


def _name(parts: Mapping[str, str | None], kind: str) -> str | None:
    return parts[kind] or "" if kind in parts else None


def check_value(entity: Entity, key: str, value: float) -> None:
    """Check a new limit; raises ApiError."""
    if key not in (CLIENT_KEYS if entity.ip is None else IP_KEYS):
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if key in _LARGEST:
        largest, name = _LARGEST[key]
        if value > largest:
            raise _invalid(f"Proposed value for {key} is too large for {'an' if name == 'INT' else 'a'} {name}.")
        if math.fmod(value, 1.0) > _ROUGHLY_WHOLE:
            raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def revised(old: Mapping[str, str], ops: Iterable[tuple[str, float | None]]) -> dict[str, str]:
    """Return an entity's configs with limits set, or removed if None; other configs stay."""
    new = dict(old)
    for key, value in ops:
        if value is None:
            if key in KEYS:
                new.pop(key, None)
        else:
            new[key] = stored_text(key, value)
    return new


def stored_text(key: str, value: float) -> str:
    """Return a limit as config text, in a form that Java's brokers can read as well."""
    if key in _LARGEST and value == int(value):
        return str(int(value))
    return "Infinity" if math.isinf(value) else repr(float(value))


def values_of(entity: Entity, configs: Mapping[str, str]) -> dict[str, float]:
    """Return the limits in an entity's configs; invalid ones are ignored, whoever wrote them."""
    found = {}
    for key in CLIENT_KEYS if entity.ip is None else IP_KEYS:
        if key in configs:
            try:
                value = float(configs[key])
            except ValueError:
                continue
            if value > 0:
                found[key] = value
    return found
