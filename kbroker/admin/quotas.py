"""Quotas of users, client ids and addresses: listing and changing them. Never prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from kbroker.admin.errors import AdminError, check_code
from kbroker.admin.own_request import ask_any
from kbroker.protocol.messages.clients import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntity,
    AlteredEntry,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    OpData,
)
from kbroker.quota.configured import (
    CLIENT_ID,
    CONNECTION,
    CONSUMER,
    EXACT,
    IP,
    MUTATION,
    OF_DEFAULT,
    PRODUCER,
    REQUEST,
    USER,
)

_T = TypeVar("_T")
Entity = dict[str, str | None]
"""An entity, as names by entity type; the name None stands for the default entity."""
TYPES = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}
"""The types of entities, and the options that name them."""
LIMITS = {
    PRODUCER: "Bytes per second that may be produced.",
    CONSUMER: "Bytes per second that may be fetched.",
    REQUEST: "Percent of one thread's time that requests may take.",
    MUTATION: "Partitions per second that may be created and deleted.",
    CONNECTION: "New connections per second from an address.",
}
"""The limits, each with a description."""


def alter_quotas(admin: Any, entity: Entity, limits: Mapping[str, float | None]) -> None:
    """Set limits of an entity, and remove the limits whose value is None. Raises AdminError."""
    ops = [OpData(key, remove=True) if value is None else OpData(key, value) for key, value in limits.items()]
    entry = AlteredEntry([AlteredEntity(*part) for part in entity.items()], ops)
    answer = _answered(ask_any(admin, AlterClientQuotasRequest(entries=[entry]), AlterClientQuotasResponse))
    for each in answer.entries:
        check_code(each.error_code, entity_text(entity), each.error_message)


def described_quotas(admin: Any, entity: Entity, *, strict: bool) -> list[tuple[Entity, dict[str, float]]]:
    """Return the entities that have limits and contain the names of `entity`; with `strict` only `entity`.

    Raises AdminError.
    """
    components = [ComponentData(kind, OF_DEFAULT if name is None else EXACT, name) for kind, name in entity.items()]
    request = DescribeClientQuotasRequest(components=components, strict=strict)
    answer = _answered(ask_any(admin, request, DescribeClientQuotasResponse))
    check_code(answer.error_code, "cannot list limits", answer.error_message)
    found: list[tuple[Entity, dict[str, float]]] = []
    for entry in answer.entries or ():
        names = {each.entity_type: each.entity_name for each in entry.entity}
        limits = {each.key: each.value for each in entry.values}
        found.append(({kind: names[kind] for kind in TYPES if kind in names}, limits))
    return sorted(found, key=lambda each: [(kind, name or "") for kind, name in each[0].items()])


def entity_text(entity: Entity) -> str:
    """Return the text of an entity for people."""
    return ", ".join(f"default {kind}" if name is None else f"{kind} {name}" for kind, name in entity.items())


def number_text(value: float) -> str:
    """Return the text of a limit, without a fraction if it is an integer."""
    return str(int(value)) if value.is_integer() else str(value)


def _answered(answer: _T | None) -> _T:
    if answer is None:
        raise AdminError("this broker does not support quotas")
    return answer
