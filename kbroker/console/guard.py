"""Admission of a request by its headers, and the headers of every answer.

Owns the checks before a body is read. The Host must be this console's own (against DNS rebinding). No page of another
site may have caused the request (Origin, Sec-Fetch-Site). The body must be small. Also owns the refusal of changes in a
read-only console. Never reads paths, sessions or bodies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kbroker.local_http import is_own

MAX_BODY: Final = 2 * 1024 * 1024
"""The maximum size of a body in bytes. A body may contain a record or a schema."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
_ELSEWHERE: Final = ("cross-site", "same-site")
_READING: Final = ("GET", "HEAD")


class Guard:
    """Refuses requests that fail the checks; passes other requests to `app`, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, *, public: bool, scheme: str, names: frozenset[str] = frozenset()) -> None:
        """Accept the host names `names`, addresses and localhost; a `public` console accepts any name."""
        self._app = app
        self._public = public
        self._names = names
        self._scheme = scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        known = self._public or bool(self._names & _names_of(scope["headers"]))
        why = refusal(scope["method"], scope["headers"], public=known, scheme=self._scheme)
        if why is not None:
            await _refuse(*why, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_secured)


def _names_of(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[str]:
    hosts = (value.decode("latin-1").strip().lower() for name, value in headers if name == b"host")
    return frozenset(host if host.startswith("[") else host.partition(":")[0] for host in hosts)


async def _refuse(status: int, text: str, send: Send) -> None:
    body = f"{text}\n".encode()
    # The request's body is not read, so the connection must close.
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body))]
    headers += [(b"x-content-type-options", b"nosniff"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def refusal(
    method: str, headers: Iterable[tuple[bytes, bytes]], *, public: bool, scheme: str
) -> tuple[int, str] | None:
    """Return the status and text of the refusal that a request's headers require, or None.

    The names of the headers are in lower case.
    """
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1").strip())
    hosts = found.get("host", [])
    if len(hosts) != 1:
        return 400, "a request has one Host"
    if not public and not is_own(hosts[0]):
        return 421, f"Host must be an address or localhost, not {hosts[0][:100]!a}"
    sites = [each.lower() for each in found.get("sec-fetch-site", [])]
    navigates = method in _READING and found.get("sec-fetch-mode") == ["navigate"]
    if any(each in _ELSEWHERE for each in sites) and not navigates:  # a link to a page is harmless
        return 403, "a page of another site may not send this request"
    for origin in found.get("origin", []):
        if origin.lower() != f"{scheme}://{hosts[0]}".lower():
            return 403, f"a page of {origin[:100]!a} may not send this request"
    lengths = found.get("content-length", [])
    if any(not each.isdecimal() or int(each[:20]) > MAX_BODY for each in lengths):
        return 413, f"a body has at most {MAX_BODY} bytes"
    return None


async def refuse_change(request: Request) -> Response:
    """Refuse every change, because the console is read-only."""
    del request
    raise HTTPException(403, "this console is read-only")
