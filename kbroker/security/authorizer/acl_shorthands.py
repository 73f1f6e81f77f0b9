"""Converts the options of kafka-acls to ACLs and filters.

Owns the meaning of --producer, --consumer and --idempotent, and the rules about combining options. Never reads a
command line, and never stores an ACL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.security.authorizer.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)

RESOURCES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
"""The options that name resources, spelled as Python names."""
_PRODUCES: Final = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
_CONSUMES: Final = (Operation.READ, Operation.DESCRIBE)
_IDEMPOTENT: Final = (ResourceType.CLUSTER, CLUSTER_NAME, Operation.IDEMPOTENT_WRITE)
_OPERATIONS: Final = {each.title.lower(): each for each in Operation if each > Operation.ANY}
_Wanted = list[tuple[ResourceType, str, Operation]]


class AclOptions(NamedTuple):
    """The values of the options."""

    resources: tuple[tuple[ResourceType, str], ...]
    pattern: PatternType
    principals: tuple[tuple[Permission, str], ...]
    hosts: tuple[tuple[Permission, str], ...]
    operations: tuple[Operation, ...]
    producer: bool
    consumer: bool
    idempotent: bool

    def acls(self) -> list[Acl]:
        """Return the ACLs for the options. Raises ValueError if something is missing."""
        wanted = self._wanted()
        if not wanted:
            raise ValueError("say which resource: --topic, --group, --cluster, --transactional-id, ...")
        if not self.principals:
            raise ValueError("say whose: --allow-principal or --deny-principal")
        found = []
        for kind, name, operation in wanted:
            if operation is not Operation.ALL and operation not in OPERATIONS[kind]:
                known = ", ".join(each.title for each in OPERATIONS[kind])
                raise ValueError(f"there is no operation {operation.title} on {kind.title}, only {known}")
            pattern = self.pattern if kind is not ResourceType.CLUSTER else PatternType.LITERAL
            for permission, principal in self.principals:
                hosts = [host for each, host in self.hosts if each is permission] or [WILDCARD]
                found += [Acl(Pattern(kind, name, pattern), Entry(principal, h, operation, permission)) for h in hosts]
        return list(dict.fromkeys(found))

    def filters(self) -> list[AclFilter]:
        """Return the filters for the options.

        Without principals, the filters match all ACLs of the resources. Raises ValueError.
        """
        if self.principals or self.operations or self.producer or self.consumer:
            return [
                AclFilter(pattern.resource_type, pattern.name, self.pattern, *entry) for pattern, entry in self.acls()
            ]
        return [AclFilter(kind, name, self.pattern) for kind, name in self.resources]

    def _wanted(self) -> _Wanted:
        also = [_IDEMPOTENT] if self.idempotent else []
        if not (self.producer or self.consumer):
            return [
                (kind, name, each) for kind, name in self.resources for each in self.operations or (Operation.ALL,)
            ] + also
        if self.operations:
            raise ValueError("--producer and --consumer select the operations; leave --operation out")
        topics, groups, ids = (
            [name for kind, name in self.resources if kind is wanted]
            for wanted in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        )
        if not topics or (self.consumer and not groups):
            raise ValueError("--producer needs --topic, and --consumer --topic and --group")
        found: _Wanted = []
        if self.producer:
            found += [(ResourceType.TOPIC, name, each) for name in topics for each in _PRODUCES]
            of_ids = (Operation.WRITE, Operation.DESCRIBE)
            found += [(ResourceType.TRANSACTIONAL_ID, name, each) for name in ids for each in of_ids]
        if self.consumer:
            found += [(ResourceType.TOPIC, name, each) for name in topics for each in _CONSUMES]
            found += [(ResourceType.GROUP, name, Operation.READ) for name in groups]
        return found + also


def allowed_and_denied(allow: Sequence[str], deny: Sequence[str]) -> tuple[tuple[Permission, str], ...]:
    """Return principals, or hosts, with their permissions."""
    return (*((Permission.ALLOW, each) for each in allow), *((Permission.DENY, each) for each in deny))


def check_principal(text: str) -> str:
    """Return a principal's text. Raises ValueError if it has no type."""
    if text.find(":") < 1:
        raise ValueError(f"{text!r} is not a principal like User:alice")
    return text


def operation_named(name: str) -> Operation:
    """Return an operation by its name in kafka-acls (Read, ClusterAction), in any case. Raises ValueError."""
    found = _OPERATIONS.get(name.lower())
    if found is None:
        raise ValueError(f"there is no operation {name}, only {', '.join(each.title for each in _OPERATIONS.values())}")
    return found
