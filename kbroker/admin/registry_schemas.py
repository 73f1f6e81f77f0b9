"""The schemas of a registry by id, for reading and writing framed keys and values.

Owns the cache, in bounded memory, and the resolution of references. The schema of an id never changes, so it is cached.
Failures (an unknown id, or a registry that does not answer) are cached for some seconds. Never registers a schema.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from kbroker.admin.errors import AdminError, Unreachable
from kbroker.admin.schemas import Refused, SchemaRegistry, Unknown
from kbroker.extras import how_to_install
from kbroker.schema_registry.formats import framing
from kbroker.schema_registry.formats.common import InvalidSchema, Schema
from kbroker.schema_registry.formats.parsing import parse

MAGIC: Final = b"\0"
"""The first byte of Confluent's framing. The schema id, in four bytes, and the value follow."""
_MOST: Final = 500
_MOST_REFERENCES: Final = 1_000
_ASK_AGAIN_S: Final = 10.0


class Unusable(AdminError):  # noqa: N818 - what it says of the schema
    """A schema of the registry that this module cannot parse."""


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """The address of a registry, which can be sent to another process: its URL with a login, and its CA's file."""

    url: str = field(repr=False)
    ca: str | None = None

    def schemas(self) -> RegistrySchemas:
        """Return the registry's schemas. Raises AdminError if the URL or the file cannot be used."""
        return RegistrySchemas(SchemaRegistry(self.url, self.ca))


class RegistrySchemas:
    """The schemas of one registry. The methods block, so call them in a thread."""

    def __init__(self, registry: SchemaRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[int | str, Schema] = OrderedDict()
        self._failed: OrderedDict[int | str, tuple[float, AdminError]] = OrderedDict()
        self._silent: tuple[float, AdminError] = (0.0, AdminError())
        """The time until which no request is sent after a request without an answer, and the error of that request."""

    def of_id(self, number: int) -> Schema:
        """Return the schema of an id. Raises AdminError if the id is unknown, or if the schema cannot be used."""
        return self._kept(number, "ids")

    def of_token(self, token: bytes) -> Schema | str:
        """Return the schema whose id begins a framed value or header, or the reason why there is no schema.

        Raises AdminError if the registry does not answer, or refuses the login. In these cases, the bytes may still be
        correct.
        """
        fault = framing.fault_of(token)
        if fault is not None:
            return fault
        guid = framing.guid_of(token)
        try:
            if guid is not None:
                return self._kept(str(UUID(bytes=guid)), "guids")
            return self.of_id(int.from_bytes(token[1:]))
        except (Refused, Unusable) as error:
            what = f"id {int.from_bytes(token[1:])}" if guid is None else f"GUID {UUID(bytes=guid)}"
            return f"{what}: {error}"

    def latest(self, subject: str) -> Schema | str:
        """Return the latest schema of a subject, or the reason why that schema is unusable or missing.

        Raises AdminError.
        """
        try:
            return self._parsed(self.registry.ask("GET", "subjects", subject, "versions", "latest"))
        except Unknown:
            return f"the registry has no subject {subject}"
        except Unusable as error:
            return str(error)

    def check(self) -> None:
        """Raise AdminError if the address does not answer, or is not a schema registry."""
        found = self.registry.ask("GET", "schemas", "types")
        if not isinstance(found, list) or "AVRO" not in found:
            raise AdminError(f"{self.registry.url} is no schema registry")

    def _kept(self, name: int | str, kind: str) -> Schema:
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
                return known
            until, failure = max(self._failed.get(name, (0.0, AdminError())), self._silent, key=lambda each: each[0])
            if self._clock() < until:
                raise type(failure)(str(failure))
        try:
            found = self._parsed(self.registry.ask("GET", "schemas", kind, name))
        except AdminError as error:
            noted = self._clock() + _ASK_AGAIN_S, error.with_traceback(None)
            if isinstance(error, Unreachable):  # without this, a page of records would wait once for each id
                self._silent = noted
            else:
                self._keep(self._failed, name, noted)
            raise
        self._keep(self._known, name, found)
        return found

    def framed(self, subject: str, version: int | str, text: str) -> bytes:
        """Encode a JSON value with a version of a subject; return the framed bytes. Raises AdminError, InvalidValue."""
        told = self.registry.ask("GET", "subjects", subject, "versions", version)
        number: int = _field(told, "id", int)
        return MAGIC + number.to_bytes(4, "big") + self.of_id(number).data_of(text)

    def _keep(self, where: OrderedDict[int | str, Any], name: int | str, what: Any) -> None:
        with self._lock:
            where[name] = what
            while len(where) > _MOST:
                where.popitem(last=False)

    def _parsed(self, told: Any) -> Schema:
        kind = told.get("schemaType", "AVRO") if isinstance(told, dict) else ""
        references: dict[str, str] = {}
        try:
            self._add_references(told, references, set())
            return parse(kind, _field(told, "schema", str), references, is_new=False)
        except ImportError:
            raise AdminError(f"schemas of a registry need more: {how_to_install('registry')}") from None
        except RecursionError:
            raise Unusable("a schema's references are nested too deeply") from None
        except InvalidSchema as error:
            raise Unusable(str(error)) from None

    def _add_references(self, told: Any, found: dict[str, str], within: set[tuple[str, int]]) -> None:
        """Add the texts of the schemas that a schema references.

        Each text follows the texts that it references itself.
        """
        for each in (told.get("references") if isinstance(told, dict) else None) or ():
            name, at = _field(each, "name", str), (_field(each, "subject", str), _field(each, "version", int))
            if name in found or at in within:
                continue
            if len(within) >= _MOST_REFERENCES:
                raise Unusable(f"a schema refers to more than {_MOST_REFERENCES:,} other schemas")
            within.add(at)
            inner = self.registry.ask("GET", "subjects", at[0], "versions", at[1], deleted=True)
            self._add_references(inner, found, within)
            found[name] = _field(inner, "schema", str)


def _field(told: Any, name: str, kind: type[Any]) -> Any:
    value = told.get(name) if isinstance(told, dict) else None
    if not isinstance(value, kind):
        raise AdminError(f"the registry's answer has no {name}: is it a schema registry?")
    return value


def framed_id(data: bytes) -> int | None:
    """Return the schema id from Confluent's framing; None if the bytes have no framing."""
    return int.from_bytes(data[1:5], "big") if len(data) >= 5 and data[:1] == MAGIC else None
