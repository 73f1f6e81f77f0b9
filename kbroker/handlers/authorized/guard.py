"""What guards have in common: whose rights a request has, whole requests refused, lists of which some is refused.

Owns the ways to refuse. Never knows an API: required_rights.py and the modules beside it do.

A guard takes a handler and returns one. What it refuses has no effect, as the handler never hears of it; the rest of a
list is handed on as a request of its own, and the two answers become one, in the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from copy import copy
from functools import partial
from typing import Any, Final

from kbroker.handlers.registry import Handler, RequestContext
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights

Guard = Callable[[Handler, type[Any]], Handler]
"""Takes a handler and the class of its answers."""
Verdict = Callable[[RequestContext, Rights, Any], ErrorCode | int]
"""Tells why an element of a list is refused; 0: it is not."""
Refuse = Callable[[RequestContext, Any, int], Coroutine[Any, Any, Any]]
"""Makes the answer for an element that is refused."""
REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def rights_of(ctx: RequestContext) -> Rights:
    """Return what whoever has authenticated on a request's connection may do."""
    rights: Rights | None = ctx.rights
    if rights is None or rights.principal is not ctx.principal:
        authorizer = ctx.services.authorizer
        assert authorizer is not None  # or there were no guards
        rights = ctx.rights = authorizer.rights_of(ctx.principal, ctx.client_host.removeprefix("/"))
    return rights


def refuse_all(kind: ResourceType) -> ApiError:
    """Return the refusal of a whole request: its code says all."""
    return ApiError(REFUSALS[kind])


def open_to_all(handler: Handler, _response: type[Any]) -> Handler:
    """Ask for nothing."""
    return handler


def needs(*wanted: tuple[Operation, ResourceType, str]) -> Guard:
    """Refuse a request whole where one of several rights is lacking, in this order; each names a field of it."""

    def guard(handler: Handler, _response: type[Any]) -> Handler:
        def guarded(ctx: RequestContext, request: Any) -> Any:
            rights = rights_of(ctx)
            for operation, kind, field in wanted:
                if not rights.may(operation, kind, getattr(request, field)):
                    raise refuse_all(kind)
            return handler(ctx, request)

        return guarded

    return guard


def on_cluster(operation: Operation, *also: Operation, says: bool = True) -> Guard:
    """Refuse a request whole without a right on the cluster; any of `also` does as well, and goes first.

    `says`: the refusal says which right, where the answer has a place for it.
    """

    def guard(handler: Handler, _response: type[Any]) -> Handler:
        def guarded(ctx: RequestContext, request: Any) -> Any:
            rights = rights_of(ctx)
            if not any(rights.on_cluster(each, tell=False) for each in also) and not rights.on_cluster(operation):
                text = f"This request needs {operation.name} permission." if says else None
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
            return handler(ctx, request)

        return guarded

    return guard


def in_turn(*guards: Guard) -> Guard:
    """Ask one guard after the other."""

    def guard(handler: Handler, response: type[Any]) -> Handler:
        for each in reversed(guards):
            handler = each(handler, response)
        return handler

    return guard


def partly(field: str, answers: str, verdict: Verdict, refuse: Refuse, *, asked_anyway: bool = False) -> Guard:
    """Refuse elements of a list, `field`, each for itself; in the answer `answers` has one for each.

    Where all are refused the handler is not asked, or `asked_anyway` for none.
    """

    def guard(handler: Handler, response: type[Any]) -> Handler:
        rest = partial(_rest, handler, response, field, answers, refuse, asked_anyway)

        async def guarded(ctx: RequestContext, request: Any) -> Any:
            asked = getattr(request, field) or ()
            rights = rights_of(ctx)
            codes = []
            for element in asked:
                codes.append(verdict(ctx, rights, element))
                await turn
            if any(codes):
                return await rest(ctx, request, asked, codes)
            return await awaited(handler(ctx, request))

        return guarded

    return guard


async def _rest(
    handler: Handler,
    response: type[Any],
    field: str,
    answers: str,
    refuse: Refuse,
    asked_anyway: bool,
    ctx: RequestContext,
    request: Any,
    asked: Sequence[Any],
    codes: Sequence[int],
) -> Any:
    """Hand on what is not refused, and return the answer with the refusals in it."""
    allowed = []
    for each, code in zip(asked, codes, strict=True):
        if not code:
            allowed.append(each)
        await turn
    answer = response()
    if allowed or asked_anyway:
        answer = await awaited(handler(ctx, with_field(request, field, allowed)))
        if getattr(answer, "error_code", 0):
            return answer
    found = getattr(answer, answers)
    in_order = iter(found) if len(found) == len(allowed) else None
    merged = [] if in_order is not None else list(found)
    for each, code in zip(asked, codes, strict=True):
        if code:
            merged.append(await refuse(ctx, each, code))
        elif in_order is not None:
            merged.append(next(in_order))
        await turn
    setattr(answer, answers, merged)
    return answer


def filtered(answers: str, keeps: Callable[[RequestContext, Rights, Any], bool]) -> Guard:
    """Leave out of an answer's list what must not be known."""

    def guard(handler: Handler, _response: type[Any]) -> Handler:
        async def guarded(ctx: RequestContext, request: Any) -> Any:
            answer = await awaited(handler(ctx, request))
            rights = rights_of(ctx)
            kept = []
            for each in getattr(answer, answers):
                if keeps(ctx, rights, each):
                    kept.append(each)
                await turn
            setattr(answer, answers, kept)
            return answer

        return guarded

    return guard


def with_field(request: Any, field: str, value: Any) -> Any:
    """Return a request with another value of a field."""
    changed = copy(request)
    setattr(changed, field, value)
    return changed


def topic_right(operation: Operation, field: str = "name") -> Verdict:
    """Ask for a right on the topic that an element names, or whose id it has; one that nobody has is not refused."""

    def verdict(ctx: RequestContext, rights: Rights, element: Any) -> int:
        name = getattr(element, field) or name_of(ctx, element)
        if name is None or rights.may(operation, ResourceType.TOPIC, name):
            return 0
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    return verdict


def name_of(ctx: RequestContext, element: Any) -> str | None:
    """Return the topic whose id an element has; "" where it has none, None where there is no such topic."""
    topic_id = getattr(element, "topic_id", None)
    if topic_id is None or not any(topic_id):
        return ""
    return ctx.services.controller.state.topic_names.get(topic_id)


def refused_partitions(
    topic: type[Any],
    partition: type[Any],
    *,
    name: str = "name",
    partitions: str = "partitions",
    index: str | None = "partition_index",
    answered: str = "partitions",
    answered_index: str = "partition_index",
    **fields: Any,
) -> Refuse:
    """Make the answer for a refused topic: the code at each of its partitions.

    `name`, `partitions` and `index` are fields of what was asked (without `index` a partition is its number),
    `answered` and `answered_index` those of the answer.
    """

    async def refuse(_ctx: RequestContext, element: Any, code: int) -> Any:
        made = []
        for each in getattr(element, partitions):
            number = each if index is None else getattr(each, index)
            made.append(partition(**{answered_index: number, "error_code": code, **fields}))
            await turn
        answer = topic(**{name: getattr(element, name), answered: made})
        if hasattr(element, "topic_id"):
            answer.topic_id = element.topic_id
        return answer

    return refuse
