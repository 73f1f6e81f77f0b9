"""`kbroker console`: serve the web console of any Kafka.

Owns the options, and the process around the server. The server's module is loaded only on demand.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError
from kbroker.admin.schemas import SchemaRegistry
from kbroker.cli.client import client_options
from kbroker.local_http import CONSOLE, parse

PASSWORD: Final = "KBROKER_CONSOLE_PASSWORD"
"""The environment variable that may contain the password of --user."""
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_PATH: Final = click.Path(path_type=Path)


@click.command("console")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=CONSOLE.default,
    show_default=True,
    help="The address of the console. Port 0 chooses a free port.",
)
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option(
    "--user", metavar="NAME", help=f"A user who may log in, with the password in --password-file or {PASSWORD}."
)
@click.option("--password-file", type=_FILE, help="A file with the password of --user in its first line.")
@click.option(
    "--users",
    type=_PATH,
    metavar="FILE",
    help="A file with the users who may log in: the lines that --hash-password prints.",
)
@click.option("--hash-password", is_flag=True, help="Read a password, print a line for the file of --users, and end.")
@click.option("--tls-cert", type=_FILE, help="Serve HTTPS with the certificate chain in this PEM file.")
@click.option("--tls-key", type=_FILE, help="The PEM file with the key of --tls-cert.")
@click.option(
    "--console-public",
    is_flag=True,
    help="Allow an address that other machines can reach, under any host name, without a password.",
)
@click.option(
    "--host-name",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name under which browsers reach the console, besides addresses and localhost; repeatable.",
)
@click.option(
    "--schemas",
    type=_PATH,
    metavar="DIR",
    help="Schemas that decode the shown values: Avro (*.avsc), or descriptor sets of Protobuf (*.desc).",
)
@click.option(
    "--registry",
    metavar="URL",
    envvar="KBROKER_REGISTRY",
    help="Show the subjects of this schema registry, and decode values with its schemas.",
)
@click.option("--registry-ca", type=_FILE, help="The PEM file of the authority that signed the registry's certificate.")
@click.option("--ready-file", metavar="FILE", help="After the start, write the address to this file.")
@client_options
def command(connection: Connection, **options: Any) -> None:
    """Serve a web console: topics, records, groups, and all other parts of a cluster, in a browser."""
    if options["hash_password"]:
        _print_hash(options["user"])
        return
    CONSOLE.require("kbroker console")
    users = users_of(options["user"], options["password_file"], options["users"])
    tls = _tls(options["tls_cert"], options["tls_key"])
    host, port = parse(options["listen"], "--listen", CONSOLE.default)
    _set_log()
    from kbroker.console.console import Settings
    from kbroker.console.server import ConsoleServer

    settings = Settings(
        read_only=options["read_only"],
        public=options["console_public"],
        names=frozenset(name.lower() for name in options["names"]),
        users=users,
        cli=_cli(connection),
    )
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    registry = None if options["registry"] is None else SchemaRegistry(options["registry"], options["registry_ca"])
    made = CONSOLE.listening(host, port, "--listen", public=bool(users) or options["console_public"])
    try:
        server = ConsoleServer(connection, made, settings, schemas=options["schemas"], registry=registry, tls=tls)
    except OSError as error:  # an ssl error is an OSError, too
        made.close()
        raise AdminError(f"--tls-cert: {error.strerror or error}") from None
    except BaseException:
        made.close()
        raise
    with server:
        click.echo(f"the console of {connection.bootstrap} is at {server.url} (Ctrl-C stops it)")
        sys.stdout.flush()
        if options["ready_file"]:
            Path(options["ready_file"]).write_text(f"{server.url}\n")
        over.wait()


def users_of(user: str | None, password_file: Path | None, users: Path | None) -> dict[str, str] | None:
    """Return the users who may log in; None if no login is needed. Raises AdminError."""
    from kbroker.console.passwords import hashed, read_users

    found = {} if users is None else read_users(users)
    if user is None:
        if password_file is not None:
            raise click.UsageError("--password-file is the password of --user")
        return found or None
    if password_file is not None:
        password = password_file.read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    else:
        password = os.environ.get(PASSWORD) or _prompt()
    if not password:
        raise AdminError(f"the password of {user} is empty")
    return {**found, user: hashed(password)}


def _prompt() -> str:
    if not sys.stdin.isatty():
        raise AdminError(f"--user needs a password: --password-file, {PASSWORD}, or a terminal to ask for it")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


def _print_hash(user: str | None) -> None:
    from kbroker.console.passwords import hashed

    password = _prompt() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise AdminError("a password must not be empty")
    click.echo(f"{user or 'NAME'}:{hashed(password)}")


def _tls(cert: Path | None, key: Path | None) -> tuple[str, str] | None:
    if (cert is None) != (key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    return None if cert is None or key is None else (str(cert), str(key))


def _set_log() -> None:
    """Log changes and warnings to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s (%(name)s)"))
    log = logging.getLogger("kbroker.console")
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.propagate = False


def _cli(connection: Connection) -> tuple[str, ...]:
    """Return the options for command lines to copy. Settings are omitted, because settings may be secret."""
    context = click.get_current_context()
    params = context.params
    found: list[str] = []
    profile, file = params.get("profile"), params.get("file")
    if profile:
        found += ["--profile", str(profile)]
    if file:
        found += ["--command-config", str(file)]
    if not profile or context.get_parameter_source("bootstrap") is ParameterSource.COMMANDLINE:
        found += ["--bootstrap", connection.bootstrap]
    return tuple(found)
