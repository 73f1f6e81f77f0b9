"""The rights of a client at a broker's registry, according to the broker's ACLs.

Owns the mapping from a subject to the resource of an ACL, and the refusal. The resource of a subject is the topic in
the subject's name: the name without a final `-key` or `-value` and without its context. For a context alone, and for
requests about no subject, the resource is the cluster. Without an authorizer everything is allowed. security/authorizer
evaluates the ACLs. All checks run in the server's thread. Each request has `Rights` of its own, not shared with the
broker's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from starlette.types import Scope

from kbroker.registry_api.logins import USER
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.subjects import parse
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.security.authorizer.authorizer import Authorizer, Rights
from kbroker.security.principal import ANONYMOUS, Principal
from kbroker.security.principal import USER as USER_KIND

_SUFFIXES: Final = ("-key", "-value")
_ON_CLUSTER: Final = {Operation.READ: Operation.DESCRIBE, Operation.WRITE: Operation.ALTER,
                      Operation.DELETE: Operation.ALTER}  # fmt: skip
"""The operations on the cluster that replace the operations on a topic."""
_SLICE: Final = 200
_MAPPED: Final = "::ffff:"
T = TypeVar("T")
Needs = Sequence[Sequence[Operation]]
"""The operations on a subject that an endpoint needs: at least one operation of each group."""


def topic_of(subject: str) -> str:
    """Return the topic whose ACLs apply to a subject; "" for a context."""
    name = parse(subject).name
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name != suffix:
            return name.removesuffix(suffix)
    return name


class Access:
    """The operations that the client of one request may perform; without `rights`, all operations."""

    def __init__(self, rights: Rights | None) -> None:
        self._rights = rights

    @classmethod
    def of(cls, scope: Scope, authorizer: Authorizer | None) -> Access:
        """Return the access of a request's user, or of User:ANONYMOUS if no user has logged in."""
        if authorizer is None:
            return cls(None)
        name = scope.get(USER)
        host = (scope.get("client") or ("",))[0].removeprefix(_MAPPED)
        return cls(Rights(authorizer, ANONYMOUS if name is None else Principal(USER_KIND, name), host))

    @property
    def is_checked(self) -> bool:
        """Whether clients have limited rights, so that an operation can be refused."""
        return self._rights is not None

    def may(self, operation: Operation, subject: str, *, logs: bool = False) -> bool:
        """Whether an operation on a subject, or on a context, is allowed."""
        if self._rights is None:
            return True
        topic = topic_of(subject)
        if not topic:
            return self._rights.on_cluster(_ON_CLUSTER.get(operation, operation), logs=logs)
        return self._rights.may(operation, ResourceType.TOPIC, topic, logs=logs)

    def require(self, needs: Needs, subject: str) -> None:
        """Raise RegistryError if an operation on a subject is not allowed."""
        for group in needs:
            if not any(self.may(each, subject) for each in group):
                self.may(group[0], subject, logs=True)
                raise denied(group[0], subject)

    async def kept(self, operation: Operation, found: list[T], subject_of: Callable[[T], str]) -> list[T]:
        """Return the elements on whose subjects the operation is allowed."""
        if self._rights is None:
            return found
        kept = []
        for number, each in enumerate(found):
            if self.may(operation, subject_of(each)):
                kept.append(each)
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        return kept

    async def readable(self, found: Iterable[T], subject_of: Callable[[T], str]) -> T | None:
        """Return the first element whose subject the client may read, or None."""
        for number, each in enumerate(found):
            if self.may(Operation.READ, subject_of(each)):
                return each
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        return None


def denied(operation: Operation, subject: str = "") -> RegistryError:
    """Return the refusal of an operation on a subject, or on the server if `subject` is empty."""
    name = operation.name.title().replace("_", "")
    where = f"Subject: {subject}" if subject else "this server"
    return Refusal.DENIED(f"User is denied operation {name} on {where}")
