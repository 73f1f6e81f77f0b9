"""Access control lists as values: resources, their patterns, entries and filters, with Kafka's codes and names.

Owns the parts of an ACL, and the matching of filters with ACLs. Never decides about permissions (authorizer.py) and
never stores an ACL.

An ACL means: PRINCIPAL from HOST is allowed (or denied) OPERATION on all resources that PATTERN covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple, TypeVar

from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode

WILDCARD: Final = "*"
"""The wildcard. As a literal name it means every resource of a type, and as a host it means every host."""
ANY_USER: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a resource of type CLUSTER."""
MOST_MATCHED: Final = 100_000
"""The maximum number of ACLs that the filters of one request may match together."""


class _Code(IntEnum):
    """A code of the protocol: 0 is UNKNOWN, 1 is ANY. ACLs do not contain these two codes."""

    # Use int's hash, because Enum's is computed in Python: each request looks up keys that contain these codes.
    __hash__ = int.__hash__

    @property
    def title(self) -> str:
        """Kafka's form of the name in ZooKeeper and in the log: TransactionalId."""
        return _title(self.name)


@cache
def _title(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


_C = TypeVar("_C", bound=_Code)


class ResourceType(_Code):
    """The type of an ACL's resource."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """The use of a pattern's name. ANY and MATCH are for filters; MATCH means any pattern that covers the name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Code):
    """An operation on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(_Code):
    """The effect of an ACL."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


def code(kind: type[_C], number: int) -> _C:
    """Return the member for a code from the wire; UNKNOWN if there is none."""
    try:
        return kind(number)
    except ValueError:
        return kind(0)


OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations on each type of resource.

A client may request the list of the operations that it is allowed (KIP-430).
"""


class Pattern(NamedTuple):
    """The resources of an ACL: either the resource with this name, or all resources whose names begin with it."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def __str__(self) -> str:
        return f"{self.resource_type.title}:{self.pattern_type.name}:{self.name}"


class Entry(NamedTuple):
    """A permission for a principal, a host and an operation. `principal` is a text such as User:alice."""

    principal: str
    host: str
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        return f"{self.principal} has {self.permission.name} permission for {self.operation.name} from {self.host}"


Acls = Mapping[Pattern, frozenset[Entry]]
"""All ACLs, by pattern; no set of entries is empty."""


class Acl(NamedTuple):
    """One ACL."""

    pattern: Pattern
    entry: Entry

    def __str__(self) -> str:
        return f"{self.entry} on {self.pattern}"


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A filter of ACLs. None and ANY match everything.

    With MATCH, `name` is a resource's name, and every pattern that covers the resource matches: the literal name, the
    wildcard, and prefixes of the name.
    """

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def covers(self, pattern: Pattern) -> bool:
        """Whether the filter matches a pattern."""
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        wanted = self.pattern_type
        if wanted not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if wanted is not PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type is PatternType.LITERAL:
            return pattern.name in (self.name, WILDCARD)
        return self.name.startswith(pattern.name)

    def meets(self, entry: Entry) -> bool:
        """Whether the filter matches an entry."""
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )

    def found(self, acls: Acls) -> Iterator[tuple[Pattern, Entry | None]]:
        """Yield the pattern and the entry of each ACL; the entry is None if the filter does not match the ACL."""
        for pattern, entries in acls.items():
            if self.covers(pattern):
                for entry in entries:
                    yield pattern, entry if self.meets(entry) else None
            else:
                yield pattern, None


async def matching(
    acls: Acls, filters: Sequence[AclFilter]
) -> tuple[list[list[Acl] | ApiError], dict[Pattern, frozenset[Entry]]]:
    """Return the matches of each filter, and all matches by pattern. The total number of matches is limited."""
    answers: list[list[Acl] | ApiError] = []
    by_pattern: dict[Pattern, set[Entry]] = {}
    left = MOST_MATCHED
    for wanted in filters:
        found: list[Acl] = []
        for pattern, entry in wanted.found(acls):
            if entry is not None and len(found) <= left:
                found.append(Acl(pattern, entry))
            await turn
        if len(found) > left:
            answers.append(ApiError(ErrorCode.POLICY_VIOLATION, "Too many ACLs are meant by one request."))
            continue
        left -= len(found)
        for acl in found:
            by_pattern.setdefault(acl.pattern, set()).add(acl.entry)
            await turn
        answers.append(found)
    return answers, await frozen(by_pattern)


async def frozen(by_pattern: Mapping[Pattern, set[Entry]]) -> dict[Pattern, frozenset[Entry]]:
    """Return sets of entries as immutable values."""
    made = {}
    for pattern, entries in by_pattern.items():
        made[pattern] = frozenset(entries)
        await turn
    return made


def added(acls: Acls, more: Mapping[Pattern, frozenset[Entry]]) -> dict[Pattern, frozenset[Entry]]:
    """Return the ACLs together with `more`."""
    changed = dict(acls)
    for pattern, entries in more.items():
        changed[pattern] = changed.get(pattern, frozenset()) | entries
    return changed


def without(acls: Acls, removed: Mapping[Pattern, frozenset[Entry]]) -> dict[Pattern, frozenset[Entry]]:
    """Return ACLs without the ACLs in `removed`."""
    changed = dict(acls)
    for pattern, entries in removed.items():
        left = changed.pop(pattern, frozenset()) - entries
        if left:
            changed[pattern] = left
    return changed
