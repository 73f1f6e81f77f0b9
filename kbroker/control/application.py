"""The control API as an ASGI application: one operation for each path, JSON as input and output, errors in one line.

Owns the limits on bodies (the size, and the time to arrive), the number of concurrent operations, the HTTP status for
each Python exception, and the pace at which long answers are written. Knows nothing about the work of an operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kbroker.control import changes, clock, faults, groups, requests, snapshots, topics
from kbroker.control.as_json import json_bytes
from kbroker.control.document import document, page
from kbroker.control.guard import MAX_BODY, Guard
from kbroker.control.operations import Control, Operation
from kbroker.control.values import Refused, Values, checked, parsed, queried
from kbroker.protocol.errors import ApiError
from kbroker.testing.missing import MissingError

OPERATIONS: Final = (
    *groups.OPERATIONS, *faults.OPERATIONS, *clock.OPERATIONS, *requests.OPERATIONS, *topics.OPERATIONS,
    *snapshots.OPERATIONS, *changes.OPERATIONS,
)  # fmt: skip
BODY_S: Final = 10.0
"""The seconds within which a body must arrive."""
AT_ONCE: Final = 8
"""The maximum number of concurrent operations that change something, and of concurrent operations that only read.

Further operations wait for their turn.
"""
_PAGE_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_T = TypeVar("_T")
_Endpoint = Callable[[Request], Awaitable[Response]]
log = logging.getLogger(__name__)


def application(control: Control, *, public: bool) -> Guard:
    """Return the application. A `public` application accepts any Host header."""
    changing, reading = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
    by_path: dict[str, dict[str, _Endpoint]] = {}
    for each in OPERATIONS:
        turns = reading if each.method == "GET" else changing
        by_path.setdefault(each.path, {})[each.method] = partial(_answered, control, each, turns)
    body = json_bytes(document(OPERATIONS))
    shown = page(OPERATIONS).encode()

    async def openapi(_: Request) -> Response:
        return Response(body, media_type="application/json")

    async def index(_: Request) -> Response:
        return Response(shown, media_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)

    routes = [
        Route("/", index),
        Route("/openapi.json", openapi),
        *(Route(path, partial(_by_method, endpoints), methods=[*endpoints]) for path, endpoints in by_path.items()),
    ]
    handlers: dict[Any, Any] = {HTTPException: _no_such_path, Exception: _failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), public=public)


async def _by_method(endpoints: dict[str, _Endpoint], request: Request) -> Response:
    if request.method not in endpoints:  # HEAD, which Starlette adds, is refused: its answer would be discarded
        raise HTTPException(405, headers={"Allow": ", ".join(endpoints)})
    return await endpoints[request.method](request)


async def _answered(control: Control, operation: Operation, turns: asyncio.Semaphore, request: Request) -> Response:
    try:
        values = await _values(operation, request)
        with _refusing():
            if operation.lines is not None:
                return Lines(operation.lines(control, values))
            value = None
            if operation.wait is not None:
                value = await _while_there(request.receive, operation.wait(control, values))
            async with _turn(turns, request.receive):
                body = await asyncio.to_thread(_worked, operation, control, values, value)
        return Response(body, operation.status, media_type="application/json")
    except Refused as error:
        return _error(error.status, error.text, error.code)
    except ClientDisconnect:
        return Response(status_code=400)


@contextlib.asynccontextmanager
async def _turn(turns: asyncio.Semaphore, receive: Receive) -> AsyncIterator[None]:
    """Wait for a turn, yield, and release the turn. Raises ClientDisconnect if the client disconnects first."""
    if turns.locked():
        await _while_there(receive, turns.acquire())
    else:
        await turns.acquire()
    try:
        yield
    finally:
        turns.release()


async def _while_there(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of `work`. If the client disconnects first, cancel the work and raise ClientDisconnect."""
    disconnected, working = asyncio.ensure_future(_until_disconnected(receive)), asyncio.ensure_future(work)
    try:
        await asyncio.wait({disconnected, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        disconnected.cancel()
        working.cancel()
        await asyncio.gather(disconnected, working, return_exceptions=True)


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _worked(operation: Operation, control: Control, values: Values, waited_for: Any) -> bytes:
    return json_bytes(waited_for if operation.work is None else operation.work(control, values))


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Convert exceptions to Refused, if a broker raises them for impossible requests."""
    try:
        yield
    except ApiError as error:
        raise Refused(409, str(error), error.code.name) from None
    except MissingError as error:
        raise Refused(404, str(error)) from None
    except (ValueError, TypeError, OverflowError) as error:
        log.debug("refused", exc_info=True)
        raise Refused(400, " ".join(str(error).split())) from None
    except TimeoutError:
        raise Refused(504, "the broker did not answer in time") from None
    except OSError as error:
        raise Refused(507, (error.strerror or str(error)).lower()) from None
    except RuntimeError as error:  # a stopping broker raises this
        raise Refused(503, " ".join(str(error).split())) from None


async def _values(operation: Operation, request: Request) -> Values:
    """Return the values in the path, the query and the body. Raises Refused."""
    given = queried(operation.query, request.query_params.multi_items())
    body = await _body(request)
    if operation.body is not None:
        if body and request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "the body must be JSON, with content-type: application/json")
        given |= checked(operation.body, parsed(body or b"{}"))
    elif body.strip() not in (b"", b"{}"):
        raise Refused(400, f"{operation.method} {request.url.path} has no body")
    return given | request.path_params


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    raise Refused(413, f"a body has at most {MAX_BODY} bytes")
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {BODY_S:g} s") from None
    return bytes(body)


class Lines(Response):
    """Newline-delimited JSON that continues until the values end or the reader disconnects."""

    media_type = "application/x-ndjson"

    def __init__(self, values: AsyncIterator[Any]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._values = values

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the lines until the values end or the reader disconnects. Close the connection if nobody reads."""
        del scope
        with contextlib.suppress(Exception):  # the status was already sent, so the response can only end
            await _while_there(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for value in self._values:
            line = json_bytes(value) + b"\n"
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _error(status: int, text: str, code: str | None = None) -> Response:
    # The text may contain a caller's input. Escape the text, so that it is a single line on a terminal.
    line = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    body = {"error": line} if code is None else {"error": line, "code": code}
    # If the body was not read completely, close the connection instead of reading the rest of the body.
    headers = {"connection": "close"} if status in (408, 413) else None
    return Response(json_bytes(body), status, headers, media_type="application/json")


async def _no_such_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = ", ".join(sorted({*(error.headers or {}).get("Allow", "").split(", ")} - {"HEAD"}))
        answer = _error(405, f"{request.url.path} has no {request.method}; it has {allowed}")
        answer.headers["allow"] = allowed
        return answer
    if error.status_code == 404:
        return _error(404, f"there is no {request.url.path}; there are {', '.join(_paths(OPERATIONS))}")
    return _error(error.status_code, str(error.detail))


async def _failed(_: Request, error: Exception) -> Response:
    return _error(500, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _paths(operations: Iterable[Operation]) -> list[str]:
    return list(dict.fromkeys(each.path.replace(":int", "").replace(":path", "") for each in operations))
