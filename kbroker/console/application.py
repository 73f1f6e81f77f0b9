"""The console as an ASGI application: pages, actions, login, and the handling of failures.

Owns the order of checks on a request: the guard, the session, the form's token, then the typed confirmation. Logs a
line for each change. Does not know the content of a page.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kbroker.admin.errors import AdminError, NotThere, Unreachable, WrongInput
from kbroker.console import login
from kbroker.console.asking import Busy, Slow
from kbroker.console.console import Console, audit
from kbroker.console.guard import Guard, refuse_change
from kbroker.console.page_and_action import Action, Done, Page, Raw
from kbroker.console.pages import ACTIONS, PAGES, RAW
from kbroker.console.render import assets, environment, rendered
from kbroker.console.values import Values, form_of, queried

_Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]
_YEAR: Final = "public, max-age=31536000, immutable"
_ONE_LINE: Final = re.compile(r"[^\x20-\x7e\xa0-\U0010ffff]")
_ONE_WORD: Final = re.compile(r"[A-Za-z0-9_.:,*/@+-]+")
_LONGEST_NOTED: Final = 200
_MOST_NOTED: Final = 20_000
"""The maximum number of characters of a log line: the line for a reset names all partitions."""
_LISTS: Final = (
    ("/topics/", "/topics", "To the topics"),
    ("/group", "/groups", "To the groups"),
    ("/deadletters", "/groups", "To the groups"),
    ("/schedules", "/topics", "To the topics"),
    ("/subject", "/subjects", "To the subjects"),
    ("/transaction", "/transactions", "To the transactions"),
    ("/broker", "/cluster", "To the cluster"),
    ("/cluster/", "/cluster", "To the cluster"),
)
log = logging.getLogger(__name__)


def application(console: Console) -> ASGIApp:
    """Return the application of a console."""
    web = Web(console)
    routes = [
        Route("/static/{name}", _static, methods=["GET"]),
        Route("/login", web.login_page, methods=["GET"]),
        Route("/login", web.log_in, methods=["POST"]),
        Route("/logout", web.log_out, methods=["POST"]),
        *(Route(each.path, partial(web.page, each), methods=["GET"]) for each in PAGES),
        *(Route(each.path, partial(web.raw, each), methods=["GET"]) for each in RAW),
    ]
    if console.settings.read_only:
        routes.append(Route("/do/{action}", refuse_change, methods=["POST"]))
    else:
        routes += [Route(each.path, partial(web.act, each), methods=["POST"]) for each in ACTIONS]
    handlers: dict[Any, Any] = {HTTPException: web.no_page, Exception: web.failed, ClientDisconnect: _disconnected}
    settings = console.settings
    app = Starlette(routes=routes, exception_handlers=handlers)
    scheme = "https" if settings.secure else "http"
    return Guard(app, public=settings.public, scheme=scheme, names=settings.names)


async def _static(request: Request) -> Response:
    found = assets().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return Response(found[0], media_type=found[1], headers={"cache-control": _YEAR})


async def _disconnected(_: Request, __: Exception) -> Response:
    return Response(status_code=400)


class Web:
    """Answers the requests to one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.templates = environment()

    # -- pages

    async def page(self, page: Page, request: Request) -> Response:
        """Answer with a page, or with the part that updates an open page."""

        async def answer(key: str, user: str | None) -> Response:
            facts = await page.find(self.console, queried(request))
            return self._shown(page.template, facts, request, key, user)

        return await self._in_session(request, answer)

    async def raw(self, raw: Raw, request: Request) -> Response:
        """Answer with something other than a page."""
        return await self._in_session(request, lambda _key, _user: raw.answer(self.console, request))

    def _shown(
        self, name: str, facts: dict[str, Any], request: Request, key: str, user: str | None, status: int = 200
    ) -> Response:
        """Render a page, or only one block of it if htmx requests that part."""
        settings, sessions = self.console.settings, self.console.sessions
        flash = sessions.flash(request)
        common = {
            "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            "path": request.url.path,
            "token": sessions.token(key) if key else "",
            "user": user,
            "asks": sessions.asks,
            "read_only": settings.read_only,
            "flash": flash,
            "troubled": name == "trouble.html",
            "lost": self.console.sampler.samples.failure if self.console.sampler.samples.rounds else None,
            "view_of": self.console.sampler.samples.view,
            "bootstrap": self.console.connection.bootstrap,
            "theme": _theme(request),
            "has_registry": self.console.schemas.registry is not None,
        }
        assert not common.keys() & facts.keys(), "a page's facts hide what all pages have"
        template = self.templates.get_template(name)
        body = rendered(template, request.headers.get("x-part", ""), {**common, **facts})
        # A lone surrogate in JSON, "\\ud800", cannot be encoded as UTF-8: show it in its escaped form.
        response = HTMLResponse(body.encode("utf-8", "backslashreplace"), status, headers={"vary": "x-part"})
        if flash is not None:
            sessions.forget_flash(response)
        return response

    # -- sessions

    async def _in_session(self, request: Request, answer: Callable[[str, str | None], Awaitable[Response]]) -> Response:
        """Return an answer for a session with this key and user.

        A failure of the cluster or of the input becomes a page.
        """
        sessions = self.console.sessions
        found = sessions.of(request)
        if found is None and sessions.asks:
            return login.to_login(request)
        key, user = (sessions.begin(None), None) if found is None else (found[0], found[1].user)
        try:
            response = await answer(key, user)
        except (AdminError, Slow, Busy) as error:
            response = self._trouble(request, error, key, user)
        if found is None:
            sessions.set_cookie(response, key)
        return response

    async def login_page(self, request: Request) -> Response:
        """Show the form for name and password."""
        if not self.console.sessions.asks:
            return RedirectResponse("/", 303)
        return self._shown("login.html", login.facts(queried(request).text("next"), None), request, "", None)

    async def log_in(self, request: Request) -> Response:
        """Begin a session after a correct password."""
        values = await self._form(request)
        try:
            failure, key = await login.logged_in(self.console, values, _address(request))
        except WrongInput as error:
            raise HTTPException(400, str(error)) from None
        if failure is not None:
            facts = login.facts(values.text("next"), failure[1], values.text("user"))
            return self._shown("login.html", facts, request, "", None, failure[0])
        response = RedirectResponse(login.own_place(values.text("next")), 303)
        self.console.sessions.set_cookie(response, key)
        return response

    async def log_out(self, request: Request) -> Response:
        """End a session."""
        found = self.console.sessions.of(request)
        values = await self._form(request)
        if found is None or not self.console.sessions.is_token(found[0], values.raw("token")):
            raise HTTPException(403, "this form belongs to another session: open the page again")
        self.console.sessions.end(found[0])
        response = RedirectResponse("/", 303)
        self.console.sessions.drop_cookie(response)
        return response

    # -- actions

    async def act(self, action: Action, request: Request) -> Response:
        """Run the action of a form."""
        sessions = self.console.sessions
        found = sessions.of(request)
        if found is None and sessions.asks:
            return login.to_login(request)
        values = await self._form(request)
        if found is None or not sessions.is_token(found[0], values.raw("token")):
            raise HTTPException(403, "this form belongs to another session: open the page again")
        key, user = found[0], found[1].user
        note = partial(_note, action, values, user, _address(request))
        try:
            action.check(values)
            done = await self.console.cluster.ask(
                lambda admin: action.run(self.console if action.of_console else admin, values),
                reads=False,
                deadline_s=60,
            )
        except (AdminError, Slow, Busy) as error:
            note(f"refused: {_in_words(error)}")
            self.console.changed()  # a part of the change may already be made
            return self._refused(request, error, key, user)
        except Exception as error:
            note(f"failed: {type(error).__name__}")
            self.console.changed()
            raise
        note("done")
        self.console.changed()
        if done.stays and request.headers.get("hx-request"):
            return self._shown("refused.html", {"text": done.text, "kind": "good"}, request, key, user)
        return self._done(request, done)

    def _done(self, request: Request, done: Done) -> Response:
        if request.headers.get("hx-request"):
            response = Response(status_code=204, headers={"hx-redirect": done.href})
        else:
            response = RedirectResponse(done.href, 303)
        self.console.sessions.flash_next(response, done.text, "good")
        return response

    def _refused(self, request: Request, error: Exception, key: str, user: str | None) -> Response:
        if request.headers.get("hx-request"):  # show the error in the form that the browser has sent
            return self._shown("refused.html", {"text": _in_words(error), "kind": "bad"}, request, key, user)
        return self._trouble(request, error, key, user)

    async def _form(self, request: Request) -> Values:
        try:
            return await form_of(request)
        except WrongInput as error:
            raise HTTPException(400, str(error)) from None

    # -- failures

    def _trouble(self, request: Request, error: Exception, key: str, user: str | None) -> Response:
        status, title = _judged(error)
        facts = {
            "title": title,
            "text": _in_words(error),
            "again": isinstance(error, (Unreachable, Slow, Busy)),
            "list": _list_of(request),
        }
        return self._shown("trouble.html", facts, request, key, user, status)

    async def no_page(self, request: Request, error: HTTPException) -> Response:
        """Answer a request for a missing or forbidden page."""
        title = {404: "There is no such page", 403: "Not allowed"}.get(error.status_code, "Wrong input")
        found = self.console.sessions.of(request)
        if found is None and self.console.sessions.asks:
            return Response(f"{title}\n", error.status_code, media_type="text/plain")
        key, user = ("", None) if found is None else (found[0], found[1].user)
        text = "" if error.status_code == 404 else str(error.detail)
        facts = {"title": title, "text": text, "again": False, "list": _list_of(request)}
        return self._shown("trouble.html", facts, request, key, user, error.status_code)

    async def failed(self, request: Request, error: Exception) -> Response:
        """Answer after an error in the console's own code; Starlette raises the error again, for the log."""
        del request, error
        return Response("the console failed; its log has the reason\n", 500, media_type="text/plain")


def _list_of(request: Request) -> tuple[str, str]:
    """Return the address and the text of a failed page's link, which leads to the list of entities of the same kind."""
    for begin, place, words in _LISTS:
        if request.url.path.startswith(begin):
            return place, words
    return "/", "To the overview"


def _in_words(error: Exception) -> str:
    """Return the text of an error; several failures become one line."""
    return str(error).replace("\nkbroker: ", "; ")


def _judged(error: Exception) -> tuple[int, str]:
    if isinstance(error, Unreachable):
        return 503, "The cluster cannot be reached"
    if isinstance(error, Slow):
        return 504, "The cluster is slow"
    if isinstance(error, Busy):
        return 503, "Too much at once"
    if isinstance(error, NotThere):
        return 404, "Not found"
    if isinstance(error, WrongInput):
        return 400, "Wrong input"
    return 409, "The cluster does not do this"


def _theme(request: Request) -> str:
    found = request.cookies.get("kbroker-console-theme", "")
    return found if found in ("light", "dark") else ""


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else "?"


def _note(action: Action, values: Values, user: str | None, address: str, what: str) -> None:
    """Log an action: user, address, fields and outcome."""
    hidden = {"token", "confirm", *action.secret}
    texts = []
    for name, text in values.items():
        if name in action.long:
            texts.append(f"{name}=({len(text)} characters)")
        elif name not in hidden and text:
            texts.append(f"{_quoted(name)}={_quoted(text)}")
    fields = " ".join(texts)
    if len(fields) > _MOST_NOTED:
        fields = f"{fields[:_MOST_NOTED]} (and {len(fields) - _MOST_NOTED} characters more)"
    line = f"{action.name} {fields} by {user or 'anybody'} from {address}: {what}"
    audit.info("%s", _ONE_LINE.sub(" ", line.encode("utf-8", "replace").decode()))


def _quoted(text: str) -> str:
    """Return a text from a form as one quoted word, so that it cannot imitate other parts of the line."""
    short = text[:_LONGEST_NOTED]
    return short if _ONE_WORD.fullmatch(short) else json.dumps(short)
