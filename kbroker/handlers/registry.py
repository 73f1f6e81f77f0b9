"""Which function serves which API, and in which versions.

Owns the registry that `@handles` fills and that ApiVersions is derived from: what is not registered is not advertised,
and some APIs only where there is a use for them. Never calls a handler: dispatch.py does.

A handler is `def api(ctx, request) -> response`, run on the event loop. Where a request may be long or its answer may
have to wait, it is a coroutine function, or returns an awaitable; it gives way as long_work.py says. `ctx.version` is
the request's version; a handler looks at it only where *behaviour* differs between versions. It may return None for "no
answer at all" (Produce with acks=0).
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
    """The connection must end without an answer (Kafka's reaction to what it cannot parse or does not serve).

    `farewell` is a framed answer that goes before the end all the same, to an authentication that has failed.
    """

    def __init__(self, reason: str, farewell: bytes = b"") -> None:
        super().__init__(reason)
        self.farewell = farewell


class RequestContext:
    """What a handler may know of the request besides its body. One object serves a connection; fields change a request.

    `client_host` is Kafka's form of a peer address ("/127.0.0.1"), `client_port` the port at that end. `listener` names
    the listener it came by.
    """

    __slots__ = (
        "client_host", "client_id", "client_port", "client_software", "follows", "forms", "limited", "listener",
        "local_address", "metering", "on_closed", "principal", "raw_client_id", "rights", "services", "version",
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
        """Who has authenticated on this connection."""
        self.rights: Any = None
        """What he may do (authorizer.Rights), once an authorizer was asked."""
        self.version = 0
        self.limited: tuple[int, Principal, Any, bool] | None = None
        """Whether there was any quota for whom, when that was last looked up (Dispatcher)."""
        self.metering: Metering | None = None
        """What the request uses of its client's quotas, since there are any."""
        self.follows = False
        """Whether it is another broker that copies from here."""
        self.forms: Any = None
        """What is known of this connection's requests (express_produce.Forms)."""
        self.on_closed: Callable[[], None] | None = None
        """Called when the connection has ended."""

    def set_client_id(self, raw: memoryview | None) -> None:
        """Take over the client id of a request header; it seldom changes within a connection."""
        self.raw_client_id = None if raw is None else bytes(raw)
        self.client_id = None if raw is None else str(raw, "utf-8", "replace")


_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
Reply: TypeAlias = _Answer | Awaitable[_Answer | None] | None
"""What a handler may return for a request; see the module's docstring."""
Handler = Callable[[RequestContext, Any], Any]


@dataclass(frozen=True, slots=True)
class Api:
    """One served API: its request and response classes, the versions served, and the function.

    `on_error` builds the answer to a whole-request failure (an ApiError), as each API has its own place for it; it may
    be a coroutine function, as a handler may.
    """

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    versions: Versions
    handler: Handler
    on_error: Callable[[Any, int, str | None], Any]
    cluster: bool = False
    """Whether only a node of a cluster serves it."""
    advertised: Callable[[Services], bool] = lambda _services: True
    """Whether clients are told of it, at this moment; who asks all the same is answered."""


APIS: dict[int, Api] = {}


def served(*, in_cluster: bool) -> dict[int, Api]:
    """Return what a node serves, by key: brokers ask each other for things that a node alone has no answer to."""
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

    `on_error(request, code, message)` makes the answer for an ApiError; without it the response's `error_code` field is
    set (and `error_message`, where there is one). `cluster`: only a node of a cluster serves it.
    `advertised` tells whether clients are to know of it, at a moment.
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
