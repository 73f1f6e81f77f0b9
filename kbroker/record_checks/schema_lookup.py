"""The questions of record checks to a schema registry. This broker's registry or a copy of `_schemas` answers them.

Owns the interface, and the answers from a registry's state. In a cluster, followed_schemas.py provides the state.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from typing import NamedTuple, Protocol

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.record_checks.followed_schemas import FollowedSchemas
from kbroker.schema_registry.drafts import resolved
from kbroker.schema_registry.errors import RegistryError
from kbroker.schema_registry.records import Content
from kbroker.schema_registry.service import RegistryService
from kbroker.schema_registry.state import State
from kbroker.schema_registry.subjects import DEFAULT_CONTEXT


class SchemaText(NamedTuple):
    """A registered schema, with the texts of all schemas that it references."""

    schema_type: str
    text: str
    references: Mapping[str, str]
    digest: str
    """A digest that is equal only for equal texts."""


class Unavailable(ApiError):  # noqa: N818 - what is the matter
    """The registry does not accept questions now; a client may retry later."""

    def __init__(self, why: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, f"The schema registry cannot be asked: {why}")


class SchemaLookup(Protocol):
    """A registry. Ids and subjects belong to the default context. Its coroutines raise Unavailable."""

    def revision(self) -> Hashable | None:
        """Return a value that differs if an answer can have changed. Return None while questions cannot be answered."""

    async def ready(self) -> None:
        """Wait until questions can be answered."""

    async def look(self) -> None:
        """Wait until the answers are based on everything that any registry acknowledged before now."""

    async def id_of(self, guid: bytes) -> int | None:
        """Return the id of the schema that has a GUID."""

    async def has(self, schema_id: int, subject: str) -> bool:
        """Whether a subject has a version with this id that is not deleted."""

    async def schema(self, schema_id: int) -> SchemaText | None:
        """Return the schema that has an id, even if its version is deleted."""


class _OfState(ABC):
    """Answers questions from a registry's state."""

    @abstractmethod
    async def _state(self) -> State:
        """Return the state. Raises Unavailable."""

    async def id_of(self, guid: bytes) -> int | None:
        held = (await self._state()).ids_of(guid)
        return next((number for context, number in held if context == DEFAULT_CONTEXT), None)

    async def has(self, schema_id: int, subject: str) -> bool:
        state = await self._state()
        newest = state.get_by_id(schema_id, subject)
        if newest is None or not newest.deleted:
            return newest is not None
        return any(each.id == schema_id for each in state.versions(subject))

    async def schema(self, schema_id: int) -> SchemaText | None:
        state = await self._state()
        found = state.get_by_id(schema_id)
        if found is None:
            return None
        try:
            references = await resolved(state, found.subject, found.content.references)
        except RegistryError:  # a reference was deleted for good
            return text_of(found.content, {})
        return text_of(found.content, references)


class LocalLookup(_OfState):
    """The registry of this broker."""

    def __init__(self, service: RegistryService) -> None:
        self._service = service

    @property
    def state(self) -> State | None:
        """The state; None while another broker leads, or while it is being loaded."""
        return self._service.state

    def revision(self) -> Hashable | None:
        return _revision(self._service.state)

    async def ready(self) -> None:
        if self._service.state is None:
            try:
                await self._service.ask(lambda _state: None)
            except RegistryError as error:
                raise Unavailable(error.message) from None

    async def look(self) -> None:
        """Wait only for the state, because it contains everything that this registry acknowledged."""
        await self.ready()

    async def _state(self) -> State:
        await self.ready()
        state = self._service.state
        if state is None:  # the leader changed, or another writer has just written
            raise Unavailable("its topic is being loaded")
        return state


class ClusterLookup(_OfState):
    """The registry of a cluster."""

    def __init__(self, schemas: FollowedSchemas) -> None:
        self._schemas = schemas

    def revision(self) -> Hashable | None:
        return _revision(self._schemas.state)

    async def ready(self) -> None:
        if self._schemas.state is None:
            await self.look()

    async def look(self) -> None:
        why = await self._schemas.look()
        if why is not None:
            raise Unavailable(why)

    async def _state(self) -> State:
        await self.ready()
        state = self._schemas.state
        if state is None:
            raise Unavailable("its topic is being loaded")
        return state


def _revision(state: State | None) -> Hashable | None:
    return None if state is None else (state, state.changes)


def text_of(content: Content, references: Mapping[str, str]) -> SchemaText:
    """Return a schema with its digest."""
    digest = hashlib.sha256(content.schema_type.encode())
    for each in (content.schema, *(part for pair in references.items() for part in pair)):
        data = each.encode()
        digest.update(len(data).to_bytes(8) + data)
    return SchemaText(content.schema_type, content.schema, references, digest.hexdigest())
