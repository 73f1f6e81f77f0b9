"""`kbroker user`: users with SCRAM passwords, who may log in where a listener offers SCRAM.

Owns the verbs. The password never leaves this process: it goes salted. Never prints one.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from kbroker.admin.codes import code_error, error_text
from kbroker.admin.connection import Connection
from kbroker.admin.errors import Failures
from kbroker.admin.own_request import ask_controller
from kbroker.cli.client import client_options
from kbroker.cli.output import json_option, print_json, print_table
from kbroker.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kbroker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from kbroker.security.sasl.scram_credential import (
    LEAST_ITERATIONS,
    MECHANISM_TYPES,
    MOST_ITERATIONS,
    new_salt,
    salted_password,
)

_TYPES = {name: kind for kind, name in MECHANISM_TYPES.items()}
_mechanisms = click.option(
    "--mechanism",
    "mechanisms",
    multiple=True,
    type=click.Choice(list(_TYPES), case_sensitive=False),
    help="SCRAM-SHA-256 or SCRAM-SHA-512; both without it.",
)


@click.group("user")
def command() -> None:
    """Add, list and remove users with SCRAM passwords."""


@command.command("add")
@click.argument("name")
@_mechanisms
@click.option("--password", metavar="TEXT", help="The password; others on this machine can see it. Asked for without.")
@click.option("--iterations", type=click.IntRange(LEAST_ITERATIONS, MOST_ITERATIONS), default=LEAST_ITERATIONS)
@client_options
def add(name: str, mechanisms: tuple[str, ...], password: str | None, iterations: int, connection: Connection) -> None:
    """Add a user, or give one another password; it is read from standard input, or asked for at a terminal."""
    if password is None:
        password = _asked()
    if not password:
        raise click.UsageError("a password is not empty")
    upsertions = []
    for mechanism in mechanisms or tuple(_TYPES):
        salt = new_salt()
        salted = salted_password(mechanism, password, salt, iterations)
        upsertions.append(ScramCredentialUpsertion(name, _TYPES[mechanism], iterations, salt, salted))
    with connection.admin() as admin:
        for each in upsertions:  # one at a time: a request may name a user only once
            _alter(admin, AlterUserScramCredentialsRequest(upsertions=[each]), f"cannot add {name}")
    click.echo(f"user {name} has a password for {', '.join(mechanisms or _TYPES)}")


@command.command("list")
@click.argument("names", nargs=-1, metavar="[NAME...]")
@json_option
@client_options
def list_users(names: tuple[str, ...], as_json: bool, connection: Connection) -> None:
    """List users with SCRAM passwords; never the passwords."""
    asked = [UserName(name) for name in dict.fromkeys(names)] or None
    with connection.admin() as admin:
        answer = ask_controller(
            admin, DescribeUserScramCredentialsRequest(users=asked), DescribeUserScramCredentialsResponse
        )
    error = code_error(answer.error_code)
    if error is not None:
        raise click.ClickException(f"cannot list users: {error_text(error, answer.error_message)}")
    failures = [
        f"{each.user}: {error_text(code_error(each.error_code), each.error_message)}"
        for each in answer.results
        if each.error_code
    ]
    found = [
        {"user": each.user, "mechanism": MECHANISM_TYPES.get(info.mechanism, "?"), "iterations": info.iterations}
        for each in sorted(answer.results, key=lambda result: result.user)
        for info in each.credential_infos
    ]
    if as_json:
        print_json(found)
    else:
        print_table(["user", "mechanism", "iterations"], [list(each.values()) for each in found])
    if failures:
        raise Failures(failures)


@command.command("remove")
@click.argument("name")
@_mechanisms
@client_options
def remove(name: str, mechanisms: tuple[str, ...], connection: Connection) -> None:
    """Remove a user's passwords: all of them, or those of some mechanisms."""
    with connection.admin() as admin:
        if not mechanisms:
            request = DescribeUserScramCredentialsRequest(users=[UserName(name)])
            result = ask_controller(admin, request, DescribeUserScramCredentialsResponse).results[0]
            if result.error_code:
                said = error_text(code_error(result.error_code), result.error_message)
                raise click.ClickException(f"cannot remove {name}: {said}")
            mechanisms = tuple(MECHANISM_TYPES[info.mechanism] for info in result.credential_infos)
        for mechanism in mechanisms:
            deletion = ScramCredentialDeletion(name, _TYPES[mechanism])
            _alter(admin, AlterUserScramCredentialsRequest(deletions=[deletion]), f"cannot remove {name}")
    click.echo(f"user {name} has no password any more for {', '.join(mechanisms)}")


def _asked() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")


def _alter(admin: Any, request: AlterUserScramCredentialsRequest, failure: str) -> None:
    answer = ask_controller(admin, request, AlterUserScramCredentialsResponse)
    for each in answer.results:
        error = code_error(each.error_code)
        if error is not None:
            raise click.ClickException(f"{failure}: {error_text(error, each.error_message)}")
