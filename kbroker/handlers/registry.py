"""The registry of APIs: the handler of each API, and the versions that it serves.

Owns the registry, which `@handles` fills. ApiVersions is derived from the registry: APIs that are not registered are
not advertised, and some APIs are advertised only while they are useful. Never calls a handler: dispatch.py calls
handlers.

A handler is `def api(ctx, request) -> response`, run on the event loop. If a request may be long or its response may
have to wait, the handler is a coroutine function, or returns an awaitable. The handler yields to the loop as
long_work.py describes. `ctx.version` is the request's version; a handler uses it only if *behaviour* differs between
versions. If a handler returns None, no response is sent (Produce with acks=0).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kbroker.handlers.metering import Metering
from kbroker.handlers.services import Services
from kbroker.protocol.schema import Versions
from kbroker.security.principal import ANONYMOUS, Principal


class CloseConnection(Exception):  # noqa: N818 - an instruction, not a failure of the program
    """Closes the connection without a response, as Kafka does after an unreadable or unknown request.

    After a failed authentication, `farewell` is a framed response that is sent before the close.
    """

    def __init__(self, reason: str, farewell: bytes = b"") -> None:
        super().__init__(reason)
        self.farewell = farewell


class RequestContext:
    """The data of a request, except its body, for handlers.

    Each connection has one context, and updates it for each request. `client_host` is Kafka's form of a peer address
    ("/127.0.0.1"), `client_port` the peer's port. `listener` is the name of the connection's listener.
    """

    __slots__ = (
        "client_host", "client_id", "client_port", "client_software", "follows", "known_requests", "limited",
        "listener", "local_address", "metering", "on_closed", "principal", "raw_client_id", "rights", "services",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        client_host: str,
        listener: str,
        local_address: tuple[str, int],
        client_port: int = 0,
    ) -> None:
        self.services = services
        self.client_host = client_host
        self.client_port = client_port
        self.client_id: str | None = None
        self.raw_client_id: Any = None
        self.client_software: tuple[str, str] = ("", "")
        self.listener = listener
        self.local_address = local_address
        self.principal = ANONYMOUS
        """The authenticated principal of this connection."""
        self.rights: Any = None
        """The principal's rights (authorizer.Rights); None before the first use of an authorizer."""
        self.version = 0
        self.limited: tuple[int, Principal, Any, bool] | None = None
        """The result of the last lookup of quotas, and the keys of this lookup (Dispatcher)."""
        self.metering: Metering | None = None
        """The meter of the client's quotas; None as long as there are no quotas."""
        self.follows = False
        """Whether the client is another broker that fetches from this broker as a follower."""
        self.known_requests: Any = None
        """The earlier requests that this connection may repeat (express_produce.KnownRequests)."""
        self.on_closed: dict[object, Callable[[], None]] | None = None
        """The functions to call after the connection has ended (when_closed)."""

    def when_closed(self, key: object, call: Callable[[], None]) -> None:
        """Call `call` after the connection has ended. `call` replaces an earlier function with the same key."""
        if self.on_closed is None:
            self.on_closed = {}
        self.on_closed[key] = call

    def set_client_id(self, raw: memoryview | None) -> None:
        """Set the client id from a request header. It seldom changes within a connection."""
        self.raw_client_id = None if raw is None else bytes(raw)
        self.client_id = None if raw is None else str(raw, "utf-8", "replace")


_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
Reply: TypeAlias = _Answer | Awaitable[_Answer | None] | None
"""The result of a handler. See the docstring of this module."""
Handler = Callable[[RequestContext, Any], Any]


@dataclass(frozen=True, slots=True)
class Api:
    """One served API: its request and response classes, the versions served, and the function.

    `on_error` builds the response to a request that failed completely (an ApiError), because the field for the error
    differs between APIs. `on_error` may be a coroutine function, like a handler.
    """

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    versions: Versions
    handler: Handler
    on_error: Callable[[Any, int, str | None], Any]
    cluster: bool = False
    """Whether only a node of a cluster serves the API."""
    advertised: Callable[[Services], bool] = lambda _services: True
    """Whether ApiVersions lists the API at present. The API answers requests even if it is not listed."""


APIS: dict[int, Api] = {}


def served(*, in_cluster: bool) -> dict[int, Api]:
    """Return the APIs of a node, by key. A node of a cluster also serves inter-broker APIs."""
    return {key: api for key, api in APIS.items() if in_cluster or not api.cluster}


def handles(
    request: type[_Request],
    response: type[_Answer],
    versions: str,
    on_error: Callable[[_Request, int, str | None], _Answer | Coroutine[Any, Any, _Answer]] | None = None,
    *,
    cluster: bool = False,
    advertised: Callable[[Services], bool] = lambda _services: True,
) -> Callable[
    [Callable[[RequestContext, _Request], Reply[_Answer]]], Callable[[RequestContext, _Request], Reply[_Answer]]
]:
    """Register a function for an API in `versions` ("3-13").

    `on_error(request, code, message)` builds the response for an ApiError; without `on_error` the response's field
    `error_code` is set, and `error_message` if this field exists. With `cluster`, only a node of a cluster serves the
    API. `advertised` returns whether ApiVersions lists the API at present.
    """

    def default_error(_request: Any, code: int, message: str | None) -> Any:
        answer: Any = response()
        answer.error_code = code
        if hasattr(answer, "error_message"):
            answer.error_message = message
        return answer

    def register(
        function: Callable[[RequestContext, _Request], Reply[_Answer]],
    ) -> Callable[[RequestContext, _Request], Reply[_Answer]]:
        key: int = request.KEY  # type: ignore[attr-defined]
        if key in APIS:
            raise ValueError(f"{request.__name__} is already served")
        APIS[key] = Api(
            key=key,
            name=request.__name__.removesuffix("Request"),
            request=request,
            response=response,
            versions=Versions.parse(versions),
            handler=function,
            on_error=on_error or default_error,
            cluster=cluster,
            advertised=advertised,
        )
        return function

    return register
