"""The settings of authorization: authorizer.class.name, and the authorizers' own.

Owns these settings, two of which are no keys of a broker (Kafka's KafkaConfig does not know them either). Never decides
about permissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kbroker.config.model import ConfigError

CLASS: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
OF_AUTHORIZERS: Final = frozenset({SUPER_USERS, ALLOW_EVERYONE})
"""Settings that Kafka's authorizers read, and KafkaConfig does not know."""
STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OF_ZOOKEEPER: Final = "kafka.security.authorizer.AclAuthorizer"


class Authorization(NamedTuple):
    """The super users, as TYPE:NAME, and whether everybody is allowed what no ACL covers."""

    super_users: tuple[str, ...]
    allow_if_no_acl: bool


def authorization(name: str, settings: Mapping[str, str], *, in_cluster: bool) -> Authorization | None:
    """Read the settings of an authorizer with class `name`; None without an authorizer.

    Raises ConfigError for settings that are invalid or have no effect.
    """
    if not name:
        idle = [each for each in sorted(OF_AUTHORIZERS) if settings.get(each, "").strip()]
        if idle:
            raise ConfigError(f"{', '.join(idle)}: without {CLASS} every client may do everything; set it, too")
        return None
    expected = OF_ZOOKEEPER if in_cluster else STANDARD
    if name != expected:
        where = "in a cluster on ZooKeeper" if in_cluster else "on a node that is alone"
        raise ConfigError(f"{CLASS} {name} is not known: {where} it is {expected}")
    users = tuple(each.strip() for each in settings.get(SUPER_USERS, "").split(";") if each.strip())
    for user in users:
        if user.find(":") < 1:
            raise ConfigError(f"{SUPER_USERS} has {user!r}, which is not a principal like User:alice")
    allow = settings.get(ALLOW_EVERYONE, "").strip().lower() or "false"
    if allow not in ("true", "false"):
        raise ConfigError(f"{ALLOW_EVERYONE} is {allow}, which is neither true nor false")
    return Authorization(users, allow == "true")
