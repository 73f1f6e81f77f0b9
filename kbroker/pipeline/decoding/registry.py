"""The operations of a schema registry that decoding needs, and the schemas that each process caches.

Owns the retries while a registry does not answer a running job. The caller of a job passes the registry
(`Registry`); this package never opens a connection of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from kbroker.pipeline.errors import PipelineError
from kbroker.schema_registry.formats import framing
from kbroker.schema_registry.formats.common import Schema

Result = TypeVar("Result")

PATIENCE_S: Final = 60.0
"""The time in seconds for which a running job waits for a registry that does not answer."""
_PAUSE_S: Final = 0.5
_MOST_KEPT: Final = 1_000
PARTS: Final = ("key", "value")
HEADERS: Final = {"key": framing.KEY_HEADER.decode(), "value": framing.VALUE_HEADER.decode()}
"""The headers that name a schema, by the part of the record."""


class Schemas(Protocol):
    """The schemas of a registry. `kbroker.admin.registry_schemas.RegistrySchemas` implements this."""

    def of_token(self, token: bytes) -> Schema | str: ...
    def latest(self, subject: str) -> Schema | str: ...
    def check(self) -> None: ...


class Registry(Hashable, Protocol):
    """The address of a registry, in a form that Spark can send to its tasks. `RegistryPlace` implements this."""

    def schemas(self) -> Schemas: ...


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema in a form that Spark can send to its tasks."""

    schema_type: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, schema: Schema) -> SchemaText:
        """Return the texts of a schema."""
        return cls(schema.schema_type, schema.text, tuple(schema.references.items()))

    def parsed(self) -> Schema:
        """Return the schema. Raises InvalidSchema."""
        from kbroker.schema_registry.formats.parsing import parse

        return parse(self.schema_type, self.text, dict(self.references), is_new=False)


@dataclass(slots=True)
class Lookup:
    """The schemas that records name, in one process. Requests each schema from the registry only once."""

    schemas: Schemas
    patience_s: float = PATIENCE_S
    sleep: Callable[[float], Any] = field(default=time.sleep)
    _known: dict[bytes, Schema] = field(default_factory=dict)

    def of_token(self, token: bytes) -> Schema | str:
        """Return a schema, or the reason for its absence. Raises PipelineError if the registry does not answer."""
        known = self._known.get(token)
        if known is not None:
            return known
        found = self._asked(token)
        if not isinstance(found, str):
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[token] = found
        return found

    def _asked(self, token: bytes) -> Schema | str:
        return patiently(lambda: self.schemas.of_token(token), self.patience_s, self.sleep)


def require_registry(registry: Registry) -> None:
    """Raise PipelineError if the registry does not answer, or if the address is not that of a registry."""
    patiently(patiently(registry.schemas, 0.0).check, 0.0)


def patiently(call: Callable[[], Result], patience_s: float, sleep: Callable[[float], Any] = time.sleep) -> Result:
    """Retry a call while it fails, for at most `patience_s` seconds. Then raise PipelineError with the last reason."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except Exception as err:
            if time.monotonic() >= deadline:
                raise PipelineError(f"the schema registry: {err}") from err
        sleep(_PAUSE_S)


_KEPT: dict[str, dict[Hashable, Any]] = {}


def kept(kind: str, key: Hashable, make: Callable[[], Result]) -> Result:
    """Return this process's cached object for a key, created if it is new. It outlives Spark's tasks."""
    known = _KEPT.setdefault(kind, {})
    if key not in known:
        if len(known) >= _MOST_KEPT:
            known.clear()
        known[key] = make()
    found: Result = known[key]
    return found


def lookup_of(registry: Registry, patience_s: float) -> Lookup:
    """Return this process's lookup of a registry. Raises PipelineError."""
    return kept("lookup", (registry, patience_s), lambda: Lookup(patiently(registry.schemas, 0.0), patience_s))
