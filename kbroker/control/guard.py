"""The access rule: programs on this machine may send requests, but web pages must not send them through a browser.

Owns the checks of a request's headers, before its body is read. A foreign page can make a browser send requests to this
server. `Origin` and `Sec-Fetch-Site` reveal such a request. `Host` reveals it if the page's host name was changed to
resolve to this machine (DNS rebinding). Never reads paths or bodies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from kbroker.control.as_json import json_bytes
from kbroker.local_http import is_own

MAX_BODY: Final = 1024 * 1024
"""The maximum size of a body in bytes."""
_ELSEWHERE: Final = ("cross-site", "same-site")


class Guard:
    """Refuses requests that fail the checks; passes other requests to `app`. A `public` server accepts any Host."""

    def __init__(self, app: ASGIApp, *, public: bool) -> None:
        self._app = app
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = refusal(scope["headers"], public=self._public) if scope["type"] == "http" else None
        if why is None:
            await self._app(scope, receive, send)
            return
        status, text = why
        body = json_bytes({"error": text})
        # The body of the request is not read, so the connection must be closed.
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})


def refusal(headers: Iterable[tuple[bytes, bytes]], *, public: bool) -> tuple[int, str] | None:
    """Return the status and text of a refusal because of the headers (names in lower case), or None."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1").strip())
    hosts = found.get("host", [])
    if len(hosts) != 1:
        return 400, "a request has one Host"
    if not public and not is_own(hosts[0]):
        return 421, f"Host must be an address or localhost, not {hosts[0][:100]!r}"
    for origin in found.get("origin", []):
        if origin.lower() != f"http://{hosts[0]}".lower():
            return 403, f"a page of {origin[:100]!r} may not send this request"
    if any(each.lower() in _ELSEWHERE for each in found.get("sec-fetch-site", [])):
        return 403, "a page of another site may not send this request"
    lengths = found.get("content-length", [])
    if any(not each.isdecimal() or int(each[:20]) > MAX_BODY for each in lengths):
        return 413, f"a body has at most {MAX_BODY} bytes"
    return None
