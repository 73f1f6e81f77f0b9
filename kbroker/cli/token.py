"""`kbroker token`: delegation tokens, with which a program logs in as a user without the user's password.

Owns the verbs; options have kafka-delegation-tokens' names. `create` prints an HMAC, which is as good as a password.
`list` prints HMACs only on request. The other verbs find the HMAC by the token's id.
"""

from __future__ import annotations

import base64
import datetime
from typing import Any

import click

from kbroker.admin.connection import Connection
from kbroker.admin.tokens import create_token, described_tokens, expire_token, renew_token
from kbroker.cli.client import client_options
from kbroker.cli.output import Column, Facts, Output, Verbs, output_option
from kbroker.protocol.messages.access import DescribedDelegationToken
from kbroker.security.principal import Principal

_DEFAULT = -1


class _PrincipalType(click.ParamType[Principal]):
    """A principal as TYPE:NAME, such as User:alice."""

    name = "TYPE:NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Principal:
        try:
            return value if isinstance(value, Principal) else Principal.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_PRINCIPAL = _PrincipalType()


@click.group("token", cls=Verbs)
def command() -> None:
    """Create, list, renew and expire delegation tokens."""


@command.command("create")
@click.option("--owner-principal", type=_PRINCIPAL, help="The user who logs in with the token; by default you.")
@click.option(
    "--renewer-principal", type=_PRINCIPAL, multiple=True, help="A user who may renew the token, besides the owner."
)
@click.option(
    "--max-life-time-period",
    type=int,
    default=_DEFAULT,
    metavar="MS",
    help="The longest duration of the token; by default the broker's setting.",
)
@output_option
@client_options
def create(
    owner_principal: Principal | None,
    renewer_principal: tuple[Principal, ...],
    max_life_time_period: int,
    output: Output,
    connection: Connection,
) -> None:
    """Create a token, and print its HMAC, which is the password for logins with it."""
    with connection.admin() as admin:
        answer = create_token(admin, owner_principal, renewer_principal, max_life_time_period)
    owner = f"{answer.principal_type}:{answer.principal_name}"
    if owner_principal is not None and owner != str(owner_principal):
        raise click.ClickException(f"this cluster makes tokens for the requester only: the token is for {owner}")
    facts = {
        "token": answer.token_id,
        "hmac": _text(answer.hmac),
        "owner": owner,
        "expires": _time(answer.expiry_timestamp_ms),
        "renewable until": _time(answer.max_timestamp_ms),
    }
    output.show(facts, Facts(list(facts.items())))


@command.command("list")
@click.option(
    "--owner-principal", type=_PRINCIPAL, multiple=True, help="Tokens that this user owns or may renew; all by default."
)
@click.option("--hmac", "with_hmac", is_flag=True, help="Show the HMACs, with which anyone can log in.")
@output_option
@client_options
def list_tokens(
    owner_principal: tuple[Principal, ...], with_hmac: bool, output: Output, connection: Connection
) -> None:
    """List the tokens that you may see."""
    with connection.admin() as admin:
        found = described_tokens(admin, owner_principal)
    rows = [_row(each, with_hmac) for each in found]
    renewers = Column("renewers", lambda row: ", ".join(row["renewers"]) or None)
    hmac = ["hmac"] if with_hmac else []
    output.rows(rows, "token", "owner", "requester", renewers, "issued", "expires", "renewable until", *hmac)


@command.command("renew")
@click.argument("token")
@click.option(
    "--renew-time-period",
    type=int,
    default=_DEFAULT,
    metavar="MS",
    help="The new duration, from now on; by default the broker's setting.",
)
@client_options
def renew(token: str, renew_time_period: int, connection: Connection) -> None:
    """Extend the validity of a token; TOKEN is its id."""
    with connection.admin() as admin:
        expires_ms = renew_token(admin, token, renew_time_period)
    click.echo(f"token {token} expires at {_time(expires_ms)}")


@command.command("expire")
@click.argument("token")
@click.option(
    "--expiry-time-period",
    type=int,
    default=_DEFAULT,
    metavar="MS",
    help="The time until the token expires; by default it expires at once.",
)
@client_options
def expire(token: str, expiry_time_period: int, connection: Connection) -> None:
    """Expire a token, immediately or after a period; TOKEN is its id."""
    with connection.admin() as admin:
        expires_ms = expire_token(admin, token, expiry_time_period)
    if expiry_time_period < 0:
        click.echo(f"token {token} is gone")
    else:
        click.echo(f"token {token} expires at {_time(expires_ms)}")


def _row(token: DescribedDelegationToken, with_hmac: bool) -> dict[str, Any]:
    requester = f"{token.token_requester_principal_type}:{token.token_requester_principal_name}"
    row: dict[str, Any] = {
        "token": token.token_id,
        "owner": f"{token.principal_type}:{token.principal_name}",
        "requester": requester if token.token_requester_principal_type else None,
        "renewers": [f"{each.principal_type}:{each.principal_name}" for each in token.renewers],
        "issued": _time(token.issue_timestamp),
        "expires": _time(token.expiry_timestamp),
        "renewable_until": _time(token.max_timestamp),
    }
    if with_hmac:
        row["hmac"] = _text(token.hmac)
    return row


def _text(hmac: bytes) -> str:
    return base64.b64encode(bytes(hmac)).decode()


def _time(ms: int) -> str:
    try:
        when = datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return "never"
    return when.isoformat(timespec="seconds")
