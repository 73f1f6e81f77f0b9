"""The APIs of client quotas (KIP-546).

DescribeClientQuotas (key 48), versions 0-1: return the quotas that match a filter (KIP-546).

AlterClientQuotas (key 49), versions 0-1: set and remove quotas, independently for each entity (KIP-546).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from functools import partial

from kbroker.coordination.partitioning import java_hash
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import each, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.clients import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntity,
    AlteredEntry,
    AlteredEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from kbroker.quota.configured import KEYS, QuotaFilter, check_value, checked_entity, revised

_Parts = dict[str, str | None]
_TYPES = 3
"""The maximum number of types in an entity."""


def _description_refused(
    _request: DescribeClientQuotasRequest, code: int, message: str | None
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


@handles(DescribeClientQuotasRequest, DescribeClientQuotasResponse, "0-1", _description_refused)
async def describe_client_quotas(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Return the quotas in effect.

    A filter may name each of the three types once, so a fourth component is an error.
    """
    components = [(each.entity_type, each.match_type, each.match) for each in request.components[:4]]
    wanted = QuotaFilter(components, strict=request.strict)
    entries = []
    for entity, values in ctx.services.controller.state.quotas.items():
        if wanted.matches(entity):
            names = [EntityData(kind, name) for kind, name in entity.parts().items()]
            entries.append(EntryData(names, [ValueData(key, value) for key, value in values.items()]))
        await turn
    return DescribeClientQuotasResponse(entries=entries)


@handles(
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    "0-1",
    mirrored(AlterClientQuotasResponse, "entries", default_message=True),
)
async def alter_client_quotas(ctx: RequestContext, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    """Alter the valid entries; the response is sent once the change is in effect."""
    answers: list[AlteredEntryData] = []
    known: dict[frozenset[tuple[str, str | None]], AlteredEntryData] = {}
    for entry in request.entries:
        parts: _Parts = {}
        for named in entry.entity:
            parts[named.entity_type] = named.entity_name
            await turn
        entity = await each(parts.items(), lambda part: AlteredEntity(*part))
        answer = AlteredEntryData(error_message=None, entity=entity)
        if len(parts) <= _TYPES:  # an entity with more types has a type that does not exist
            key = frozenset(parts.items())
            is_first = key not in known
            answer = known.setdefault(key, answer)
        else:
            is_first = True
        try:
            ops = await _ops(entry)
            if ops is None or not is_first:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_as_java(parts)}")
            await _alter(ctx, parts, ops, validate_only=request.validate_only)
        except ApiError as error:
            answer.error_code, answer.error_message = error.code, error.message
        if is_first:
            answers.append(answer)
        await turn
    return await ctx.services.in_effect(AlterClientQuotasResponse(entries=answers))


async def _ops(entry: AlteredEntry) -> dict[str, float | None] | None:
    """Return the requested changes by key, or None if a key is repeated."""
    ops: dict[str, float | None] = {}
    for op in entry.ops:
        if op.key in ops:
            return None
        ops[op.key] = None if op.remove else op.value
        await turn
    return ops


async def _alter(ctx: RequestContext, parts: _Parts, ops: Mapping[str, float | None], *, validate_only: bool) -> None:
    entity = checked_entity(parts)
    if entity.ip:
        await _check_address(entity.ip)
    changes = []
    for key, value in ops.items():
        if value is not None:
            check_value(entity, key, value)
        if key in KEYS:
            changes.append((key, value))
        await turn
    if not validate_only:
        kind, name = entity.path()
        await ctx.services.controller.change_configs(kind, name, partial(revised, ops=changes))


async def _check_address(ip: str) -> None:
    """Refuse a text that is neither an address nor a resolvable host name."""
    try:
        ipaddress.ip_address(ip)
    except ValueError:
        try:
            await asyncio.get_running_loop().getaddrinfo(ip, None)
        except (OSError, ValueError):  # ValueError: the resolver does not accept the name
            text = f"{ip} is not a valid IP or resolvable host."
            raise ApiError(ErrorCode.INVALID_REQUEST, text) from None


def _as_java(parts: _Parts) -> str:
    """Return the text by which Kafka names an entity.

    The text lists the entity's types in the order of a Java HashMap that was created for their number.
    """
    if len(parts) > _TYPES:
        return "ClientQuotaEntity"
    size = 1
    while size * 0.75 < len(parts):
        size *= 2
    in_order = sorted(parts.items(), key=lambda part: _place(part[0], size))
    return f"ClientQuotaEntity(entries={{{', '.join(f'{kind}={_or_null(name)}' for kind, name in in_order)}}})"


def _place(name: str, size: int) -> int:
    value = java_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & size - 1


def _or_null(name: str | None) -> str:
    return "null" if name is None else name
