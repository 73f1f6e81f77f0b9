"""Confluent's REST API as an ASGI application: paths in, JSON out.

Owns the mapping from a path to its endpoint, and the form of errors. endpoints.py has the endpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from kbroker.registry_api.access import Access, Needs
from kbroker.registry_api.endpoints import ENDPOINTS, OPEN, Endpoint
from kbroker.registry_api.requests import MEDIA, NOTE, Bodies, Refused, Text, of_version
from kbroker.schema_registry.errors import RegistryError
from kbroker.schema_registry.registry import Registry
from kbroker.schema_registry.subjects import ANY_CONTEXT, DEFAULT_CONTEXT, context_of, qualified_context
from kbroker.security.authorizer.authorizer import Authorizer

_LONG: Final = 1_000
"""The maximum number of names or numbers in a list that is sent in one piece."""
BY_ID: Final = "GET /schemas/ids/{id}"
"""The endpoint whose answer is often known without waiting.

Its speed matters, because each client requests each id that it finds in its records.
"""
_TARGET: Final = re.compile(rb"/schemas/ids/([0-9]{1,9})")
_PIECE: Final = 64 * 1024
_in_json: Final = json.JSONEncoder(ensure_ascii=False).encode
log = logging.getLogger(__name__)


class Application:
    """The API of a registry.

    `about` has the answers of /v1/metadata, by the last part of their path. With an `authorizer`, a client may perform
    only the operations that its ACLs allow.
    """

    def __init__(self, registry: Registry, about: Mapping[str, Any], authorizer: Authorizer | None = None) -> None:
        self._registry = registry
        self._authorizer = authorizer
        self._bodies = Bodies()
        self._routes: dict[tuple[int, str], list[tuple[list[str], dict[str, tuple[Endpoint, Needs, str]]]]] = {}
        """The endpoints, by the number of parts and the first part of their path."""
        for method, path, endpoint, needs in ENDPOINTS:
            self._add(method, path, endpoint, needs)
        for name, answer in about.items():
            self._add("GET", f"/v1/metadata/{name}", _telling(answer), OPEN)

    def _add(self, method: str, path: str, endpoint: Endpoint, needs: Needs) -> None:
        parts = _parts(path.encode())
        beginning_so = self._routes.setdefault((len(parts), parts[0]), [])
        for known, methods in beginning_so:
            if known == parts:
                methods[method] = endpoint, needs, path
                return
        beginning_so.append((parts, {method: (endpoint, needs, path)}))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        try:
            _refuse_foreign_pages(scope)
            with self._bodies(scope):
                endpoint, needs = self._endpoint(scope)
                await self._allow(scope, needs)
                answer = await endpoint(self._registry, Request(scope, receive))
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
        with contextlib.suppress(ClientDisconnect):
            await response(scope, receive, send)

    def at_once(self, target: bytes) -> bytes | None:
        """Return the JSON that answers a GET of a target for every client; None if it is not known immediately."""
        found = None if self._authorizer is not None else _TARGET.fullmatch(target)
        version = None if found is None else self._registry.by_id_at_once(int(found[1]))
        if version is None:
            return None
        answer = of_version(version)
        del answer["id"]
        return _in_json(answer).encode()

    async def _allow(self, scope: Scope, needs: Needs) -> None:
        """Store the client's rights in the scope. Raises RegistryError if the endpoint needs further rights."""
        scope["access"] = access = Access.of(scope, self._authorizer)
        if not access.is_checked or not needs:
            return
        subject = scope["path_params"].get("subject", "")
        access.require(needs, subject)
        if subject and (stands_for := await self._registry.resolved(subject)) != subject:
            access.require(needs, stands_for)

    def _endpoint(self, scope: Scope) -> tuple[Endpoint, Needs]:
        """Return a request's endpoint and the operations that it needs, and set the parameters. Raises Refused."""
        # Names in a path may contain percent-encoded slashes, so the path is split before it is decoded.
        parts, scope["context"] = _in_context(_parts(scope["raw_path"].partition(b"?")[0]))
        for known, methods in self._routes.get((len(parts), parts[0]), ()):
            if all(ours == theirs or ours.startswith("{") for ours, theirs in zip(known, parts, strict=True)):
                method = "GET" if scope["method"] == "HEAD" else scope["method"]
                if method not in methods:
                    raise Refused(405, "HTTP 405 Method Not Allowed")
                scope["path_params"] = {
                    ours[1:-1]: theirs for ours, theirs in zip(known, parts, strict=True) if ours.startswith("{")
                }
                endpoint, needs, path = methods[method]
                if NOTE in scope:
                    scope[NOTE].append(f"{method} {path}")
                return endpoint, needs
        raise Refused(404, "HTTP 404 Not Found")


def _parts(path: bytes) -> list[str]:
    return [unquote(part) for part in path.decode("latin-1").strip("/").split("/")]


def _refuse_foreign_pages(scope: Scope) -> None:
    """Raise Refused if a page of another site made a browser send the request: the registry may need no login."""
    found: dict[bytes, bytes] = dict(scope["headers"])
    origin, host = found.get(b"origin"), found.get(b"host", b"")
    if origin is not None and origin.lower() not in (b"http://" + host.lower(), b"https://" + host.lower()):
        raise Refused(403, "HTTP 403 Forbidden: a page of another site may not send this request")
    if found.get(b"sec-fetch-site", b"").lower() in (b"cross-site", b"same-site"):
        raise Refused(403, "HTTP 403 Forbidden: a page of another site may not send this request")


def _in_context(parts: list[str]) -> tuple[list[str], str | None]:
    """Return a path without /contexts/C, and C in the form that precedes a subject (Confluent: ContextFilter).

    Returns None as context if the path does not begin with /contexts/C. Raises Refused.
    """
    if parts[0] != "contexts" or len(parts) == 1:
        return parts, None
    try:
        context = qualified_context(context_of(parts[1]))
    except ValueError as error:
        raise Refused(400, str(error)) from None
    rest = parts[2:]
    if not rest:
        return ["contexts", context or f":{DEFAULT_CONTEXT}:"], context
    if rest[0] in ("config", "mode"):
        rest = [rest[0], rest[1] if len(rest) > 1 else "", *rest[2:]]
        at = 1
    else:
        at = rest.index("subjects") + 1 if "subjects" in rest else len(rest)
    if at < len(rest) and not rest[at].startswith((":.", ANY_CONTEXT)):
        rest[at] = context + rest[at]
    if rest[0] in ("config", "mode") and not rest[1]:
        rest = rest[:1]  # the default context means the global config or mode
    return rest, context


def _telling(answer: Any) -> Endpoint:
    async def tell(_registry: Registry, _request: Request) -> Any:
        return answer

    return tell


def _response(answer: Any) -> Response:
    if answer is None:
        return Response(status_code=204)
    if isinstance(answer, Iterator) or (isinstance(answer, list) and len(answer) > _LONG):
        return StreamingResponse(_pieces(answer), media_type=MEDIA)
    body = answer.encode() if isinstance(answer, Text) else _in_json(answer).encode()
    return Response(body, media_type=MEDIA)


async def _pieces(elements: Iterable[Any]) -> AsyncIterator[bytes]:
    """Yield the JSON of a long list; encode each element separately, because the encoder blocks other threads."""
    piece, before = bytearray(b"["), b""
    for each in elements:
        piece += before + _in_json(each).encode()
        before = b", "
        if len(piece) > _PIECE:
            yield bytes(piece)
            piece.clear()
            await asyncio.sleep(0)
    yield bytes(piece) + b"]"


def _error(status: int, code: int, message: str) -> Response:
    # With these statuses the rest of the body may be unread, so the connection closes.
    headers = {"connection": "close"} if status in (403, 408, 413, 415, 503) else None
    return Response(json.dumps({"error_code": code, "message": message}).encode(), status, headers, MEDIA)
