"""Clients that create delegation tokens and log in with them, in terms of the protocol.

Owns the connections. Never judges an answer.
"""

from __future__ import annotations

import base64
from typing import Any

from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ScramCredentialUpsertion,
)
from kbroker.protocol.messages.connections import SaslAuthenticateRequest, SaslHandshakeRequest
from kbroker.security.sasl.scram import ScramClient
from kbroker.security.sasl.scram_credential import MECHANISM_TYPES, salted_password


class TokenClient(ScramClient):
    """A connection that sends what Java's client sends with tokenauth="true"."""

    def __init__(self, mechanism: str, token_id: str, password: str) -> None:
        super().__init__(mechanism, token_id, password)
        self._bare += ",tokenauth=true"


def converse(client: WireClient, one: ScramClient, mechanism: str) -> Any:
    """Authenticate; return the last answer."""
    assert client.ask(SaslHandshakeRequest(mechanism), 1).error_code == 0
    token: bytes | None = one.first()
    answer: Any = None
    while token is not None:
        answer = client.ask(SaslAuthenticateRequest(token), 2)
        if answer.error_code:
            return answer
        token = one.respond(bytes(answer.auth_bytes))
    return answer


def log_in(address: str, name: str, password: str, mechanism: str) -> WireClient:
    """Return an authenticated connection."""
    client = WireClient(address)
    answer = converse(client, ScramClient(mechanism, name, password), mechanism)
    assert answer.error_code == 0, answer
    return client


def by_token(address: str, token: Any, mechanism: str, password: str | None = None) -> tuple[WireClient, Any]:
    """Return a connection, and the last answer of a login with a token on it."""
    client = WireClient(address)
    shown = password or base64.b64encode(bytes(token.hmac)).decode()
    return client, converse(client, TokenClient(mechanism, token.token_id, shown), mechanism)


def add_user(address: str, name: str, password: str, mechanism: str) -> bool:
    """Add a user through an open listener; return whether that succeeded."""
    kind = {each: number for number, each in MECHANISM_TYPES.items()}[mechanism]
    salted = salted_password(mechanism, password, b"salt", 4096)
    upsertion = ScramCredentialUpsertion(name, kind, 4096, b"salt", salted)
    with WireClient(address) as client:
        answer = client.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion]), 0)
    return [each.error_code for each in answer.results] == [0]


def create(
    client: WireClient,
    version: int = 3,
    renewers: tuple[tuple[str, str], ...] = (),
    lifetime_ms: int = -1,
    owner: tuple[str | None, str | None] = (None, None),
) -> Any:
    """Create a token."""
    some = [CreatableRenewers(*each) for each in renewers]
    return client.ask(CreateDelegationTokenRequest(*owner, some, lifetime_ms), version)


def describe(client: WireClient, owners: list[str] | None = None, version: int = 3) -> Any:
    """Describe the tokens of some users, or all tokens."""
    asked = None if owners is None else [DescribeDelegationTokenOwner("User", each) for each in owners]
    return client.ask(DescribeDelegationTokenRequest(owners=asked), version)
