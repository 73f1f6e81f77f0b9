"""The evaluation of access control lists: whether a principal may do something (Apache Kafka's StandardAuthorizer).

Owns the decision, the cache of decisions, and their log under Kafka's name `kafka.authorizer.logger`;
handlers/authorized/audit.py logs changes by administrators. Never changes an ACL. Does not know the request:
handlers/authorized/ does.

1. Super users are allowed everything.
2. An ACL applies if it covers the resource (by its literal name, `*` or a prefix), and names the principal or User:*,
   and the host or *. If an applicable ACL denies the operation, the request is denied.
3. Otherwise, if an applicable ACL allows the operation, the request is allowed.
4. Otherwise the request is denied, unless no ACL covers the resource and `allow.everyone.if.no.acl.found` is set.

The look-up uses the resource's name, and the beginnings of the name that are as long as an existing prefix. So the cost
of a look-up does not depend on the number of ACLs. Decisions are cached until the ACLs change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Final

from kbroker.security.authorizer.acls import (
    ANY_USER,
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acls,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
)
from kbroker.security.authorizer.hosts import covers
from kbroker.security.principal import Principal, printable

log = logging.getLogger("kafka.authorizer.logger")
"""Kafka's own logger for decisions: denials at INFO, permissions at DEBUG."""


def logs_allowed() -> bool:
    """Whether allowed operations are logged."""
    return log.isEnabledFor(logging.DEBUG)


def _log(level: int, outcome: str, principal: Principal, host: str, operation: Operation, pattern: Pattern) -> None:
    log.log(
        level, "Principal = %s is %s operation = %s from host = %s on resource = %s",
        printable(str(principal)), outcome, operation.name, host, printable(str(pattern)),
    )  # fmt: skip


REMEMBERED: Final = 4096
"""The maximum number of cached decisions about one principal from one host. At this number, the cache is cleared."""
REMEMBERED_NAME: Final = 256
"""Decisions about names with more characters are not cached, which limits the cache to about 1 MB."""
REMEMBERED_RIGHTS: Final = 4096
"""The maximum number of cached pairs of principal and host; live connections keep their own `Rights`."""
_IMPLIES_DESCRIBE: Final = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
)
_IMPLIES_DESCRIBE_CONFIGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL})
_ALLOWED_BY: Final = {
    each: _IMPLIES_DESCRIBE
    if each is Operation.DESCRIBE
    else _IMPLIES_DESCRIBE_CONFIGS
    if each is Operation.DESCRIBE_CONFIGS
    else frozenset({each, Operation.ALL})
    for each in Operation
}
_NAMED_BY_NO_ACL: Final = "hardcode"


class Authorizer:
    """The current ACLs, and decisions according to them."""

    def __init__(self, super_users: Collection[Principal] = (), *, allow_if_no_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allow_if_no_acl = allow_if_no_acl
        self._lengths: dict[ResourceType, tuple[int, ...]] = {}
        self._rights: dict[tuple[Principal, str], Rights] = {}
        self._by_principal: dict[ResourceType, dict[str, list[tuple[Pattern, Entry]]]] = {}
        self._listeners: list[Callable[[], None]] = []
        self.acls: Acls = {}
        self.logs_allowed = True
        """Whether allowed operations may be logged.

        The dispatcher sets this from the log level.
        """

    def replace(self, acls: Acls) -> None:
        """Use these ACLs from now on; earlier decisions are no longer valid."""
        lengths: dict[ResourceType, set[int]] = {}
        for pattern in acls:
            if pattern.pattern_type is PatternType.PREFIXED:
                lengths.setdefault(pattern.resource_type, set()).add(len(pattern.name))
        # Set the lengths before the ACLs: `Rights` in another thread would cache decisions by new ACLs and old lengths.
        self._lengths = {kind: tuple(sorted(each)) for kind, each in lengths.items()}
        self.acls = acls
        self._by_principal.clear()
        for listener in self._listeners:
            listener()

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever decisions may have changed."""
        self._listeners.append(listener)

    def rights_of(self, principal: Principal, host: str) -> Rights:
        """Return the rights of a principal from a host. These rights always use the current ACLs."""
        rights = self._rights.get((principal, host))
        if rights is None:
            if len(self._rights) >= REMEMBERED_RIGHTS:
                self._rights.clear()
            rights = self._rights[principal, host] = Rights(self, principal, host)
        return rights

    def decide(self, principal: Principal, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """Whether the ACLs allow an operation of a principal from a host."""
        if principal in self._super_users:
            return True
        full_name, allowing = str(principal), _ALLOWED_BY[operation]
        allowed, is_covered = False, False
        for entries in self._covering(kind, name):
            is_covered = True
            for entry in entries:
                if entry.principal not in (full_name, ANY_USER) or not covers(entry.host, host):
                    continue
                if entry.permission is Permission.DENY:
                    if entry.operation in (operation, Operation.ALL):
                        return False
                elif entry.operation in allowing:
                    allowed = True
        return allowed or (self._allow_if_no_acl and not is_covered)

    def _covering(self, kind: ResourceType, name: str) -> Iterator[frozenset[Entry]]:
        acls = self.acls
        names = (name,) if name == WILDCARD else (name, WILDCARD)
        for each in names:
            if (entries := acls.get(Pattern(kind, each))) is not None:
                yield entries
        for length in self._lengths.get(kind, ()):
            if length > len(name):
                break
            if (entries := acls.get(Pattern(kind, name[:length], PatternType.PREFIXED))) is not None:
                yield entries

    def _about(self, kind: ResourceType) -> dict[str, list[tuple[Pattern, Entry]]]:
        """Return the ACLs of a type by principal. They are grouped once after a change, not for each request."""
        about = self._by_principal.get(kind)
        if about is None:
            about = self._by_principal[kind] = {}
            for pattern, entries in self.acls.items():
                if pattern.resource_type is kind:
                    for entry in entries:
                        about.setdefault(entry.principal, []).append((pattern, entry))
        return about

    def decide_by_type(self, principal: Principal, host: str, operation: Operation, kind: ResourceType) -> bool:
        """Whether a principal may perform an operation on at least one resource of a type (KIP-679)."""
        if self.decide(principal, host, operation, kind, _NAMED_BY_NO_ACL):
            return True
        found: dict[tuple[Permission, PatternType], set[str]] = {
            (permission, pattern): set()
            for permission in (Permission.ALLOW, Permission.DENY)
            for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
        }
        wanted = (operation, Operation.ALL)
        for full_name in (str(principal), ANY_USER):
            for pattern, entry in self._about(kind).get(full_name, ()):
                if entry.operation in wanted and covers(entry.host, host):
                    found[entry.permission, pattern.pattern_type].add(pattern.name)
        denied, denied_prefixes = (found[Permission.DENY, each] for each in (PatternType.LITERAL, PatternType.PREFIXED))
        if WILDCARD in denied:
            return False
        allowed, prefixes = (found[Permission.ALLOW, each] for each in (PatternType.LITERAL, PatternType.PREFIXED))
        if WILDCARD in allowed:
            return True
        lengths = sorted({len(each) for each in denied_prefixes})

        def is_dominated(name: str) -> bool:
            return any(name[:length] in denied_prefixes for length in lengths if length <= len(name))

        return any(not is_dominated(each) for each in (*(allowed - denied), *prefixes))


class Rights:
    """The rights of a principal from a host. Caches decisions while the ACLs stay the same."""

    __slots__ = ("_acls", "_authorizer", "_decided", "_readable", "_readable_by", "host", "principal")

    def __init__(self, authorizer: Authorizer, principal: Principal, host: str) -> None:
        self._authorizer = authorizer
        self._acls: Acls | None = None
        self._decided: dict[tuple[Operation, ResourceType, str | None], bool] = {}
        self._readable: set[str] = set()
        self._readable_by: Acls | None = None
        self.principal = principal
        self.host = host

    def may(self, operation: Operation, kind: ResourceType, name: str, *, logs: bool = True) -> bool:
        """Whether an operation on a resource is allowed; logs a denial if `logs`."""
        allowed = self._known((operation, kind, name))
        if not allowed:
            if logs:
                _log(logging.INFO, "Denied", self.principal, self.host, operation, Pattern(kind, name))
        elif logs_allowed():
            _log(logging.DEBUG, "Allowed", self.principal, self.host, operation, Pattern(kind, name))
        return allowed

    def may_read(self, topic: str) -> bool:
        """Whether a topic's records may be read. Each fetch calls this method, so it is much faster than `may`."""
        authorizer = self._authorizer
        if topic in self._readable and self._readable_by is authorizer.acls and not authorizer.logs_allowed:
            return True
        if not self.may(Operation.READ, ResourceType.TOPIC, topic):
            return False
        if self._readable_by is not authorizer.acls or len(self._readable) >= REMEMBERED:
            self._readable_by = authorizer.acls
            self._readable.clear()
        if len(topic) <= REMEMBERED_NAME:
            self._readable.add(topic)
        return True

    def may_with_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether an operation is allowed on any resource of a type."""
        return self._known((operation, kind, None))

    def on_cluster(self, operation: Operation, *, logs: bool = True) -> bool:
        """Whether an operation on the cluster is allowed."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME, logs=logs)

    def operations(self, kind: ResourceType, name: str) -> int:
        """Return the allowed operations on a resource as a bit set of their codes; log nothing."""
        return sum(1 << each for each in OPERATIONS[kind] if self._known((each, kind, name)))

    def _known(self, key: tuple[Operation, ResourceType, str | None]) -> bool:
        if self._acls is not self._authorizer.acls:
            self._acls = self._authorizer.acls
            self._decided.clear()
        allowed = self._decided.get(key)
        if allowed is None:
            if len(self._decided) >= REMEMBERED:
                self._decided.clear()
            operation, kind, name = key
            if name is None:
                allowed = self._authorizer.decide_by_type(self.principal, self.host, operation, kind)
            else:
                allowed = self._authorizer.decide(self.principal, self.host, operation, kind, name)
            if name is None or len(name) <= REMEMBERED_NAME:
                self._decided[key] = allowed
        return allowed
