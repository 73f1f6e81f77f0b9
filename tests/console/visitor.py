"""A browser of the simplest kind: the standard library's HTTP, with cookies, and the pages' forms.

Owns that responses are closed, and that each visitor has its own cookies.
"""

from __future__ import annotations

import http.client
import re
import ssl
from contextlib import closing
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode, urlsplit


@dataclass(frozen=True)
class Answer:
    """A response of the console."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def words(self) -> str:
        """Return the readable text, without markup."""
        bare = re.sub(r"<(script|style)\b.*?</\1>", " ", self.text.replace("<wbr>", ""), flags=re.DOTALL)
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", bare)).split())


class Visitor:
    """Uses one console; one connection for each request."""

    def __init__(self, url: str, context: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.address = urlsplit(url).netloc
        self.cookies: dict[str, str] = {}
        self._context = context

    def __call__(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        sent = {"accept": "text/html", **(headers or {})}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        secure = self._context is not None
        connection = (
            http.client.HTTPSConnection(self.address, timeout=30, context=self._context)
            if secure
            else http.client.HTTPConnection(self.address, timeout=30)
        )
        with closing(connection):
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            for line in answer.headers.get_all("set-cookie") or ():
                name, _, value = line.partition(";")[0].partition("=")
                self.cookies[name] = value.strip('"')
            told = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, told, answer.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def page(self, path: str, **headers: str) -> Answer:
        """Return a page that must exist."""
        found = self.get(path, **headers)
        assert found.status == 200, (path, found.status, found.words[:500])
        return found

    def token(self) -> str:
        """Return the token in the forms of this session."""
        found = re.search(r'name="token" value="([0-9a-f]{64})"', self.page("/topics").text)
        assert found is not None
        return found[1]

    def send(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Answer:
        """Send a form unchanged."""
        body = urlencode(fields or {}).encode()
        told = {"content-type": "application/x-www-form-urlencoded"}
        told |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self("POST", path, body, told)

    def do(self, action: str, **fields: str) -> Answer:
        """Send a form that must succeed; return the page that follows."""
        done = self.send(f"/do/{action}", {"token": self.token(), **fields})
        assert done.status == 303, (action, done.status, done.words[-600:])
        return self.page(done.headers["location"])

    def refused(self, action: str, **fields: str) -> str:
        """Send a form that must be refused; return the text of the page."""
        done = self.send(f"/do/{action}", {"token": self.token(), **fields})
        assert done.status in (400, 409), (done.status, done.words[:500])
        return done.words
