"""The configured quotas: their entities, keys and values (ClientQuotaControlManager, ClientQuotasImage of Kafka 4.4).

Owns `Entity`, and its path in the configs of users, clients and addresses (Apache Kafka 3.9: /config/users/U/clients/C
and similar). Owns the keys, the checks of their values with Kafka's messages, and the stored text of a value. Owns
`Quotas`, which contains all limits of a cluster, and the filter of DescribeClientQuotas. `Quotas` changes only if a
limit changes, not with other configs of users (credentials). `Quotas` records the last change, so that callers do not
compare all limits. Never stores anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.sasl.scram_credential import USERS, entity_name, user_of

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
DEFAULT: Final = ""
"""The name of the default for all entities without their own limits. No entity has an empty name."""
CLIENTS: Final = "clients"
IPS: Final = "ips"
KINDS: Final = (USERS, CLIENTS, IPS)
"""The kinds of configs that contain quotas."""
_DEFAULT_SEGMENT: Final = "<default>"


class Entity(NamedTuple):
    """A user, a client id, both, or an address.

    None means any entity; DEFAULT means all entities without their own limits.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> dict[str, str | None]:
        """Return the names by type, as in Kafka's messages, where the name of the default is null."""
        both = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return {kind: name or None for kind, name in both if name is not None}

    def path(self) -> tuple[str, str]:
        """Return the kind of the configs, and the entity's name in them. For the default, the name is ""."""
        if self.ip is not None:
            return IPS, entity_name(self.ip)
        if self.user is None:
            return CLIENTS, entity_name(self.client_id or DEFAULT)
        if self.client_id is None:
            return USERS, entity_name(self.user)
        return USERS, f"{_segment(self.user)}/{CLIENTS}/{_segment(self.client_id)}"


def entity_at(kind: str, name: str) -> Entity | None:
    """Return the entity of the configs at a path; None if it cannot have quotas."""
    if kind == IPS:
        return Entity(ip=_name(name))
    if kind == CLIENTS:
        return Entity(client_id=_name(name))
    if kind != USERS:
        return None
    user, slash, rest = name.partition("/")
    if not slash:
        return Entity(user=_name(user))
    clients, _, client_id = rest.partition("/")
    return Entity(_name(user), _name(client_id)) if clients == CLIENTS and client_id and "/" not in client_id else None


def _segment(name: str) -> str:
    return entity_name(name) if name else _DEFAULT_SEGMENT


def _name(segment: str) -> str:
    return DEFAULT if segment == _DEFAULT_SEGMENT else user_of(segment)


PRODUCER: Final = "producer_byte_rate"
CONSUMER: Final = "consumer_byte_rate"
REQUEST: Final = "request_percentage"
MUTATION: Final = "controller_mutation_rate"
CONNECTION: Final = "connection_creation_rate"
CLIENT_KEYS: Final = (PRODUCER, CONSUMER, REQUEST, MUTATION)
IP_KEYS: Final = (CONNECTION,)
KEYS: Final = frozenset({*CLIENT_KEYS, *IP_KEYS})
_LARGEST: Final = {PRODUCER: (2.0**63, "LONG"), CONSUMER: (2.0**63, "LONG"), CONNECTION: (2.0**31 - 1, "INT")}
"""The maximum value of each key with whole numbers, and the type of the value."""
_ROUGHLY_WHOLE: Final = 1e-6

Values = Mapping[str, float]
"""The limits of one entity, by key."""


def checked_entity(parts: Mapping[str, str | None]) -> Entity:
    """Return the entity with these names by type. Raises ApiError. The caller checks whether an address is valid."""
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP in parts and len(parts) > 1:
        raise _invalid("Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId")
    user, client_id, ip = (_named(parts, kind) for kind in (USER, CLIENT_ID, IP))
    return Entity(user, client_id, ip)


def _named(parts: Mapping[str, str | None], kind: str) -> str | None:
    return parts[kind] or "" if kind in parts else None


def check_value(entity: Entity, key: str, value: float) -> None:
    """Check a new limit. Raises ApiError."""
    if key not in (CLIENT_KEYS if entity.ip is None else IP_KEYS):
        raise _invalid(f"Invalid configuration key {key}")
    if not math.isfinite(value):
        raise _invalid(f"Quota {key} must be a finite number")
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
    """Return an entity's configs with limits set, or removed if the value is None. Other configs do not change."""
    new = dict(old)
    for key, value in ops:
        if value is None:
            if key in KEYS:
                new.pop(key, None)
        else:
            new[key] = stored_text(key, value)
    return new


def stored_text(key: str, value: float) -> str:
    """Return a limit as config text, in a form that Java brokers can also read."""
    if key in _LARGEST and value == int(value):
        return str(int(value))
    return repr(float(value))


def values_of(entity: Entity, configs: Mapping[str, str]) -> dict[str, float]:
    """Return the limits in an entity's configs. Invalid limits are ignored."""
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


Configs = Mapping[str, Mapping[str, str]]
"""The configs of one kind, by name."""


class Quotas(dict[Entity, Values]):
    """The limits by entity, as an immutable value."""

    __slots__ = ("_altered", "_before", "_mark")

    def __init__(self, values: Mapping[Entity, Values] | None = None) -> None:
        super().__init__(values or {})
        self._mark = object()
        # A mark that identifies the previous value. The value itself would keep all earlier values in memory.
        self._before: object = None
        self._altered: Entity | None = None

    def altered_since(self, old: Quotas) -> Entity | None:
        """Return the only entity whose limits differ from those in `old`.

        Return None if several entities may have changed.
        """
        return self._altered if self._before is old._mark else None

    def altered(self, entity: Entity, values: Values) -> Quotas:
        """Return the quotas after replacing the limits of one entity."""
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
    """Return the quotas after a change of configs. If no limit has changed, return the same object."""
    entity = entity_at(kind, name)
    if entity is None:
        return quotas
    values = values_of(entity, configs)
    if values == quotas.get(entity, {}):
        return quotas
    return quotas.altered(entity, values)


EXACT, OF_DEFAULT, ANY = 0, 1, 2
"""The match types: a name, the default, or any entity of the type."""
_TEXTS: Final = {EXACT: "MATCH_TYPE_EXACT", OF_DEFAULT: "MATCH_TYPE_DEFAULT", ANY: "MATCH_TYPE_SPECIFIED"}


class QuotaFilter:
    """The components of a request. Each component has a type of entity, a kind of match and a name. Raises ApiError."""

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        """Create the filter. With `strict`, only entities without other types match."""
        self._strict = strict
        self._wanted: dict[str, str | None] = {}
        """The name for each type, in the form of messages. None means any name."""
        self._defaults: set[str] = set()
        for kind, match_type, match in components:
            self._add(kind, match_type, match)
        if IP in self._wanted and len(self._wanted) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def _add(self, kind: str, match_type: int, match: str | None) -> None:
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in self._wanted:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match_type not in _TEXTS:
            raise _invalid(f"Unknown match type {match_type}")
        if match_type == EXACT and match is None:
            raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if match_type != EXACT and match is not None:
            raise _invalid(f"Request specified {_TEXTS[match_type]}, but also specified a match string.")
        self._wanted[kind] = match
        if match_type == OF_DEFAULT:
            self._defaults.add(kind)

    def matches(self, entity: Entity) -> bool:
        """Whether an entity matches."""
        parts = entity.parts()
        if self._strict and (len(parts) != len(self._wanted) or not parts):
            return False
        for kind, name in self._wanted.items():
            if kind not in parts:
                return False
            if kind in self._defaults:
                if parts[kind] is not None:
                    return False
            elif name is not None and parts[kind] != name:
                return False
        return True
