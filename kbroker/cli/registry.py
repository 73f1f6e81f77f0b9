"""`kbroker registry`: serve a schema registry beside any Kafka.

Owns the options, and the process around the server. The server's module is loaded only on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from kbroker.admin.cluster_view import cluster_view
from kbroker.admin.connection import Connection
from kbroker.admin.schema_store import TRANSACTIONAL_ID, KafkaStore
from kbroker.cli.client import client_options
from kbroker.cli.registry_place import tls_files
from kbroker.local_http import REGISTRY, parse

_NO_LOGIN: Final = "everybody could register and delete schemas; --registry-public allows that"


@click.command("registry")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=REGISTRY.default,
    show_default=True,
    help="The address to listen on; port 0 takes a free port.",
)
@click.option(
    "--registry-public",
    is_flag=True,
    help="Allow a --listen address that others can reach; they can then register and delete schemas.",
)
@click.option("--tls-cert", type=click.Path(dir_okay=False), help="Serve HTTPS with this certificate chain, as PEM.")
@click.option("--tls-key", type=click.Path(dir_okay=False), help="The key of --tls-cert, as PEM.")
@click.option(
    "--transactional-id",
    metavar="ID",
    default=TRANSACTIONAL_ID,
    show_default=True,
    help="The transactional id for changes; it must be the same for all instances beside one Kafka.",
)
@click.option("--ready-file", metavar="FILE", help="Write the address to this file once the registry serves.")
@client_options
def command(
    connection: Connection,
    listen: str,
    registry_public: bool,
    tls_cert: str | None,
    tls_key: str | None,
    transactional_id: str,
    ready_file: str | None,
) -> None:
    """Serve a schema registry with Confluent's API, which stores schemas in the topic _schemas of any Kafka."""
    REGISTRY.require("kbroker registry")
    host, port = parse(listen, "--listen", REGISTRY.default)
    tls = tls_files(tls_cert, tls_key, "--tls-cert", "--tls-key")
    listening = REGISTRY.listening(host, port, "--listen", public=registry_public, not_public=_NO_LOGIN)
    with contextlib.closing(listening), _logging():
        asyncio.run(_serve(connection, listening, tls, transactional_id, ready_file))


async def _serve(
    connection: Connection,
    listening: socket.socket,
    tls: tuple[str, str] | None,
    transactional_id: str,
    ready_file: str | None,
) -> None:
    """Serve until a signal."""
    from kbroker.registry_api.server import RegistryServer
    from kbroker.schema_registry.service import FromOtherThread

    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    store = KafkaStore(connection, transactional_id)
    opening = asyncio.ensure_future(_opened(store, connection))
    ending = asyncio.ensure_future(over.wait())
    begun: set[asyncio.Future[Any]] = {opening, ending}
    await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
    if not opening.done():
        store.close()
        return
    cluster_id = opening.result()
    try:
        server = RegistryServer(FromOtherThread(store, loop), listening, cluster_id=cluster_id, tls=tls).start()
        try:
            click.echo(f"the schema registry of {connection.bootstrap} is at {server.url} (Ctrl-C stops it)")
            sys.stdout.flush()
            if ready_file:
                await asyncio.to_thread(Path(ready_file).write_text, f"{server.url}\n")
            await ending
        finally:
            store.close()  # the store closes first, so that no request waits for Kafka any more
            await asyncio.to_thread(server.stop)
    finally:
        store.close()


async def _opened(store: KafkaStore, connection: Connection) -> str:
    """Open the store; return the cluster's id."""
    await store.open()
    return await asyncio.to_thread(_cluster_id, connection)


def _cluster_id(connection: Connection) -> str:
    with connection.admin() as admin:
        return cluster_view(admin, []).cluster_id or ""


@contextlib.contextmanager
def _logging() -> Iterator[None]:
    """Log to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s (%(name)s)"))
    log = logging.getLogger("kbroker")
    before = log.level, log.propagate
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]
