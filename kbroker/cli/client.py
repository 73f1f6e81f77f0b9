"""Shared by the client verbs: the options of a connection, and the texts of errors.

Owns the options, and the end of a verb by a signal. The client's own log is silent except under `--debug`.
"""

from __future__ import annotations

import functools
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from kafka.errors import KafkaError

from kbroker.admin.connection import Connection, in_words
from kbroker.admin.profiles import connection_of
from kbroker.cli.completion import complete_profiles
from kbroker.cli.main import of_signal

Result = TypeVar("Result")

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
CLIENT_ID: Final = "kbroker-cli"


def client_options(function: Callable[..., Result]) -> Callable[..., Result]:
    """Add the options of a connection to a verb, pass the verb a `connection`, and convert errors to text.

    The order of precedence is -X, --command-config, --profile; a profile's address overrides the environment's.
    """

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        envvar=["KBROKER_BOOTSTRAP", "KAFKA_BOOTSTRAP_SERVERS"],
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        help="The address of a broker; also KBROKER_BOOTSTRAP or KAFKA_BOOTSTRAP_SERVERS.",
    )
    @click.option(
        "--command-config", "file", metavar="FILE", help="A file with settings of the client, as for Kafka's tools."
    )
    @click.option(
        "--profile",
        metavar="NAME",
        envvar="KBROKER_PROFILE",
        shell_complete=complete_profiles,
        help="Use the client's settings that `kbroker profile add` stored under this name; also KBROKER_PROFILE.",
    )
    @click.option("-X", "settings", multiple=True, metavar="KEY=VALUE", help="Set one client setting.")
    @functools.wraps(function)
    def with_connection(
        *args: Any, bootstrap: str, profile: str | None, file: str | None, settings: tuple[str, ...], **kwargs: Any
    ) -> Result:
        _set_log()
        nearest = _is_on_command_line("bootstrap")
        named = connection_of(bootstrap, profile, file, settings, warn, profile_counts=not nearest)
        connection = replace(named, client_id=CLIENT_ID)
        with errors_in_words(connection):
            return function(*args, connection=connection, **kwargs)

    return with_connection


def confirm(question: str) -> None:
    """Request a confirmation before a change.

    "No" and Ctrl-C end the verb. If nobody can answer, the verb fails, and its message names the remedy.
    """
    try:
        if not click.confirm(question, err=True):
            sys.exit(of_signal(signal.SIGINT))
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)  # end the line of the question
        raise click.ClickException("nothing was changed; --yes does it without asking") from None


def warn(line: str) -> None:
    """Print a warning."""
    click.echo(f"kbroker: {line}", err=True)


def _is_on_command_line(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _set_log() -> None:
    """Show the client's log under --debug only."""
    context = click.get_current_context(silent=True)
    if context is not None and context.find_root().params.get("debug"):
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s (%(name)s)")
    else:
        logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)


@contextmanager
def ending_at_signals() -> Iterator[None]:
    """Convert SIGINT and SIGTERM to an exception that ends a verb: its resources are released, and nothing is printed.

    Signals after the first one are ignored until the end of the `with`, so that they do not interrupt the release of
    resources. Therefore this release must have a time limit.
    """
    ending = False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        if ending:
            return
        ending = True
        sys.exit(of_signal(number))

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def errors_in_words(connection: Connection) -> Iterator[None]:
    """Convert the client's exceptions to a text of one line for people."""
    try:
        yield
    except KafkaError as err:
        raise click.ClickException(in_words(err, connection)) from err
    except ValueError as err:
        raise click.ClickException(str(err)) from err
