"""The common parts of guards: the rights of a client, and the refusal of a request or of elements of its list.

Owns the ways to refuse. Knows no API: the other modules of this package, such as required_rights.py, know the APIs.

A guard takes a handler and returns a handler. Refused elements of a list have no effect, because the handler never
receives them. The handler receives a copy of the request with the other elements. The guard merges the handler's
response with the refusals, in the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final

from kbroker.handlers.mirrored_errors import answers_of, failed
from kbroker.handlers.registry import Handler, RequestContext
from kbroker.long_work import awaited, turn
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.security.authorizer.acls import Operation, ResourceType
from kbroker.security.authorizer.authorizer import Rights

Guard = Callable[[Handler, type[Any]], Handler]
"""Takes a handler and the class of its responses."""
Verdict = Callable[[RequestContext, Rights, Any], ErrorCode | int]
"""Returns the error for an element of a list, or 0 if the element is allowed."""
REFUSALS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


def rights_of(ctx: RequestContext) -> Rights:
    """Return the rights of the principal of a request's connection."""
    rights: Rights | None = ctx.rights
    if rights is None or rights.principal is not ctx.principal:
        authorizer = ctx.services.authorizer
        assert authorizer is not None  # guards exist only with an authorizer
        rights = ctx.rights = authorizer.rights_of(ctx.principal, ctx.client_host.removeprefix("/"))
    return rights


def refuse_all(kind: ResourceType, *, default_message: bool = False) -> ApiError:
    """Return the error that refuses a complete request.

    With `default_message`, the error has Kafka's text for the code.
    """
    code = REFUSALS[kind]
    return ApiError(code, DEFAULT_MESSAGES.get(code) if default_message else None)


def open_to_all(handler: Handler, _response: type[Any]) -> Handler:
    """Require nothing."""
    return handler


def needs(*wanted: tuple[Operation, ResourceType, str], default_message: bool = False) -> Guard:
    """Return a guard that refuses the request if a right is missing. Rights are checked in the given order."""

    def guard(handler: Handler, _response: type[Any]) -> Handler:
        def guarded(ctx: RequestContext, request: Any) -> Any:
            rights = rights_of(ctx)
            for operation, kind, field in wanted:
                if not rights.may(operation, kind, getattr(request, field)):
                    raise refuse_all(kind, default_message=default_message)
            return handler(ctx, request)

        return guarded

    return guard


def on_cluster(operation: Operation, *also: Operation, names_right: bool = True) -> Guard:
    """Return a guard that refuses the complete request of a client without the right on the cluster.

    A right in `also` suffices too. The guard checks the rights in `also` first. With `names_right`, the error text
    names the right, if the response has a field for a text.
    """

    def guard(handler: Handler, _response: type[Any]) -> Handler:
        def guarded(ctx: RequestContext, request: Any) -> Any:
            rights = rights_of(ctx)
            if not any(rights.on_cluster(each, logs=False) for each in also) and not rights.on_cluster(operation):
                text = f"This request needs {operation.name} permission." if names_right else None
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, text)
            return handler(ctx, request)

        return guarded

    return guard


def in_turn(*guards: Guard) -> Guard:
    """Return a guard that applies these guards in this order."""

    def guard(handler: Handler, response: type[Any]) -> Handler:
        for each in reversed(guards):
            handler = each(handler, response)
        return handler

    return guard


def partly(
    field: str,
    verdict: Verdict,
    *,
    asked_anyway: bool = False,
    default_message: bool | Callable[[Any], bool] = False,
    **fields: Any,
) -> Guard:
    """Return a guard that refuses elements of the list `field` independently, with a result for each element.

    If all elements are refused, the handler is called only with `asked_anyway`, and then with an empty list.
    `default_message` states whether a refusal has Kafka's text for its error code; a function decides for each element.
    `fields` are further values of each refused element's result (mirrored_errors.py).
    """

    def guard(handler: Handler, response: type[Any]) -> Handler:
        answers = answers_of(response)

        async def guarded(ctx: RequestContext, request: Any) -> Any:
            asked = getattr(request, field) or ()
            rights = rights_of(ctx)
            codes = []
            for element in asked:
                codes.append(verdict(ctx, rights, element))
                await turn
            if not any(codes):
                return await awaited(handler(ctx, request))
            allowed = []
            for element, code in zip(asked, codes, strict=True):
                if not code:
                    allowed.append(element)
                await turn
            answer = response()
            if allowed or asked_anyway:
                answer = await awaited(handler(ctx, with_field(request, field, allowed)))
                if getattr(answer, "error_code", 0):
                    return answer
            found = getattr(answer, answers.name)
            in_order = iter(found) if len(found) == len(allowed) else None
            merged = [] if in_order is not None else list(found)
            explains = default_message if callable(default_message) else lambda _element: default_message
            for element, code in zip(asked, codes, strict=True):
                if code:
                    values = fields
                    if default_message:
                        text = DEFAULT_MESSAGES.get(ErrorCode(code)) if explains(element) else None
                        values = {"error_message": text, **fields}
                    merged.append(await failed(answers.kind, element, code, **values))
                elif in_order is not None:
                    merged.append(next(in_order))
                await turn
            setattr(answer, answers.name, merged)
            return answer

        return guarded

    return guard


def filtered(answers: str, keeps: Callable[[RequestContext, Rights, Any], bool]) -> Guard:
    """Return a guard that removes from a response's list the elements that the client must not see."""

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
    """Return a copy of a request in which a field has another value."""
    changed = copy(request)
    setattr(changed, field, value)
    return changed


def topic_right(operation: Operation, field: str = "name", *, ids_since: int | None = None) -> Verdict:
    """Check a right on the topic that an element names by name or id. An unknown id is not refused.

    From version `ids_since` on, elements have only ids; an element with an empty id is also not refused.
    """

    def verdict(ctx: RequestContext, rights: Rights, element: Any) -> int:
        name = getattr(element, field) or name_of(ctx, element)
        if not name and ids_since is not None and ctx.version >= ids_since:
            return 0
        if name is None or rights.may(operation, ResourceType.TOPIC, name):
            return 0
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    return verdict


def name_of(ctx: RequestContext, element: Any) -> str | None:
    """Return the name of an element's topic id.

    Return "" if the element has no id, and None if the topic does not exist.
    """
    topic_id = getattr(element, "topic_id", None)
    if topic_id is None or not any(topic_id):
        return ""
    return ctx.services.controller.state.topic_names.get(topic_id)
