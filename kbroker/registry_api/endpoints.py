"""The endpoints of Confluent's REST API: for each method and path, the calls to the registry.

Owns the table of paths, and the parameters of each path. Never decides: schema_registry/registry.py does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from starlette.requests import Request

from kbroker.registry_api.access import Access, Needs, denied
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
from kbroker.schema_registry.subjects import ANY_CONTEXT, beside, parse, qualified_context
from kbroker.security.authorizer.acls import Operation

Endpoint = Callable[[Registry, Request], Awaitable[Any]]


async def _nothing(_registry: Registry, _request: Request) -> Any:
    return {}


async def _subjects(registry: Registry, request: Request) -> Any:
    prefix = _prefix(request, ANY_CONTEXT)
    deleted, only = flag(request, "deleted"), flag(request, "deletedOnly")
    found = await registry.subjects(prefix, deleted=deleted or only, deleted_only=only)
    return page(request, await _access(request).kept(Operation.DESCRIBE, found, str))


def _access(request: Request) -> Access:
    access: Access = request.scope["access"]
    return access


async def _wanted(request: Request, found: Json) -> SchemaRequest:
    """Return the schema in a body. Raises RegistryError if the client may not read a reference.

    A client that registers or compares a schema can read its references, so it needs the right to read them.
    """
    wanted, access = schema_in(found), _access(request)
    if access.is_checked:
        subjects = [beside(request.path_params["subject"], each.subject) for each in wanted.references]
        if len(await access.kept(Operation.READ, subjects, str)) < len(subjects):
            for each in subjects:
                access.require(((Operation.READ,),), each)
    return wanted


def _prefix(request: Request, default: str) -> str:
    """Return the prefix of subject names in a request.

    For a path below /contexts/C, the prefix includes the context C.
    """
    context = request.scope["context"]
    if context is None:
        return first(request, "subjectPrefix", default)
    prefix = first(request, "subjectPrefix")
    return prefix if prefix.startswith((":.", ANY_CONTEXT)) else context + prefix


def _subject(request: Request) -> str:
    """Return a subject in a query; within /contexts/C the subject is in that context."""
    subject = first(request, "subject")
    return subject if subject.startswith((":.", ANY_CONTEXT)) else (request.scope["context"] or "") + subject


async def _look_up(registry: Registry, request: Request) -> Any:
    wanted = await _wanted(request, await body(request))
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
        await _wanted(request, found),
        add_tags=_tags(found, "schemaTagsToAdd"),
        remove_tags=_tags(found, "schemaTagsToRemove"),
        keep_tags=field(found, "propagateSchemaTags", bool, False),
    )
    subject, normalize, force = request.path_params["subject"], flag(request, "normalize"), flag(request, "force")
    version = await registry.register(subject, wanted, normalize=normalize, force=force)
    answer = await _registered(registry, request, version)
    if wanted.schema_type == "PROTOBUF" and is_serialized(wanted.schema):
        # The client confluent-kafka passes this text to its deserializer, which reads only descriptors.
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
    """Return a version in the format that the request specifies, with the tags that the request names."""
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
    access = _access(request)
    found = await registry.schemas(
        _prefix(request, ""),
        end,
        deleted=flag(request, "deleted"),
        latest_only=flag(request, "latestOnly"),
        rule_type=first(request, "ruleType"),
        aliases=flag(request, "aliases"),
        shows=partial(access.may, Operation.READ),
    )
    return (of_version(version) | ({"aliases": aliases} if aliases else {}) for version, aliases in found[begin:end])


async def _by_id(registry: Registry, request: Request) -> Any:
    version = await _version_of_id(registry, request)
    found = await _formatted(registry, request, version)
    del found["id"]
    if flag(request, "fetchMaxId"):
        found["maxId"] = await registry.max_id(version.subject)
    return found


async def _version_of_id(registry: Registry, request: Request) -> Version:
    """Return a version with the requested schema id. The version is of a subject that the client may read."""
    version = await registry.by_id(number(request.path_params["id"], "id"), _subject(request))
    access = _access(request)
    if access.may(Operation.READ, version.subject):
        return version
    found = await access.readable(await _same(registry, version), _subject_of)
    if found is None:
        raise denied(Operation.READ)
    return found


async def _same(registry: Registry, version: Version) -> list[Version]:
    """Return the versions that have the same id in the version's context."""
    context = qualified_context(parse(version.subject).context)
    return await registry.versions_of_id(version.id, context, deleted=True)


def _subject_of(version: Version) -> str:
    return version.subject


async def _schema_of_id(registry: Registry, request: Request) -> Any:
    version = await _version_of_id(registry, request)
    return Text(await registry.formatted(version, first(request, "format")))


async def _versions_of_id(registry: Registry, request: Request) -> Any:
    found = await _found_by_id(registry, request)
    return page(request, [{"subject": each.subject, "version": each.version} for each in found])


async def _subjects_of_id(registry: Registry, request: Request) -> Any:
    return page(request, [each.subject for each in await _found_by_id(registry, request)])


async def _found_by_id(registry: Registry, request: Request) -> list[Version]:
    wanted = number(request.path_params["id"], "id")
    found = await registry.versions_of_id(wanted, _subject(request), deleted=flag(request, "deleted"))
    shown = await _access(request).kept(Operation.DESCRIBE, found, _subject_of)
    if found and not shown:
        raise denied(Operation.DESCRIBE)
    return shown


async def _version_of_guid(registry: Registry, request: Request) -> Version:
    """Return a version that has a GUID, from a subject that the client may read."""
    guid, access = request.path_params["guid"], _access(request)
    version = await registry.by_guid(guid)
    if access.may(Operation.READ, version.subject):
        return version
    for context, schema_id in await registry.ids_of_guid(guid):
        among = await registry.versions_of_id(schema_id, qualified_context(context), deleted=True)
        if (found := await access.readable(among, _subject_of)) is not None:
            return found
    raise denied(Operation.READ)


async def _by_guid(registry: Registry, request: Request) -> Any:
    found = await _formatted(registry, request, await _version_of_guid(registry, request))
    del found["id"], found["subject"], found["version"]
    return found


async def _ids_of_guid(registry: Registry, request: Request) -> Any:
    found = await registry.ids_of_guid(request.path_params["guid"])
    if found and _access(request).is_checked:
        await _version_of_guid(registry, request)
    return [{"context": context, "id": each} for context, each in found]


async def _types(_registry: Registry, _request: Request) -> Any:
    return ["JSON", "PROTOBUF", "AVRO"]


async def _compare(registry: Registry, request: Request) -> Any:
    against = version_number(request.path_params["version"]) if "version" in request.path_params else None
    wanted, verbose = await _wanted(request, await body(request)), flag(request, "verbose")
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
    subject = request.path_params.get("subject", "")
    if changes.get("alias"):  # else a client could redirect a subject to a subject that it is not allowed to configure
        _access(request).require(_SET, beside(subject, changes["alias"]))
    config = await registry.change_config(subject, changes)
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


OPEN: Final[Needs] = ()
"""No required operations: every client may use the endpoint, or the endpoint itself hides data from the client."""
_LIST: Final = ((Operation.DESCRIBE,),)
_READ: Final = ((Operation.READ,),)
_LOOK_UP: Final = ((Operation.READ, Operation.WRITE),)
_WRITE: Final = ((Operation.WRITE,),)
_REWRITE: Final = ((Operation.WRITE,), (Operation.READ,))
_DELETE: Final = ((Operation.DELETE,),)
_ASK: Final = ((Operation.DESCRIBE_CONFIGS,),)
_SET: Final = ((Operation.ALTER_CONFIGS,),)
ENDPOINTS: Final[tuple[tuple[str, str, Endpoint, Needs], ...]] = (
    ("GET", "/schemas/ids/{id}", _by_id, OPEN),
    ("GET", "/schemas/ids/{id}/schema", _schema_of_id, OPEN),
    ("GET", "/schemas/ids/{id}/subjects", _subjects_of_id, OPEN),
    ("GET", "/schemas/ids/{id}/versions", _versions_of_id, OPEN),
    ("GET", "/schemas/guids/{guid}", _by_guid, OPEN),
    ("GET", "/schemas/guids/{guid}/ids", _ids_of_guid, OPEN),
    ("GET", "/schemas/types", _types, OPEN),
    ("GET", "/schemas", _schemas, OPEN),
    ("GET", "/subjects", _subjects, OPEN),
    ("POST", "/subjects/{subject}", _look_up, _LOOK_UP),
    ("DELETE", "/subjects/{subject}", _delete_subject, _DELETE),
    ("GET", "/subjects/{subject}/metadata", _latest_with, _READ),
    ("GET", "/subjects/{subject}/versions", _versions, _LIST),
    ("POST", "/subjects/{subject}/versions", _register, _WRITE),
    ("GET", "/subjects/{subject}/versions/{version}", _get_version, _READ),
    ("DELETE", "/subjects/{subject}/versions/{version}", _delete_version, _DELETE),
    ("GET", "/subjects/{subject}/versions/{version}/schema", _get_version_schema, _READ),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", _referenced_by, _READ),
    ("POST", "/subjects/{subject}/versions/{version}/tags", _change_tags, _REWRITE),
    ("POST", "/compatibility/subjects/{subject}/versions", _compare, _WRITE),
    ("POST", "/compatibility/subjects/{subject}/versions/{version}", _compare, _WRITE),
    ("GET", "/config", _get_config, _ASK),
    ("PUT", "/config", _change_config, _SET),
    ("DELETE", "/config", _delete_config, _SET),
    ("GET", "/config/{subject}", _get_config, _ASK),
    ("PUT", "/config/{subject}", _change_config, _SET),
    ("DELETE", "/config/{subject}", _delete_config, _SET),
    ("GET", "/mode", _get_mode, _ASK),
    ("PUT", "/mode", _set_mode, _SET),
    ("DELETE", "/mode", _delete_mode, _SET),
    ("GET", "/mode/{subject}", _get_mode, _ASK),
    ("PUT", "/mode/{subject}", _set_mode, _SET),
    ("DELETE", "/mode/{subject}", _delete_mode, _SET),
    ("GET", "/contexts", _contexts, _ASK),
    ("DELETE", "/contexts/{context}", _delete_context, _SET),
    ("GET", "/", _nothing, OPEN),
    ("POST", "/", _nothing, OPEN),
)
"""Method, path and function of each endpoint, and the operations that it needs on the subject in its path."""
