"""Logins, and the proof that a form is the console's own.

Owns the cookie, its lifetime, and the tokens in forms. Sessions are in memory: a restart ends them. Without logins each
browser still gets a session, for the tokens. Such a session is not stored.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kbroker.console.passwords import is_users

LIFE_S: Final = 12 * 3600.0
_IDLE_S: Final = 2 * 3600.0
_MOST: Final = 1_000
_LONGEST_FLASH: Final = 1_500


@dataclass(slots=True)
class Session:
    """The session of a browser; `user` is None without logins."""

    user: str | None
    begun: float
    seen: float


class Sessions:
    """The sessions of one console."""

    def __init__(
        self,
        users: Mapping[str, str] | None,
        *,
        name: str,
        secure: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._users = users
        self._secure = secure
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.cookie = f"__Host-{name}" if secure else name
        self._flash = f"{self.cookie}-told"

    @property
    def asks(self) -> bool:
        """Whether a login is needed."""
        return self._users is not None

    def of(self, request: Request) -> tuple[str, Session] | None:
        """Return the session of a request, or None if it is not valid."""
        key = request.cookies.get(self.cookie, "")
        if not self.asks:
            name, _, signature = key.partition(".")
            right = hmac.compare_digest(self._signed(name).encode(), signature.encode("utf-8", "replace"))
            return (key, Session(None, 0.0, 0.0)) if name and right else None
        session = self._sessions.get(key)
        if session is None:
            return None
        now = self._clock()
        if now - session.begun > LIFE_S or now - session.seen > _IDLE_S:
            del self._sessions[key]
            return None
        session.seen = now
        self._sessions.move_to_end(key)
        return key, session

    def begin(self, user: str | None) -> str:
        """Return the key of a new session; if there are too many sessions, drop the least recently used session.

        Without logins nothing is stored: the key is signed, so that a request without a cookie uses no memory.
        """
        if not self.asks:
            name = secrets.token_urlsafe(16)
            return f"{name}.{self._signed(name)}"
        while len(self._sessions) >= _MOST:
            self._sessions.popitem(last=False)
        key, now = secrets.token_urlsafe(32), self._clock()
        self._sessions[key] = Session(user, now, now)
        return key

    def end(self, key: str) -> None:
        """End a session."""
        self._sessions.pop(key, None)

    def knows(self, user: str, password: str) -> bool:
        """Whether a password is correct. The check takes about 50 ms for any name."""
        return self._users is not None and is_users(self._users, user, password)

    def set_cookie(self, response: Response, key: str) -> None:
        """Store a session in the browser."""
        response.set_cookie(
            self.cookie, key, max_age=int(LIFE_S), path="/", secure=self._secure, httponly=True, samesite="strict"
        )

    def drop_cookie(self, response: Response) -> None:
        """Remove the session from the browser."""
        response.delete_cookie(self.cookie, path="/", secure=self._secure, httponly=True, samesite="strict")

    def token(self, key: str) -> str:
        """Return the token for the forms of a session."""
        return hmac.new(self._key, b"form:" + key.encode(), hashlib.sha256).hexdigest()

    def is_token(self, key: str, token: str) -> bool:
        """Whether a form's token belongs to a session."""
        return hmac.compare_digest(self.token(key).encode(), token.encode("utf-8", "replace"))

    def flash_next(self, response: Response, text: str, level: str) -> None:
        """Store a text that the next page shows once."""
        body = base64.urlsafe_b64encode(json.dumps([level, text[:_LONGEST_FLASH]]).encode()).decode()
        value = f"{body}.{self._signed(body)}"
        response.set_cookie(
            self._flash, value, max_age=60, path="/", secure=self._secure, httponly=True, samesite="strict"
        )

    def flash(self, request: Request) -> tuple[str, str] | None:
        """Return level and text of the message for a page."""
        body, _, signature = request.cookies.get(self._flash, "").partition(".")
        if not body or not hmac.compare_digest(self._signed(body).encode(), signature.encode("utf-8", "replace")):
            return None
        level, text = json.loads(base64.urlsafe_b64decode(body))
        return str(level), str(text)

    def forget_flash(self, response: Response) -> None:
        """Delete the message, so that it is shown only once."""
        response.delete_cookie(self._flash, path="/", secure=self._secure, httponly=True, samesite="strict")

    def _signed(self, body: str) -> str:
        return hmac.new(self._key, b"told:" + body.encode(), hashlib.sha256).hexdigest()
