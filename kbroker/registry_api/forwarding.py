"""Forwards requests to a cluster's registry from the broker that received them to the leader of `_schemas`.

Owns the choice between this broker's registry and another broker's registry, and the retries while the leader moves. A
request waits for a leader that is being elected, and is retried if no registry has decided it. A request that may
already be decided is retried only if a repetition does no harm. That is true for all requests except deletions. A
forwarded request has the header X-Forward, as between Confluent's registries, and is not forwarded again. Reads are
also forwarded, so that all answers have the same basis: the state of one registry. Never decides about schemas.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kbroker.registry_api.peer import NotSent, Peers, Unanswered
from kbroker.registry_api.requests import BODY_S, MOST_BODY, NOTE, Bodies, Refused
from kbroker.schema_registry.service import NOBODY, Place
from kbroker.schema_registry.tally import ELSEWHERE

PATIENCE_S: Final = 5.0
"""The seconds for which a request waits for a leader."""
_WITHOUT_REGISTRY_S: Final = 1.0
"""The seconds for which a request waits if the leader has no registry: the registry may be starting."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2
_AT_ONCE: Final = 200
"""The maximum number of requests that are forwarded at the same time."""
FORWARDED: Final = b"x-forward"
_MOST_ERROR: Final = 64 * 1024
"""The maximum number of bytes of an error that are read before the decision about a retry."""
_FORWARDING_FAILED: Final = 50003
_UNKNOWN_LEADER: Final = 50004
"""The only error code that proves that no registry has decided the request."""
_MAY_BE_DONE: Final = (50001, 50002, _FORWARDING_FAILED)
_OWN: Final = frozenset((b"host", b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"expect",
                         b"te", b"trailer", b"upgrade", b"proxy-connection", b"date", b"server"))  # fmt: skip
"""Headers that belong to one connection."""
_MEDIA: Final = b"application/vnd.schemaregistry.v1+json"
log = logging.getLogger(__name__)


class Leader(Protocol):
    """The way in which a broker finds the leader of `_schemas`. Call the methods in the server's loop."""

    node_id: int

    async def place(self) -> Place:
        """Return the leader according to this broker. Raises OSError if the broker cannot find it."""

    def forget(self, broker: int) -> None:
        """Look up the address of a broker's registry again, because a request to it failed."""


class OfBroker(Protocol):
    """The knowledge of a cluster's broker about the leader. Call the methods in the broker's loop."""

    node_id: int

    async def registry_place(self) -> Place:
        """Return the leader of `_schemas`. Raises OSError."""

    def forget_registry(self, broker: int) -> None:
        """Look up the address of a broker's registry again."""


class LeaderOfBroker:
    """The leader according to a broker whose loop runs in another thread."""

    def __init__(self, broker: OfBroker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self.node_id = broker.node_id

    async def place(self) -> Place:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._broker.registry_place(), self._loop))

    def forget(self, broker: int) -> None:
        with contextlib.suppress(RuntimeError):  # the broker has ended
            self._loop.call_soon_threadsafe(self._broker.forget_registry, broker)


class _Failed(Exception):  # noqa: N818 - an outcome
    """An attempt has failed with an error for the client. `passes` means that a retry may succeed."""

    def __init__(
        self, code: int, text: str, status: int = 500, *, passes: bool = True, may_be_done: bool = False
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.status = status
        self.passes = passes
        self.may_be_done = may_be_done


class _Begun(Exception):  # noqa: N818 - an outcome
    """An answer was sent only in part; its connection must close."""


class Forwarding:
    """The ASGI application in front of this broker's own application.

    `tls` verifies other registries. If clients use TLS (`only_tls`), requests are forwarded over TLS only.
    """

    def __init__(
        self, own: ASGIApp, leader: Leader, tls: ssl.SSLContext | None = None, *, only_tls: bool = False
    ) -> None:
        self._own = own
        self._leader = leader
        self._peers = Peers(tls)
        self._only_tls = only_tls
        self._bodies = Bodies()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._ends = False

    def close(self) -> None:
        """Stop all retries, and close the connections to other registries; call it in the server's loop."""
        self._ends = True
        self._peers.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        if scope["path"] == "/":  # this request tests whether this server answers
            await self._own(scope, receive, send)
            return
        counted = dict(scope)
        with self._bodies(counted):
            await self._answer(scope, counted, receive, send)

    async def _answer(self, scope: Scope, counted: Scope, receive: Receive, send: Send) -> None:
        try:
            messages = await self._received(counted, receive)
        except Refused as refused:
            await _refuse(send, _Failed(refused.status, refused.text, refused.status), closes=True)
            return
        if messages[-1]["type"] != "http.request" or sum(len(each.get("body", b"")) for each in messages) > MOST_BODY:
            # The client has disconnected, or the body is too long: the application handles both.
            await self._own(scope, _replayed(messages, receive), send)
            return
        try:
            await self._tried(scope, messages, receive, send)
        except _Failed as failed:
            await _refuse(send, failed)
        except _Begun as broken:
            log.warning("an answer was cut off: %s", broken)  # the connection then closes

    async def _received(self, counted: Scope, receive: Receive) -> list[Message]:
        """Return the messages of a request's body. Raises Refused. Stops early if the body is too long."""
        messages: list[Message] = []
        try:
            async with asyncio.timeout(BODY_S):
                while True:
                    message = await receive()
                    messages.append(message)
                    if message["type"] != "http.request":
                        return messages
                    if counted["body_size"] + len(message.get("body", b"")) > MOST_BODY:
                        return messages
                    self._bodies.take(counted, len(message.get("body", b"")))
                    if not message.get("more_body"):
                        return messages
        except TimeoutError:
            raise Refused(408, f"The body did not arrive within {BODY_S:g} s") from None

    async def _tried(self, scope: Scope, messages: list[Message], receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        is_forwarded = any(name == FORWARDED for name, _ in scope["headers"])
        pause = _FIRST_PAUSE_S
        while True:
            place = Place(NOBODY)
            try:
                place = await self._place()
                if place.broker == self._leader.node_id:
                    await _held(lambda to: self._own(dict(scope), _replayed(messages, receive), to), send)
                elif is_forwarded:
                    raise _Failed(_UNKNOWN_LEADER, f"Broker {self._leader.node_id} does not lead _schemas")
                else:
                    if NOTE in scope:
                        scope[NOTE].append(ELSEWHERE)  # an earlier try may have used this broker
                    await self._forwarded(place, scope, messages, send)
            except _Failed as failed:
                self._leader.forget(place.broker)
                patience = PATIENCE_S if place.url is not None or place.broker < 0 else _WITHOUT_REGISTRY_S
                if place.broker == self._leader.node_id:
                    patience = PATIENCE_S
                may_try = failed.passes and not (failed.may_be_done and scope["method"] == "DELETE")
                if self._ends or is_forwarded or not may_try or loop.time() + pause - began > patience:
                    raise
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _place(self) -> Place:
        try:
            async with asyncio.timeout(PATIENCE_S):
                place = await self._leader.place()
        except TimeoutError:
            raise _Failed(_UNKNOWN_LEADER, "Leader not known. This broker did not find it in time") from None
        except OSError as error:
            raise _Failed(_UNKNOWN_LEADER, f"Leader not known. {error}") from None
        if place.broker < 0:
            raise _Failed(_UNKNOWN_LEADER, "Leader not known. No broker leads _schemas at the moment")
        return place

    async def _forwarded(self, place: Place, scope: Scope, messages: list[Message], send: Send) -> None:
        if place.url is None:
            raise _Failed(
                _UNKNOWN_LEADER,
                f"Leader not known. Broker {place.broker} leads _schemas, and has no schema registry: "
                "only a kbroker that was started with --registry has one",
            )
        url = place.url
        if self._only_tls and not url.startswith("https://"):
            raise _Failed(
                _UNKNOWN_LEADER,
                f"Leader not known. Broker {place.broker} leads _schemas, and its schema registry at {url} has no TLS, "
                "unlike the registry of this broker",
            )
        query = scope["query_string"]
        target = scope["raw_path"].partition(b"?")[0] + (b"?" + query if query else b"")
        headers = [each for each in scope["headers"] if each[0] not in _OWN]
        body = b"".join(each.get("body", b"") for each in messages)

        async def relayed(to: Send) -> None:
            async with self._peers.ask(url, scope["method"], target, [*headers, (FORWARDED, b"true")], body) as answer:
                kept = [each for each in answer.headers if each[0].lower() not in _OWN]
                kept += [each for each in answer.headers if each[0].lower() == b"content-length"]
                await to({"type": "http.response.start", "status": answer.status, "headers": kept})
                async for piece in answer.pieces:
                    await to({"type": "http.response.body", "body": piece, "more_body": True})
                await to({"type": "http.response.body", "body": b""})

        whom = f"the registry of broker {place.broker} at {url}"
        async with self._turns:
            try:
                await _held(relayed, send)
            except NotSent as error:
                text = f"Error while forwarding the request to the leader: {whom} cannot be reached: {error}"
                raise _Failed(_FORWARDING_FAILED, text) from None
            except Unanswered as error:
                text = (
                    f"Error while forwarding the request to the leader, which may have carried it out: {whom}: {error}"
                )
                raise _Failed(_FORWARDING_FAILED, text, may_be_done=True) from None


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """Return a `receive` function that returns these messages first."""
    left = iter(messages)

    async def again() -> Message:
        found = next(left, None)
        return await receive() if found is None else found

    return again


async def _held(answer: Callable[[Send], Awaitable[Any]], send: Send) -> None:
    """Send an answer to the client, but raise _Failed if the answer is an error of the registry itself."""
    start: Message | None = None
    error = bytearray()
    begun = False

    async def to(message: Message) -> None:
        nonlocal start, begun
        if message["type"] == "http.response.start" and message["status"] >= 500:
            start = message
        elif start is None:
            begun = True
            await send(message)
        elif len(error) < _MOST_ERROR:
            error.extend(message.get("body", b""))

    try:
        await answer(to)
    except (NotSent, Unanswered) as failed:
        if begun:
            raise _Begun(str(failed)) from None
        raise
    if start is not None:
        try:
            told = json.loads(bytes(error))
            code, text = int(told["error_code"]), str(told["message"])
        except (ValueError, TypeError, KeyError):
            code, text = _FORWARDING_FAILED, f"The leader's registry answers with status {start['status']}"
        may_be_done = code in _MAY_BE_DONE
        raise _Failed(
            code, text, start["status"], passes=may_be_done or code == _UNKNOWN_LEADER, may_be_done=may_be_done
        )


async def _refuse(send: Send, failed: _Failed, *, closes: bool = False) -> None:
    body = json.dumps({"error_code": failed.code, "message": failed.text}).encode()
    headers = [(b"content-type", _MEDIA), (b"content-length", b"%d" % len(body))]
    if closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": failed.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
