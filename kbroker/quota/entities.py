"""The entity of a quota, and its path among the configs of users, clients and addresses.

Owns `Entity`, and its conversion to a path and back (Apache Kafka 3.9: /config/users/U/clients/C and similar). Never
knows what a quota limits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.security.sasl.user_configs import USERS, entity_name, user_of

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
DEFAULT: Final = ""
"""Stands for all without their own: no entity has an empty name."""
CLIENTS: Final = "clients"
IPS: Final = "ips"
KINDS: Final = (USERS, CLIENTS, IPS)
"""The kinds of configs that contain quotas."""
_DEFAULT_SEGMENT: Final = "<default>"


class Entity(NamedTuple):
    """A user, a client id, both, or an address. None: any; DEFAULT: all without their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> dict[str, str | None]:
        """Return the names by type as in messages, where the default is null."""
        both = ((USER, self.user), (CLIENT_ID, self.client_id), (IP, self.ip))
        return {kind: name or None for kind, name in both if name is not None}

    def path(self) -> tuple[str, str]:
        """Return the kind of configs and the name there, which is "" for the default of a kind."""
        if self.ip is not None:
            return IPS, entity_name(self.ip)
        if self.user is None:
            return CLIENTS, entity_name(self.client_id or DEFAULT)
        if self.client_id is None:
            return USERS, entity_name(self.user)
        return USERS, f"{_segment(self.user)}/{CLIENTS}/{_segment(self.client_id)}"


def entity_at(kind: str, name: str) -> Entity | None:
    """Return the entity of the configs at a path; None if no quota can be for it."""
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
