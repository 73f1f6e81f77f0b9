"""Logging in with a delegation token: SCRAM with tokenauth=true, and the tokens that exist at that moment."""

from __future__ import annotations

import pytest

from kbroker.security.principal import Principal
from kbroker.security.sasl.authentication import Authentication, AuthenticationFailed, Identity, Offer
from kbroker.security.sasl.scram import ScramClient, ScramServer
from kbroker.security.sasl.scram_credential import HASHES, from_password
from kbroker.security.tokens import known
from kbroker.security.tokens.known import NO_TOKENS, TokenLogins, Tokens
from kbroker.security.tokens.token import TokenInformation, TokenSettings

MECHANISMS = sorted(HASHES)
SETTINGS = TokenSettings(b"secret", 1000, 100, 10)
ALICE = Principal("User", "alice")


class World:
    def __init__(self):
        self.now = 1000
        self.tokens = NO_TOKENS
        self.find = TokenLogins(lambda: self.tokens, lambda: self.now)

    def issue(self, token_id="id", expires=2000):
        token = SETTINGS.token(TokenInformation(token_id, ALICE, ALICE, (), 0, 9000, expires))
        self.tokens = self.tokens.with_token(token)
        return token

    def server(self, mechanism):
        user = from_password(mechanism, "pencil", b"salt", 4096)
        return ScramServer(mechanism, {"alice": user}.get, lambda token_id: self.find(token_id, mechanism))


class TokenClient(ScramClient):
    """A client that sends what Java's client sends with tokenauth="true"."""

    extension = ",tokenauth=true"

    def __init__(self, mechanism, token_id, password):
        super().__init__(mechanism, token_id, password)
        self._bare += self.extension


def converse(server, client):
    answer = server.respond(client.first())
    while (token := client.respond(answer)) is not None:
        answer = server.respond(token)
    return server.identity


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("extension", [",tokenauth=true", ",x=y,tokenauth=TRUE"])
def test_it_makes_somebody_its_owner_until_it_ends(mechanism, extension, monkeypatch):
    monkeypatch.setattr(TokenClient, "extension", extension)
    world = World()
    token = world.issue()
    for _ in range(2):
        found = converse(world.server(mechanism), TokenClient(mechanism, "id", token.password))
        assert found == Identity("alice", 2000, by_token=True)
    world.issue(expires=3000)
    assert converse(world.server(mechanism), TokenClient(mechanism, "id", token.password)).expires_ms == 3000
    world.now = 3001
    with pytest.raises(AuthenticationFailed):
        converse(world.server(mechanism), TokenClient(mechanism, "id", token.password))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_nobody_else_is_let_in(mechanism):
    world = World()
    token = world.issue()
    refused = []
    for client in (
        TokenClient(mechanism, "id", "wrong"),
        TokenClient(mechanism, "other", token.password),
        TokenClient(mechanism, "alice", "pencil"),  # a user's password is no token
        ScramClient(mechanism, "id", token.password),  # and a token is no user
        ScramClient(mechanism, "alice", token.password),
    ):
        with pytest.raises(AuthenticationFailed) as failed:
            converse(world.server(mechanism), client)
        refused.append((str(failed.value), failed.value.client_message))
    assert len(set(refused)) == 1
    assert converse(world.server(mechanism), ScramClient(mechanism, "alice", "pencil")) == Identity("alice")
    world.tokens = world.tokens.without("id")
    with pytest.raises(AuthenticationFailed):
        converse(world.server(mechanism), TokenClient(mechanism, "id", token.password))


def test_credentials_are_remembered_but_not_without_end(monkeypatch):
    world = World()
    made = []
    monkeypatch.setattr(
        known, "from_password", lambda *what: (made.append(what[1]), from_password("SCRAM-SHA-256", *what[1:]))[1]
    )
    monkeypatch.setattr(known, "REMEMBERED", 2)
    tokens = [world.issue(str(number)) for number in range(3)]
    for token_id in ("0", "0", "1", "0", "2", "0"):
        assert world.find(token_id, "SCRAM-SHA-256").owner == "alice"
    assert made == [tokens[number].password for number in (0, 1, 2, 0)]
    assert world.find("none", "SCRAM-SHA-256") is None


def test_a_session_lasts_no_longer_than_the_token():
    world = World()
    token = world.issue(expires=1400)
    for longest, lasts in ((0, 400), (10_000, 400), (300, 300)):
        mechanism = "SCRAM-SHA-256"
        offer = Offer({mechanism: lambda: world.server("SCRAM-SHA-256")}, {mechanism: longest}, 1000, 0)
        one = Authentication(offer, lambda: world.now, lambda: 0.0)
        one.handshake(mechanism, 1)
        client = TokenClient(mechanism, "id", token.password)
        challenge, _ = one.token(client.first())
        proof = client.respond(challenge)
        _, lifetime = one.token(proof)
        assert lifetime == lasts
        assert one.principal == ALICE
        assert one.principal.by_token


def test_tokens_of_are_found_at_once():
    world = World()
    world.tokens = Tokens.of([world.issue("a"), world.issue("b")])
    assert world.find("a", "SCRAM-SHA-512").expires_ms == 2000
