"""Basic authentication at a broker's registry (RFC 7617), with the passwords of the broker's SCRAM users.

Owns the check of a login: its threads, its limits, and the cache of correct logins. A check takes some ms of iterated
hashes, so it runs on threads of its own, a few at a time, and an unknown user takes the same time. The cache contains a
keyed hash of name, password and credential. So after a change of the password, an old login is no longer found. Never
decides about a user's rights, and never keeps or logs a password.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from kbroker.registry_api.requests import MEDIA
from kbroker.security.sasl.scram_credential import (
    HASHES,
    LEAST_ITERATIONS,
    ScramCredential,
    client_key,
    new_salt,
    salted_password,
)

Credentials = Callable[[str, str], ScramCredential | None]
"""A function that returns a user's credential for a SCRAM mechanism. The server's thread calls it."""
USER: Final = "user"
"""The key of a request's scope under which the name of the logged-in user is stored."""
REMEMBERED: Final = 1_000
"""The maximum number of cached logins; the least recently used login is removed first."""
MOST_WAITING: Final = 100
"""The maximum number of logins that wait for their check; further logins are answered with status 503."""
LONGEST: Final = 1_024
"""The maximum number of bytes of a name and its password; longer logins are refused without a hash."""
_AT_ONCE: Final = 2
_MOST_ITERATIONS: Final = 1_000_000
_CHALLENGE: Final = b'Basic realm="schema registry", charset="UTF-8"'
log = logging.getLogger(__name__)


class Busy(Exception):  # noqa: N818 - an outcome
    """Too many logins wait for their check."""


class Logins:
    """The check of names and passwords. Its methods belong to the server's loop."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._unknown_users = {mechanism: _of_nobody(mechanism) for mechanism in HASHES}
        self._threads = ThreadPoolExecutor(_AT_ONCE, "kbroker-registry-logins")
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def close(self) -> None:
        """End the threads when their running checks have ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def user(self, given: Iterable[bytes]) -> str | None:
        """Return the user of a request's Authorization headers; None if they contain no valid login. Raises Busy."""
        login = _login(list(given))
        if login is None:
            return None
        name, password = login
        if self._is_known(name, password):
            return name
        if self._waiting >= MOST_WAITING:
            raise Busy
        self._waiting += 1
        try:
            async with self._turns:
                if self._is_known(name, password):  # meanwhile another request had the same login
                    return name
                loop = asyncio.get_running_loop()
                found = self._of(name)
                right = await loop.run_in_executor(self._threads, self._matching, password, found)
        finally:
            self._waiting -= 1
        if right is None:
            return None
        self._known[self._hash(name, password, right, found[right])] = None
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return name

    def _of(self, name: str) -> dict[str, ScramCredential]:
        found = {mechanism: self._credentials(name, mechanism) for mechanism in HASHES}
        return {
            mechanism: each
            for mechanism, each in found.items()
            if each is not None and LEAST_ITERATIONS <= each.iterations <= _MOST_ITERATIONS
        }

    def _is_known(self, name: str, password: str) -> bool:
        for mechanism, credential in self._of(name).items():
            key = self._hash(name, password, mechanism, credential)
            if key in self._known:
                self._known.move_to_end(key)
                return True
        return False

    def _hash(self, name: str, password: str, mechanism: str, credential: ScramCredential) -> bytes:
        parts = [each.encode() for each in (name, password, mechanism, credential.text())]
        return hmac.digest(self._secret, b"".join(b"%d:%b" % (len(each), each) for each in parts), "sha256")

    def _matching(self, password: str, found: dict[str, ScramCredential]) -> str | None:
        """Return the mechanism whose credential matches a password.

        Without a credential, compute a hash nevertheless, so that the call takes the same time.
        """
        matching = None
        for mechanism, of_nobody in self._unknown_users.items():
            credential = found.get(mechanism, of_nobody)
            salted = salted_password(mechanism, password, credential.salt, credential.iterations)
            stored = hashlib.new(HASHES[mechanism], client_key(mechanism, salted)).digest()
            if hmac.compare_digest(stored, credential.stored_key) and mechanism in found:
                matching = mechanism
        return matching


def _of_nobody(mechanism: str) -> ScramCredential:
    nothing = secrets.token_bytes(hashlib.new(HASHES[mechanism]).digest_size)
    return ScramCredential(new_salt(), nothing, nothing, LEAST_ITERATIONS)


def _login(given: list[bytes]) -> tuple[str, str] | None:
    """Return the name and the password of the Authorization headers; None if they contain no login."""
    if len(given) != 1 or len(given[0]) > 2 * LONGEST:
        return None
    scheme, _, encoded = given[0].strip().partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    name, colon, password = text.partition(":")
    return (name, password) if colon and name and len(text.encode()) <= LONGEST else None


class Authenticated:
    """An ASGI application that passes only requests of users to another application.

    `scope[USER]` is the user's name.
    """

    def __init__(self, app: ASGIApp, logins: Logins) -> None:
        self._app = app
        self._logins = logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        try:
            name = await self._logins.user(value for header, value in scope["headers"] if header == b"authorization")
        except Busy:
            await _refuse(send, 503, "Too many logins at once")
            return
        if name is None:
            if any(header == b"authorization" for header, _ in scope["headers"]):
                log.info("a login at the schema registry from %s was wrong", (scope["client"] or ("?",))[0])
            await _refuse(send, 401, "Unauthorized")
            return
        await self._app({**scope, USER: name}, receive, send)


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"error_code": status, "message": text}).encode()
    # The body of the request is not read, so the connection closes.
    headers = [
        (b"content-type", MEDIA.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", _CHALLENGE))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
