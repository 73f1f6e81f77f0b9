"""The endpoints of Confluent's REST API: for each method and path, what is asked of the registry.

Owns the table of paths and the parameters of each. Never decides: schema_registry/registry.py does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from starlette.requests import Request

from kbroker.registry_api.requests import (
    MOST_SCHEMAS,
    Refused,
    Text,
    body,
    bounds,
    changes_in,
    field,
    first,
    flag,
    number,
    objects,
    of_config,
    of_version,
    page,
    schema_in,
    texts,
    version_number,
)
from kbroker.schema_registry.drafts import Request as SchemaRequest
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.formats.protobuf_compiler import is_serialized
from kbroker.schema_registry.formats.tags import FIELD, RECORD, Tagged
from kbroker.schema_registry.records import Json, Version
from kbroker.schema_registry.registry import Registry
from kbroker.schema_registry.subjects import ANY_CONTEXT, beside

Endpoint = Callable[[Registry, Request], Awaitable[Any]]


async def _nothing(_registry: Registry, _request: Request) -> Any:
    return {}


async def _subjects(registry: Registry, request: Request) -> Any:
    prefix = _prefix(request, ANY_CONTEXT)
    deleted, only = flag(request, "deleted"), flag(request, "deletedOnly")
    return page(request, await registry.subjects(prefix, deleted=deleted or only, deleted_only=only))


def _prefix(request: Request, default: str) -> str:
    """Return a prefix of subjects; within /contexts/C it is in that context."""
    context = request.scope["context"]
    if context is None:
        return first(request, "subjectPrefix", default)
    prefix = first(request, "subjectPrefix")
    return prefix if prefix.startswith((":.", ANY_CONTEXT)) else context + prefix


def _subject(request: Request) -> str:
    """Return a subject in a query; within /contexts/C it is in that context."""
    subject = first(request, "subject")
    return subject if subject.startswith((":.", ANY_CONTEXT)) else (request.scope["context"] or "") + subject


async def _look_up(registry: Registry, request: Request) -> Any:
    wanted = schema_in(await body(request))
    normalize, deleted = flag(request, "normalize"), flag(request, "deleted")
    version = await registry.look_up(request.path_params["subject"], wanted, normalize=normalize, deleted=deleted)
    return await _formatted(registry, request, version)


async def _latest_with(registry: Registry, request: Request) -> Any:
    query = request.query_params
    wanted = dict(zip(query.getlist("key"), query.getlist("value"), strict=False))
    version = await registry.latest_with(request.path_params["subject"], wanted, deleted=flag(request, "deleted"))
    return await _formatted(registry, request, version)


async def _delete_subject(registry: Registry, request: Request) -> Any:
    return await registry.delete_subject(request.path_params["subject"], permanent=flag(request, "permanent"))


async def _versions(registry: Registry, request: Request) -> Any:
    found = await registry.versions(
        request.path_params["subject"],
        deleted=flag(request, "deleted"),
        deleted_only=flag(request, "deletedOnly"),
        negative=flag(request, "deletedAsNegative"),
    )
    return page(request, found)


async def _register(registry: Registry, request: Request) -> Any:
    found = await body(request)
    wanted = replace(
        schema_in(found),
        add_tags=_tags(found, "schemaTagsToAdd"),
        remove_tags=_tags(found, "schemaTagsToRemove"),
        keep_tags=field(found, "propagateSchemaTags", bool, False),
    )
    subject, normalize, force = request.path_params["subject"], flag(request, "normalize"), flag(request, "force")
    version = await registry.register(subject, wanted, normalize=normalize, force=force)
    answer = await _registered(registry, request, version)
    if wanted.schema_type == "PROTOBUF" and is_serialized(wanted.schema):
        # The client of confluent-kafka keeps this text for its deserializer, which reads only descriptors.
        answer["schema"] = wanted.schema
    return answer


async def _registered(registry: Registry, request: Request, version: Version) -> dict[str, Any]:
    found = await _formatted(registry, request, version)
    del found["subject"]
    return found


def _tags(found: Json, name: str) -> tuple[Tagged, ...]:
    """Return the tags in a body: `[{"schemaEntity": {"entityPath": P, "entityType": "sr_field"}, "tags": [T]}]`."""
    tags = []
    for each in objects(found, name):
        entity = field(each, "schemaEntity", dict, {})
        path, kind = field(entity, "entityPath", str, ""), field(entity, "entityType", str, "")
        if not path or kind.lower() not in (RECORD, FIELD):
            raise Refused(400, f"{name} names no record and no field")
        tags.append(Tagged(path, kind.lower(), tuple(texts(each, "tags"))))
    return tuple(tags)


async def _change_tags(registry: Registry, request: Request) -> Any:
    number = version_number(request.path_params["version"])
    found = await body(request)
    merge = field(found, "rulesToMerge", dict, None)
    remove = texts(found, "rulesToRemove") if found.get("rulesToRemove") is not None else None
    if (merge is not None or remove is not None) and found.get("ruleSet") is not None:
        raise Refusal.INVALID_RULES("ruleSet should be omitted if specifying rulesToMerge or rulesToRemove")
    change = SchemaRequest(
        "",
        metadata=field(found, "metadata", dict, None),
        rule_set=field(found, "ruleSet", dict, None),
        version=field(found, "newVersion", int, 0),
        add_tags=_tags(found, "tagsToAdd"),
        remove_tags=_tags(found, "tagsToRemove"),
    )
    subject = request.path_params["subject"]
    version = await registry.retag(subject, number, change, merge=merge, remove=remove or ())
    return await _registered(registry, request, version)


async def _one_version(registry: Registry, request: Request) -> Version:
    number = version_number(request.path_params["version"])
    return await registry.version(request.path_params["subject"], number, deleted=flag(request, "deleted"))


async def _get_version(registry: Registry, request: Request) -> Any:
    return await _formatted(registry, request, await _one_version(registry, request))


async def _formatted(registry: Registry, request: Request, version: Version) -> dict[str, Any]:
    """Return a version in the form, and with the tags, that a request asks for."""
    found = of_version(version, await registry.formatted(version, first(request, "format")))
    if first(request, "referenceFormat") == "qualified" and version.content.references:
        found["references"] = [
            each._replace(subject=beside(version.subject, each.subject))._asdict()
            for each in version.content.references
        ]
    wanted = request.query_params.getlist("findTags")
    if wanted and (tags := await registry.tags(version, wanted)):
        found["schemaTags"] = [
            {"schemaEntity": {"entityPath": each.path, "entityType": each.kind}, "tags": list(each.tags)}
            for each in tags
        ]
    return found


async def _get_version_schema(registry: Registry, request: Request) -> Any:
    return Text(await registry.formatted(await _one_version(registry, request), first(request, "format")))


async def _referenced_by(registry: Registry, request: Request) -> Any:
    number = version_number(request.path_params["version"])
    deleted = flag(request, "deleted")
    found = await registry.referenced_by(request.path_params["subject"], number, deleted=deleted)
    return page(request, found, MOST_SCHEMAS)


async def _delete_version(registry: Registry, request: Request) -> Any:
    number = version_number(request.path_params["version"])
    return await registry.delete_version(request.path_params["subject"], number, permanent=flag(request, "permanent"))


async def _schemas(registry: Registry, request: Request) -> Any:
    begin, end = bounds(request, MOST_SCHEMAS)
    found = await registry.schemas(
        _prefix(request, ""),
        end,
        deleted=flag(request, "deleted"),
        latest_only=flag(request, "latestOnly"),
        rule_type=first(request, "ruleType"),
        aliases=flag(request, "aliases"),
    )
    return (of_version(version) | ({"aliases": aliases} if aliases else {}) for version, aliases in found[begin:end])


async def _by_id(registry: Registry, request: Request) -> Any:
    version = await registry.by_id(number(request.path_params["id"], "id"), _subject(request))
    found = await _formatted(registry, request, version)
    del found["id"]
    if flag(request, "fetchMaxId"):
        found["maxId"] = await registry.max_id(version.subject)
    return found


async def _schema_of_id(registry: Registry, request: Request) -> Any:
    version = await registry.by_id(number(request.path_params["id"], "id"), _subject(request))
    return Text(await registry.formatted(version, first(request, "format")))


async def _versions_of_id(registry: Registry, request: Request) -> Any:
    found = await _found_by_id(registry, request)
    return page(request, [{"subject": each.subject, "version": each.version} for each in found])


async def _subjects_of_id(registry: Registry, request: Request) -> Any:
    return page(request, [each.subject for each in await _found_by_id(registry, request)])


async def _found_by_id(registry: Registry, request: Request) -> list[Version]:
    wanted = number(request.path_params["id"], "id")
    return await registry.versions_of_id(wanted, _subject(request), deleted=flag(request, "deleted"))


async def _by_guid(registry: Registry, request: Request) -> Any:
    found = await _formatted(registry, request, await registry.by_guid(request.path_params["guid"]))
    del found["id"], found["subject"], found["version"]
    return found


async def _ids_of_guid(registry: Registry, request: Request) -> Any:
    found = await registry.ids_of_guid(request.path_params["guid"])
    return [{"context": context, "id": each} for context, each in found]


async def _types(_registry: Registry, _request: Request) -> Any:
    return ["JSON", "PROTOBUF", "AVRO"]


async def _compare(registry: Registry, request: Request) -> Any:
    against = version_number(request.path_params["version"]) if "version" in request.path_params else None
    wanted, verbose = schema_in(await body(request)), flag(request, "verbose")
    try:
        reasons = await registry.compare(
            request.path_params["subject"], against, wanted, normalize=flag(request, "normalize")
        )
    except RegistryError as error:
        if not verbose or error.code != 42201:
            raise
        reasons = [error.message]
    return {"is_compatible": not reasons} | ({"messages": list(reasons)} if verbose else {})


async def _get_config(registry: Registry, request: Request) -> Any:
    in_scope = flag(request, "defaultToGlobal")
    return of_config(await registry.config(request.path_params.get("subject", ""), in_scope=in_scope))


async def _change_config(registry: Registry, request: Request) -> Any:
    changes = changes_in(await body(request))
    config = await registry.change_config(request.path_params.get("subject", ""), changes)
    return of_config(config, "compatibility")


async def _delete_config(registry: Registry, request: Request) -> Any:
    return of_config(await registry.delete_config(request.path_params.get("subject", "")))


async def _get_mode(registry: Registry, request: Request) -> Any:
    in_scope = flag(request, "defaultToGlobal")
    return {"mode": await registry.mode(request.path_params.get("subject", ""), in_scope=in_scope)}


async def _set_mode(registry: Registry, request: Request) -> Any:
    mode = field(await body(request), "mode", str, None)
    await registry.set_mode(request.path_params.get("subject", ""), mode, force=flag(request, "force"))
    return {"mode": mode}


async def _delete_mode(registry: Registry, request: Request) -> Any:
    recursive = flag(request, "recursive")
    mode = await registry.delete_mode(request.path_params.get("subject", ""), recursive=recursive)
    return {} if mode is None else {"mode": mode}


async def _contexts(registry: Registry, request: Request) -> Any:
    return page(request, await registry.contexts(first(request, "contextPrefix")))


async def _delete_context(registry: Registry, request: Request) -> Any:
    await registry.delete_context(request.path_params["context"])
    return None


ENDPOINTS: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", "/schemas/ids/{id}", _by_id),
    ("GET", "/schemas/ids/{id}/schema", _schema_of_id),
    ("GET", "/schemas/ids/{id}/subjects", _subjects_of_id),
    ("GET", "/schemas/ids/{id}/versions", _versions_of_id),
    ("GET", "/schemas/guids/{guid}", _by_guid),
    ("GET", "/schemas/guids/{guid}/ids", _ids_of_guid),
    ("GET", "/schemas/types", _types),
    ("GET", "/schemas", _schemas),
    ("GET", "/subjects", _subjects),
    ("POST", "/subjects/{subject}", _look_up),
    ("DELETE", "/subjects/{subject}", _delete_subject),
    ("GET", "/subjects/{subject}/metadata", _latest_with),
    ("GET", "/subjects/{subject}/versions", _versions),
    ("POST", "/subjects/{subject}/versions", _register),
    ("GET", "/subjects/{subject}/versions/{version}", _get_version),
    ("DELETE", "/subjects/{subject}/versions/{version}", _delete_version),
    ("GET", "/subjects/{subject}/versions/{version}/schema", _get_version_schema),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", _referenced_by),
    ("POST", "/subjects/{subject}/versions/{version}/tags", _change_tags),
    ("POST", "/compatibility/subjects/{subject}/versions", _compare),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", _compare),
    ("GET", "/config", _get_config),
    ("PUT", "/config", _change_config),
    ("DELETE", "/config", _delete_config),
    ("GET", "/config/{subject}", _get_config),
    ("PUT", "/config/{subject}", _change_config),
    ("DELETE", "/config/{subject}", _delete_config),
    ("GET", "/mode", _get_mode),
    ("PUT", "/mode", _set_mode),
    ("DELETE", "/mode", _delete_mode),
    ("GET", "/mode/{subject}", _get_mode),
    ("PUT", "/mode/{subject}", _set_mode),
    ("DELETE", "/mode/{subject}", _delete_mode),
    ("GET", "/contexts", _contexts),
    ("DELETE", "/contexts/{context}", _delete_context),
    ("GET", "/", _nothing),
    ("POST", "/", _nothing),
)
"""Method, path and endpoint of all that the registry does."""
