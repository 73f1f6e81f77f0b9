"""The audit: a line in the log for each change that an administrator requests.

Owns the logger `kbroker.audit`, and the content of a line: principal, address, request, resources and outcome. Never
logs values, because configs may contain secrets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from kbroker.handlers.registry import Api, Handler, RequestContext
from kbroker.long_work import awaited
from kbroker.protocol.errors import ApiError
from kbroker.security.authorizer.acls import (
    Acl,
    Entry,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    code,
)
from kbroker.security.principal import printable

log = logging.getLogger("kbroker.audit")
NAMED: Final = 8
"""The maximum number of resources in a line."""
_LONGEST: Final = 500
"""The maximum length in characters of one resource's name in a line."""


def _names(field: str) -> Callable[[Any], Iterable[str]]:
    return lambda request: (str(each if isinstance(each, str) else each.name) for each in getattr(request, field) or ())


def _deleted_topics(request: Any) -> Iterable[str]:
    yield from request.topic_names
    for each in request.topics:
        yield each.name if each.name is not None else each.topic_id.hex()


def _resources(request: Any) -> Iterable[str]:
    return (f"type {each.resource_type} {each.resource_name}" for each in request.resources)


def _created_acls(request: Any) -> Iterable[str]:
    for each in request.creations:
        kind, pattern = code(ResourceType, each.resource_type), code(PatternType, each.resource_pattern_type)
        operation, permission = code(Operation, each.operation), code(Permission, each.permission_type)
        yield str(
            Acl(Pattern(kind, each.resource_name, pattern), Entry(each.principal, each.host, operation, permission))
        )


def _filters(request: Any) -> Iterable[str]:
    for each in request.filters:
        kind, pattern = code(ResourceType, each.resource_type_filter), code(PatternType, each.pattern_type_filter)
        operation, permission = code(Operation, each.operation), code(Permission, each.permission_type)
        yield (
            f"{kind.title}:{pattern.name}:{each.resource_name_filter} of {each.principal_filter} from "
            f"{each.host_filter}, {permission.name} {operation.name}"
        )


def _users(request: Any) -> Iterable[str]:
    return (each.name for each in (*request.deletions, *request.upsertions))


def _token(request: Any) -> Iterable[str]:
    if request.owner_principal_name:
        yield f"for {request.owner_principal_type}:{request.owner_principal_name}"
    for each in request.renewers:
        yield f"renewed by {each.principal_type}:{each.principal_name}"


def _quotas(request: Any) -> Iterable[str]:
    for entry in request.entries:
        entity = (
            f"{each.entity_type} {'<default>' if each.entity_name is None else each.entity_name}"
            for each in entry.entity[:3]
        )
        yield f"{' and '.join(entity)}: {', '.join(op.key for op in entry.ops[:5])}"


def _nothing(_request: Any) -> Iterable[str]:
    return ()


AUDITED: Final[dict[str, tuple[Callable[[Any], Iterable[str]], str]]] = {
    "CreateTopics": (_names("topics"), "topics"),
    "CreatePartitions": (_names("topics"), "results"),
    "DeleteTopics": (_deleted_topics, "responses"),
    "DeleteRecords": (_names("topics"), ""),
    "DeleteGroups": (_names("groups_names"), "results"),
    "OffsetDelete": (lambda request: (request.group_id,), ""),
    "AlterConfigs": (_resources, "responses"),
    "IncrementalAlterConfigs": (_resources, "responses"),
    "CreateAcls": (_created_acls, "results"),
    "DeleteAcls": (_filters, "filter_results"),
    "AlterUserScramCredentials": (_users, "results"),
    "CreateDelegationToken": (_token, ""),
    "RenewDelegationToken": (_nothing, ""),
    "ExpireDelegationToken": (_nothing, ""),
    "AlterClientQuotas": (_quotas, "entries"),
    "AlterReplicaLogDirs": (_nothing, ""),
    "ElectLeaders": (_nothing, ""),
    "AlterPartitionReassignments": (_names("topics"), ""),
    "UpdateFeatures": (lambda request: (each.feature for each in request.feature_updates), "results"),
}
"""For each API, the resources that a request names, and the response's list with an error code for each resource."""


def audited(api: Api, handler: Handler) -> Handler:
    """Return a handler that logs each request, if the API makes administrators' changes."""
    if api.name not in AUDITED:
        return handler
    names_of, answers = AUDITED[api.name]

    async def logged(ctx: RequestContext, request: Any) -> Any:
        # Read the names and the principal first: the handler may modify the request, and the connection may end
        # meanwhile.
        names, principal = _text(names_of(request)), ctx.principal
        try:
            answer = await awaited(handler(ctx, request))
        except ApiError as error:
            _log(ctx, principal, api, names, f"refused with {error}")
            raise
        outcome = "refused" if getattr(answer, "error_code", 0) else "done"
        results = getattr(answer, answers) if answers else ()
        failed = sum(1 for each in results if each.error_code)
        if failed:
            outcome = f"refused {failed} of {len(results)}"
        _log(ctx, principal, api, names, outcome)
        return answer

    return logged


def _text(names: Iterable[str]) -> str:
    some = list(islice(names, NAMED + 1))
    text = "; ".join(printable(each[:_LONGEST]) for each in some[:NAMED])
    return f"{text}; and more" if len(some) > NAMED else text


def _log(ctx: RequestContext, principal: Any, api: Api, names: str, outcome: str) -> None:
    host = ctx.client_host.removeprefix("/")
    log.info("%s from %s: %s%s: %s", printable(str(principal)), host, api.name, f" {names}" if names else "", outcome)
