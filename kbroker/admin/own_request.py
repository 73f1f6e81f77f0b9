"""Requests that kafka-python lacks, sent on kafka-python's connections, with its TLS, SASL and timeouts.

Owns the form of such a request for kafka-python, the choice of the broker that receives it, and every use of the
client's internals. Works for any API.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kafka.errors import IncompatibleBrokerVersion
from kafka.protocol.api_header import ResponseHeader

from kbroker.admin.connection import patiently
from kbroker.admin.errors import AdminError, code_error
from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse

Answer = TypeVar("Answer")
_API_VERSIONS: Final = 18
_FIND_MANY: Final = 4
"""The first version of FindCoordinator that accepts several groups."""


def ask_coordinator(admin: Any, group: str, request: Any, answer: type[Answer]) -> Answer | None:
    """Send a message of kbroker.protocol to a group's coordinator; return None if this broker does not serve the API.

    Raises kafka-python's errors (a retriable error while the group has no coordinator), and AdminError if the answer
    cannot be decoded.
    """
    return _ask(admin, group, request, answer)


def ask_patiently(admin: Any, group: str, request: Any, answer: type[Answer], code: Callable[[Answer], int]) -> Answer:
    """Send a message like `ask_coordinator`, and retry it while the answer has a retriable error.

    `code` returns an answer's error code. Raises AdminError if the broker does not serve the API.
    """

    def once() -> Answer:
        found = ask_coordinator(admin, group, request, answer)
        if found is None:
            raise AdminError(f"this cluster does not serve {type(request).__name__.removesuffix('Request')}")
        error = code_error(code(found))
        if error is not None and error.retriable:
            raise error
        return found

    return patiently(once)


def ask_any(admin: Any, request: Any, answer: type[Answer], at_least: int = 0) -> Answer | None:
    """Send a message like `ask_coordinator`, but to any broker.

    Returns None if the broker does not serve the API, or only in versions below `at_least`.
    """
    return _ask(admin, None, request, answer, at_least)


def _ask(admin: Any, group: str | None, request: Any, answer: type[Answer], at_least: int = 0) -> Answer | None:
    sent = _Request(request, at_least)
    try:
        body = admin._manager.run(_send, admin, group, sent)  # noqa: SLF001 - no public method sends unknown APIs
    except IncompatibleBrokerVersion:
        return None
    return _read(sent, body, answer)


def coordinator_of(admin: Any, group: str) -> int:
    """Return the id of the broker that coordinates a group; raises kafka-python's errors."""
    return int(admin._manager.run(_coordinator, admin, group))  # noqa: SLF001 - as above


def coordinators_of(admin: Any, groups: Sequence[str]) -> dict[str, int]:
    """Return the coordinators' ids of groups with one request (KIP-699); groups without a coordinator are left out.

    Return an empty dict for an older cluster.
    """
    request = FindCoordinatorRequest(key="", coordinator_keys=[*groups])
    answer = ask_any(admin, request, FindCoordinatorResponse, _FIND_MANY)
    found = [] if answer is None else answer.coordinators
    return {each.key: each.node_id for each in found if not each.error_code}


async def _coordinator(admin: Any, group: str) -> Any:
    return await admin._find_coordinator_id(group)  # noqa: SLF001


def id_of(broker: Any) -> int:
    """Return the broker id from kafka-python's description of a broker."""
    return int(broker["broker_id"] if "broker_id" in broker else broker["node_id"])  # Metadata calls the field node_id


def live_brokers(admin: Any) -> list[int]:
    """Return the ids of the live brokers."""
    return [id_of(each) for each in admin.describe_cluster()["brokers"]]


def ask_controller(admin: Any, request: Any, answer: type[Answer], at_least: int = 0) -> Answer:
    """Send a message of kbroker.protocol to the controller or its proxy; raises like `ask_coordinator`.

    A controller that serves only versions below `at_least` counts as a controller that does not serve the API.
    """
    sent = _Request(request, at_least)
    try:
        body = admin._manager.run(_send_to_controller, admin, sent)  # noqa: SLF001 - as above
    except IncompatibleBrokerVersion:
        raise AdminError(f"this cluster does not serve {sent.name.removesuffix('Request')}") from None
    return _read(sent, body, answer)


def ask_broker(
    admin: Any, node: int, request: Any, answer: type[Answer], at_least: int = 0, at_most: int | None = None
) -> Answer:
    """Send a message of kbroker.protocol to one broker; raises like `ask_coordinator`.

    Use it only for APIs that every broker serves. This function sends no request to a broker that serves only versions
    below `at_least`, and uses no version above `at_most`.
    """
    sent = _Request(request, at_least, at_most)
    body = admin._manager.run(_send_to, admin, node, sent)  # noqa: SLF001 - as above
    return _read(sent, body, answer)


async def _send_to(admin: Any, node: int, request: _Request) -> bytes:
    body: bytes = await admin._manager.send(request, node_id=node)  # noqa: SLF001
    return body


async def _send_to_controller(admin: Any, request: _Request) -> bytes:
    node = await admin._refresh_controller_id()  # noqa: SLF001
    return await _send_to(admin, node, request)


def _read(sent: _Request, body: bytes, answer: type[Answer]) -> Answer:
    assert sent.API_VERSION is not None
    try:
        return decode(answer, sent.API_VERSION, body)
    except Malformed as err:
        raise AdminError(f"the broker's answer cannot be read: {err}") from None


async def _send(admin: Any, group: str | None, request: _Request) -> bytes:
    node = None if group is None else await admin._find_coordinator_id(group)  # noqa: SLF001
    body: bytes = await admin._manager.send(request, node_id=node)  # noqa: SLF001
    return body


class _Request:
    """A message in the form that kafka-python sends; the connection sets API_VERSION to the newest common version."""

    _min_version = None
    _max_version = None

    def __init__(self, message: Any, at_least: int = 0, at_most: int | None = None) -> None:
        self._message = message
        self.name = type(message).__name__
        self.API_KEY: int = message.KEY
        self.min_version: int = max(message.VERSIONS.low, at_least)
        self.max_version: int = message.VERSIONS.high if at_most is None else min(message.VERSIONS.high, at_most)
        self.API_VERSION: int | None = None
        self.header: _Header

    def expect_response(self) -> bool:
        return True

    def with_header(self, correlation_id: int, client_id: str) -> None:
        assert self.API_VERSION is not None
        flexible = self.API_VERSION in self._message.FLEXIBLE
        self.header = _Header(RequestHeader(self.API_KEY, self.API_VERSION, correlation_id, client_id), flexible)

    def encode(self, framed: bool, header: bool) -> bytes:
        """Return the request's bytes; kafka-python always requests them with the frame and the header."""
        assert framed
        assert header
        assert self.API_VERSION is not None
        body = self.header.encoded() + encode(self._message, self.API_VERSION)
        return struct.pack(">i", len(body)) + body


class _Header:
    """A request's header. This object also gives kafka-python the class that decodes the response."""

    def __init__(self, header: RequestHeader, flexible: bool) -> None:
        self._header = header
        self._flexible = flexible
        self.correlation_id = header.correlation_id

    def encoded(self) -> bytes:
        return encode(self._header, 2 if self._flexible else 1)

    def get_response_class(self) -> _Response:
        # An ApiVersions response always has header version 0, because the client does not know the broker's versions
        # yet.
        return _Response(self._flexible and self._header.request_api_key != _API_VERSIONS)


class _Response:
    """Decodes a response's header and leaves its body undecoded."""

    def __init__(self, flexible: bool) -> None:
        self._flexible = flexible

    def parse_header(self, buffer: Any) -> Any:
        return ResponseHeader.decode(buffer, flexible=self._flexible)

    def decode(self, buffer: Any) -> bytes:
        body: bytes = buffer.read()
        return body
