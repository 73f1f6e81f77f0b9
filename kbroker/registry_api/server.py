"""The registry's server: web_server.py around the application, and the count of requests."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kbroker.registry_api.application import BY_ID, Application
from kbroker.registry_api.connection import LARGEST_HEAD, RegistryConnection
from kbroker.registry_api.forwarding import Forwarding, Leader, LeaderOfBroker
from kbroker.registry_api.logins import Authenticated, Credentials, Logins
from kbroker.registry_api.requests import NOTE
from kbroker.schema_registry.registry import Registry, Store
from kbroker.schema_registry.service import FromOtherThread
from kbroker.schema_registry.tally import ELSEWHERE, Tally
from kbroker.security.authorizer.authorizer import Authorizer
from kbroker.web_server import WebServer

if TYPE_CHECKING:  # `kbroker registry` runs without a broker
    from kbroker.broker.base_node import Node
    from kbroker.broker.cluster_node import ClusterNode

CONNECTIONS: Final = 1_000
CONFLUENT: Final = "8.1.0"
"""The version of Confluent's registry that has this API; clients may request it."""
log = logging.getLogger(__name__)


class RegistryServer(WebServer):
    """Serves a registry on a listening socket until `stop`, also as a context manager.

    `stop` must not be called on the thread of the store's loop, because a running operation may wait for that loop.
    """

    def __init__(
        self,
        store: Store,
        listening: socket.socket,
        *,
        cluster_id: str,
        tls: tuple[str, str] | None = None,
        ca: str | None = None,
        leader: Leader | None = None,
        credentials: Credentials | None = None,
        authorizer: Authorizer | None = None,
        tally: Tally | None = None,
    ) -> None:
        """Prepare the server. Raises OSError if a file cannot be read.

        `leader` finds the broker that leads `_schemas`. The server forwards requests to that broker. Without `leader`,
        the server answers all requests itself. With `credentials`, only their users are served; the server's thread
        looks credentials up. With an `authorizer`, users may perform only the operations that its ACLs allow. `tally`
        counts all requests.

        `tls` are the files of the certificate and its key. `ca` is the file of the CA that verifies other brokers'
        registries. Without a file, the system's CAs verify them.
        """
        parts: list[Callable[[], None]] = []
        own = Application(Registry(store), _about(cluster_id), authorizer)
        app: ASGIApp = own
        if leader is not None:
            others = None if ca is None else ssl.create_default_context(cafile=ca)
            app = forwarding = Forwarding(own, leader, others, only_tls=tls is not None)
            parts.append(forwarding.close)
        if credentials is not None:
            logins = Logins(credentials)
            parts.append(logins.close)
            app = Authenticated(app, logins)
        if tally is not None:
            app = Counted(app, tally)

        def at_once(target: bytes) -> bytes | None:
            began = time.perf_counter()
            body = own.at_once(target)
            if body is not None and tally is not None:
                tally.add(BY_ID, 200, time.perf_counter() - began)
            return body

        def ending() -> None:  # running requests have deadlines
            for close in parts:
                close()

        super().__init__(
            app,
            listening,
            "schema registry",
            log,
            ending,
            protocol=partial(RegistryConnection, at_once=at_once if credentials is None else None),
            connections=CONNECTIONS,
            largest_head=LARGEST_HEAD,
            beside_broker=True,
            tls=tls,
        )


class Counted:
    """The ASGI application in front of another application; it counts the requests."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the other application answer a request, and count it."""
        if scope["type"] != "http":
            return
        began, status = time.perf_counter(), 0
        scope[NOTE] = note = [ELSEWHERE]  # the application may copy the scope, but copies share the list

        async def seen(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            self._tally.add(note[-1], status, time.perf_counter() - began)


def of_broker(
    node: Node,
    loop: asyncio.AbstractEventLoop,
    listening: socket.socket,
    *,
    asks_for_login: bool,
    tls: tuple[str, str] | None = None,
    ca: str | None = None,
) -> RegistryServer:
    """Open a broker's registry; return its server, which does not serve yet. Call it in the broker's loop.

    Raises OSError like `RegistryServer`.
    """
    registry = node.open_registry()
    return RegistryServer(
        FromOtherThread(registry, loop),
        listening,
        cluster_id=node.cluster_id,
        leader=LeaderOfBroker(cast("ClusterNode", node), loop) if node.config.in_cluster else None,
        tls=tls,
        ca=ca,
        credentials=node.credential_of if asks_for_login else None,
        authorizer=node.services.authorizer,
        tally=registry.tally,
    )


def _about(cluster_id: str) -> Mapping[str, Any]:
    """Return the answers of /v1/metadata."""
    clusters = {"kafka-cluster": cluster_id, "schema-registry-cluster": "schema-registry"}
    return {
        "id": {"id": "", "scope": {"path": [], "clusters": clusters}},
        "version": {"version": CONFLUENT, "commitId": ""},
        "deployment": {"attributes": []},
    }
