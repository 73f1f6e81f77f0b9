"""`kbroker user`: users with SCRAM passwords; these users may log in to listeners with SCRAM.

Owns the verbs. A password never leaves this process: only its salted form is sent. Never prints a password.
"""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from kbroker.admin.connection import Connection
from kbroker.admin.errors import raise_any
from kbroker.admin.users import TYPES, add_user, described_users, remove_user
from kbroker.cli.client import client_options
from kbroker.cli.output import Output, Verbs, output_option
from kbroker.security.sasl.scram_credential import LEAST_ITERATIONS, MOST_ITERATIONS

_mechanisms = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(TYPES), case_sensitive=False),
    help="SCRAM-SHA-256 or SCRAM-SHA-512; without this option, both.",
)


@click.group("user", cls=Verbs)
def command() -> None:
    """Add, list and remove users with SCRAM passwords."""


@command.command("add")
@click.argument("name")
@_mechanisms
@click.option(
    "--password",
    metavar="TEXT",
    help="The password, which other users of this machine can see; without this option, a prompt asks for it.",
)
@click.option("--iterations", type=click.IntRange(LEAST_ITERATIONS, MOST_ITERATIONS), default=LEAST_ITERATIONS)
@client_options
def add(name: str, mechanisms: tuple[str, ...], password: str | None, iterations: int, connection: Connection) -> None:
    """Add a user, or change a password.

    The password is read from standard input, or on a terminal at a prompt.
    """
    if password is None:
        password = _prompt()
    if not password:
        raise click.UsageError("the password is empty: type it at the prompt, or write it to standard input")
    with connection.admin() as admin:
        add_user(admin, name, password, mechanisms or tuple(TYPES), iterations)
    click.echo(f"user {name} has a password for {', '.join(mechanisms or TYPES)}")


@command.command("list")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@output_option
@client_options
def list_users(names: tuple[str, ...], output: Output, connection: Connection) -> None:
    """List users with SCRAM passwords, but never the passwords."""
    with connection.admin() as admin:
        credentials, failures = described_users(admin, names)
    found = [asdict(each) for each in credentials]
    output.rows(found, "user", "mechanism", "iterations")
    raise_any(failures)


@command.command("remove")
@click.argument("name")
@_mechanisms
@client_options
def remove(name: str, mechanisms: tuple[str, ...], connection: Connection) -> None:
    """Remove a user's passwords: all of them, or those of some mechanisms."""
    with connection.admin() as admin:
        removed = remove_user(admin, name, mechanisms)
    click.echo(f"user {name} has no password any more for {', '.join(removed)}")


def _prompt() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")
