"""Login: the form, the page after it, and the texts of failures.

Answers a wrong name and a wrong password with the same text, and never redirects to another site after a login.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from kbroker.console.console import Console, audit
from kbroker.console.listing import place
from kbroker.console.values import Values


def to_login(request: Request) -> Response:
    """Redirect to the login page.

    After the login, the login page redirects to the requested page. A client that does not accept HTML gets an error
    instead.
    """
    if request.method != "GET" or "text/html" not in request.headers.get("accept", "text/html"):
        return Response("log in first\n", 401, media_type="text/plain")
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    to = place("/login", next=here if here != "/" else None)
    if request.headers.get("hx-request"):
        return Response(status_code=401, headers={"hx-redirect": to})
    return RedirectResponse(to, 303)


def facts(next_place: str, failure: str | None, typed: str = "") -> dict[str, Any]:
    """Return the facts of the page; after a failure they include the typed name."""
    return {"next": own_place(next_place), "failure": failure, "typed": typed}


def own_place(path: str) -> str:
    """Return the requested path if it is a safe path of this console, else the path of the first page."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if plain else "/"


async def logged_in(console: Console, values: Values, address: str) -> tuple[tuple[int, str] | None, str]:
    """Return status and text of a failure, or the key of a new session."""
    user = values.text("user")
    password = values.raw("password")
    right = await console.login_tries.judge(address, lambda: console.sessions.knows(user, password))
    if right is None:
        audit.warning("login from %s: too many tries", address)
        return (429, "Too many tries. Wait a minute."), ""
    if not right:
        audit.warning("login by %s from %s: refused", ascii(user[:100]), address)
        return (401, "The name or the password is wrong."), ""
    audit.info("login by %s from %s: done", ascii(user[:100]), address)
    return None, console.sessions.begin(user)
