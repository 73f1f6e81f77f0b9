"""Confluent's REST API as an ASGI application: paths, parameters and bodies in, JSON out.

Owns the form of requests and answers, and the limits of a body. Never decides: registry.py does. What Confluent's
registry leaves out of an answer because it is empty, is left out here, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kbroker.schema_registry.drafts import Request as SchemaRequest
from kbroker.schema_registry.errors import Refusal, RegistryError
from kbroker.schema_registry.records import CONFIG_FIELDS, Json, Reference, Version, guid_of
from kbroker.schema_registry.registry import Registry
from kbroker.schema_registry.shard import LATEST
from kbroker.schema_registry.subjects import ANY_CONTEXT, beside, parse

MOST_BODY: Final = 2 * 1024 * 1024
"""The most bytes of a body: `_schemas` takes records of one MiB, and a schema in JSON is escaped."""
BODY_S: Final = 10.0
"""How many seconds a body may take to arrive."""
_MEDIA: Final = "application/vnd.schemaregistry.v1+json"
_TAKEN: Final = (
    "",
    _MEDIA,
    "application/vnd.schemaregistry+json",
    "application/json",
    "application/octet-stream",
)
_MOST_SCHEMAS: Final = 1_000
"""How many schemas a list has without a limit, and at most."""
_MOST: Final = 2**31 - 1
log = logging.getLogger(__name__)

Endpoint = Callable[[Registry, Request], Awaitable[Any]]


class Refused(Exception):  # noqa: N818 - an outcome
    """A request of HTTP that is none of the API."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


# -- what requests contain


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _number(text: str, name: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = _MOST + 1
    if not -_MOST <= number <= _MOST:
        raise Refused(404, f"HTTP 404 Not Found: {name} is no number of 32 bits")
    return number


def _version(text: str) -> int:
    """Return a version's number, or LATEST."""
    if text.strip().lower() == "latest":
        return LATEST
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number != LATEST and not 1 <= number <= _MOST:
        raise Refusal.INVALID_VERSION(text)
    return number


def _page(request: Request, found: list[Any], most: int = _MOST) -> list[Any]:
    """Return the part of a list that `offset` and `limit` name; a limit that is none is the greatest."""
    offset = max(_number(request.query_params.get("offset", "0"), "offset"), 0)
    limit = _number(request.query_params.get("limit", "-1"), "limit")
    return found[offset : offset + (limit if 0 < limit <= most else most)]


async def _body(request: Request) -> dict[str, Any]:
    """Return a body's JSON object."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in _TAKEN:
        raise Refused(415, "HTTP 415 Unsupported Media Type")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BODY:
                    raise Refused(413, f"A body has at most {MOST_BODY} bytes")
    except TimeoutError:
        raise Refused(408, f"The body did not arrive within {BODY_S:g} s") from None
    try:
        found = json.loads(bytes(body)) if body.strip() else None
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refused(422, "The body is to be a JSON object")
    return found


def _field(found: Json, name: str, kind: type | tuple[type, ...], default: Any) -> Any:
    value = found.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise Refused(400, f"{name} has a value of another kind")
    return value


async def _schema(request: Request) -> SchemaRequest:
    """Return the schema in a body."""
    found = await _body(request)
    references = tuple(
        Reference(_field(each, "name", str, ""), _field(each, "subject", str, ""), _field(each, "version", int, LATEST))
        for each in _field(found, "references", list, [])
        if isinstance(each, dict)
    )
    return SchemaRequest(
        _field(found, "schema", str, ""),
        _field(found, "schemaType", str, "AVRO"),
        references,
        _field(found, "metadata", dict, None),
        _field(found, "ruleSet", dict, None),
        _field(found, "version", int, 0),
        _field(found, "id", int, -1),
    )


# -- what answers contain


def _of_version(version: Version, schema: str | None = None) -> dict[str, Any]:
    """Return a version as it is listed; `schema` is its text in another form."""
    content = version.content
    found: dict[str, Any] = {"subject": version.subject, "version": version.version, "id": version.id}
    found |= {"guid": guid_of(content.digest()), **content.as_json()}
    found["schemaType"] = content.schema_type
    if schema is not None:
        found["schema"] = schema
    if version.deleted:
        found["deleted"] = True
    return found


async def _formatted(registry: Registry, request: Request, version: Version) -> dict[str, Any]:
    found = _of_version(version, await registry.formatted(version, request.query_params.get("format", "")))
    if request.query_params.get("referenceFormat") == "qualified" and parse(version.subject).context != ".":
        found["references"] = [
            each._replace(subject=beside(version.subject, each.subject))._asdict()
            for each in version.content.references
        ]
    return found


def _config(config: Json, level: str = "compatibilityLevel") -> dict[str, Any]:
    """Return a config; a change of one names the level otherwise than a question for it."""
    return {level if name == "compatibilityLevel" else name: value for name, value in config.items()}


# -- endpoints


async def _nothing(_registry: Registry, _request: Request) -> Any:
    return {}


async def _subjects(registry: Registry, request: Request) -> Any:
    prefix = request.query_params.get("subjectPrefix", ANY_CONTEXT)
    deleted, only = _flag(request, "deleted"), _flag(request, "deletedOnly")
    return _page(request, await registry.subjects(prefix, deleted=deleted or only, deleted_only=only))


async def _look_up(registry: Registry, request: Request) -> Any:
    wanted = await _schema(request)
    normalize, deleted = _flag(request, "normalize"), _flag(request, "deleted")
    version = await registry.look_up(request.path_params["subject"], wanted, normalize=normalize, deleted=deleted)
    return await _formatted(registry, request, version)


async def _delete_subject(registry: Registry, request: Request) -> Any:
    return await registry.delete_subject(request.path_params["subject"], permanent=_flag(request, "permanent"))


async def _versions(registry: Registry, request: Request) -> Any:
    found = await registry.versions(
        request.path_params["subject"],
        deleted=_flag(request, "deleted"),
        deleted_only=_flag(request, "deletedOnly"),
        negative=_flag(request, "deletedAsNegative"),
    )
    return _page(request, found)


async def _register(registry: Registry, request: Request) -> Any:
    wanted = await _schema(request)
    subject, normalize, force = request.path_params["subject"], _flag(request, "normalize"), _flag(request, "force")
    version = await registry.register(subject, wanted, normalize=normalize, force=force)
    found = await _formatted(registry, request, version)
    del found["subject"]
    return found


async def _one_version(registry: Registry, request: Request) -> Version:
    number = _version(request.path_params["version"])
    return await registry.version(request.path_params["subject"], number, deleted=_flag(request, "deleted"))


async def _get_version(registry: Registry, request: Request) -> Any:
    return await _formatted(registry, request, await _one_version(registry, request))


async def _get_version_schema(registry: Registry, request: Request) -> Any:
    return Text(await registry.formatted(await _one_version(registry, request), request.query_params.get("format", "")))


async def _referenced_by(registry: Registry, request: Request) -> Any:
    number = _version(request.path_params["version"])
    deleted = _flag(request, "deleted")
    found = await registry.referenced_by(request.path_params["subject"], number, deleted=deleted)
    return _page(request, found, _MOST_SCHEMAS)


async def _delete_version(registry: Registry, request: Request) -> Any:
    number = _version(request.path_params["version"])
    return await registry.delete_version(request.path_params["subject"], number, permanent=_flag(request, "permanent"))


async def _schemas(registry: Registry, request: Request) -> Any:
    query = request.query_params
    found = await registry.schemas(
        query.get("subjectPrefix", ""),
        deleted=_flag(request, "deleted"),
        latest_only=_flag(request, "latestOnly"),
        rule_type=query.get("ruleType", ""),
    )
    return [_of_version(each) for each in _page(request, found, _MOST_SCHEMAS)]


async def _by_id(registry: Registry, request: Request) -> Any:
    subject = request.query_params.get("subject")
    version = await registry.by_id(_number(request.path_params["id"], "id"), subject)
    found = await _formatted(registry, request, version)
    del found["id"]
    if subject is None:
        del found["subject"], found["version"]
    if _flag(request, "fetchMaxId"):
        found["maxId"] = await registry.max_id(subject)
    return found


async def _schema_of_id(registry: Registry, request: Request) -> Any:
    version = await registry.by_id(_number(request.path_params["id"], "id"), request.query_params.get("subject"))
    return Text(await registry.formatted(version, request.query_params.get("format", "")))


async def _versions_of_id(registry: Registry, request: Request) -> Any:
    found = await _found_by_id(registry, request)
    return _page(request, [{"subject": each.subject, "version": each.version} for each in found])


async def _subjects_of_id(registry: Registry, request: Request) -> Any:
    return _page(request, [each.subject for each in await _found_by_id(registry, request)])


async def _found_by_id(registry: Registry, request: Request) -> list[Version]:
    number, subject = _number(request.path_params["id"], "id"), request.query_params.get("subject")
    return await registry.versions_of_id(number, subject, deleted=_flag(request, "deleted"))


async def _types(_registry: Registry, _request: Request) -> Any:
    return ["JSON", "PROTOBUF", "AVRO"]


async def _compare(registry: Registry, request: Request) -> Any:
    number = _version(request.path_params["version"]) if "version" in request.path_params else None
    wanted, verbose = await _schema(request), _flag(request, "verbose")
    try:
        reasons = await registry.compare(
            request.path_params["subject"], number, wanted, normalize=_flag(request, "normalize")
        )
    except RegistryError as error:
        if not verbose or error.code != 42201:
            raise
        reasons = [error.message]
    return {"is_compatible": not reasons} | ({"messages": list(reasons)} if verbose else {})


async def _get_config(registry: Registry, request: Request) -> Any:
    in_scope = _flag(request, "defaultToGlobal")
    return _config(await registry.config(request.path_params.get("subject", ""), in_scope=in_scope))


async def _change_config(registry: Registry, request: Request) -> Any:
    found = await _body(request)
    if "compatibility" in found:
        found["compatibilityLevel"] = found.pop("compatibility")
    changes: dict[str, Any] = {name: found[name] for name in CONFIG_FIELDS if name in found}
    config = await registry.change_config(request.path_params.get("subject", ""), changes)
    return _config(config, "compatibility")


async def _delete_config(registry: Registry, request: Request) -> Any:
    return _config(await registry.delete_config(request.path_params.get("subject", "")))


async def _get_mode(registry: Registry, request: Request) -> Any:
    in_scope = _flag(request, "defaultToGlobal")
    return {"mode": await registry.mode(request.path_params.get("subject", ""), in_scope=in_scope)}


async def _set_mode(registry: Registry, request: Request) -> Any:
    mode = _field(await _body(request), "mode", str, None)
    await registry.set_mode(request.path_params.get("subject", ""), mode, force=_flag(request, "force"))
    return {"mode": mode}


async def _delete_mode(registry: Registry, request: Request) -> Any:
    recursive = _flag(request, "recursive")
    mode = await registry.delete_mode(request.path_params.get("subject", ""), recursive=recursive)
    return {} if mode is None else {"mode": mode}


async def _contexts(registry: Registry, request: Request) -> Any:
    return _page(request, await registry.contexts(request.query_params.get("contextPrefix", "")))


async def _delete_context(registry: Registry, request: Request) -> Any:
    await registry.delete_context(request.path_params["context"])
    return None


class Text(str):
    """A schema's text, which is the whole answer."""

    __slots__ = ()


ENDPOINTS: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("GET", "/schemas/ids/{id}", _by_id),
    ("GET", "/schemas/ids/{id}/schema", _schema_of_id),
    ("GET", "/schemas/ids/{id}/subjects", _subjects_of_id),
    ("GET", "/schemas/ids/{id}/versions", _versions_of_id),
    ("GET", "/schemas/types", _types),
    ("GET", "/schemas", _schemas),
    ("GET", "/subjects", _subjects),
    ("POST", "/subjects/{subject}", _look_up),
    ("DELETE", "/subjects/{subject}", _delete_subject),
    ("GET", "/subjects/{subject}/versions", _versions),
    ("POST", "/subjects/{subject}/versions", _register),
    ("GET", "/subjects/{subject}/versions/{version}", _get_version),
    ("DELETE", "/subjects/{subject}/versions/{version}", _delete_version),
    ("GET", "/subjects/{subject}/versions/{version}/schema", _get_version_schema),
    ("GET", "/subjects/{subject}/versions/{version}/referencedby", _referenced_by),
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


class Application:
    """The API of a registry. `about` are the answers of /v1/metadata, by the last part of their path."""

    def __init__(self, registry: Registry, about: Mapping[str, Any]) -> None:
        self._registry = registry
        self._routes: dict[int, list[tuple[list[str], dict[str, Endpoint]]]] = {}
        for method, path, endpoint in ENDPOINTS:
            self._add(method, path, endpoint)
        for name, answer in about.items():
            self._add("GET", f"/v1/metadata/{name}", _telling(answer))

    def _add(self, method: str, path: str, endpoint: Endpoint) -> None:
        parts = _parts(path.encode())
        of_length = self._routes.setdefault(len(parts), [])
        for known, methods in of_length:
            if known == parts:
                methods[method] = endpoint
                return
        of_length.append((parts, {method: endpoint}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            answer = await self._endpoint(scope)(self._registry, request)
            response = _response(answer)
        except RegistryError as error:
            response = _error(error.status, error.code, error.message)
        except Refused as error:
            response = _error(error.status, error.status, error.text)
        except ClientDisconnect:
            return
        except Exception as error:
            log.exception("%s %s failed", scope["method"], scope["path"])
            response = _error(500, 500, f"{type(error).__name__}: {error}")
        await response(scope, receive, send)

    def _endpoint(self, scope: Scope) -> Endpoint:
        """Return what answers a request, and set its parameters; raises Refused."""
        # Names in a path may contain slashes, which are percent-encoded, so the path is split before it is decoded.
        parts = _parts(scope["raw_path"].partition(b"?")[0])
        for known, methods in self._routes.get(len(parts), ()):
            if all(ours == theirs or ours.startswith("{") for ours, theirs in zip(known, parts, strict=True)):
                method = "GET" if scope["method"] == "HEAD" else scope["method"]
                if method not in methods:
                    raise Refused(405, "HTTP 405 Method Not Allowed")
                scope["path_params"] = {
                    ours[1:-1]: theirs for ours, theirs in zip(known, parts, strict=True) if ours.startswith("{")
                }
                return methods[method]
        raise Refused(404, "HTTP 404 Not Found")


def _parts(path: bytes) -> list[str]:
    return [unquote(part) for part in path.decode("latin-1").strip("/").split("/")]


def _telling(answer: Any) -> Endpoint:
    async def tell(_registry: Registry, _request: Request) -> Any:
        return answer

    return tell


def _response(answer: Any) -> Response:
    if answer is None:
        return Response(status_code=204)
    body = answer.encode() if isinstance(answer, Text) else json.dumps(answer, ensure_ascii=False).encode()
    return Response(body, media_type=_MEDIA)


def _error(status: int, code: int, message: str) -> Response:
    # A body that was not read to its end is not read: the connection closes.
    headers = {"connection": "close"} if status in (408, 413, 415) else None
    return Response(json.dumps({"error_code": code, "message": message}).encode(), status, headers, _MEDIA)
