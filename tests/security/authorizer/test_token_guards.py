"""Delegation tokens with an authorizer: for whom they may be created, and who sees them (KIP-48, KIP-373)."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
)
from kbroker.security.authorizer.acls import Operation, PatternType, Permission, ResourceType
from kbroker.security.principal import Principal
from tests.security.authorizer.served import ADMIN, ALICE, serving

REFUSED = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
BOB = Principal("User", "bob")


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def broker(loop, tmp_path_factory):
    manager = serving(
        tmp_path_factory.mktemp("tokens"),
        listeners="SASL_PLAINTEXT://127.0.0.1:0",
        sasl_enabled_mechanisms="SCRAM-SHA-256",
        delegation_token_secret_key="secret",
    )
    served = loop.run(manager.__aenter__())
    for principal in (ADMIN, ALICE, BOB):
        served.context(principal).listener = "SASL_PLAINTEXT"
    yield served
    loop.run(manager.__aexit__(None, None, None))


@pytest.fixture
def ask(loop, broker):
    """Sends requests, at first without rights and tokens; `ask.allow` grants rights."""

    class Ask:
        def __call__(self, request, version=3, principal=ALICE):
            return loop.run(broker.ask(request, version, principal))

        def allow(self, *what, **more):
            loop.run(broker.allow(*what, **more))

        def create(self, owner=None, principal=ALICE):
            name = None if owner is None else owner.name
            kind = None if owner is None else owner.kind
            return self(CreateDelegationTokenRequest(kind, name, max_lifetime_ms=-1), 3, principal)

        def seen(self, *owners, principal=ALICE):
            asked = [DescribeDelegationTokenOwner(each.kind, each.name) for each in owners] or None
            answer = self(DescribeDelegationTokenRequest(owners=asked), 3, principal)
            assert answer.error_code == 0
            return {each.token_id for each in answer.tokens}

    loop.run(broker.forbid_all())
    asking = Ask()
    for token in asking(DescribeDelegationTokenRequest(owners=None), 3, ADMIN).tokens:
        principal = Principal(token.principal_type, token.principal_name)
        assert asking(ExpireDelegationTokenRequest(token.hmac, -1), 2, principal).error_code == 0
    return asking


def test_everybody_has_tokens_of_his_own(ask):
    one, other = ask.create(), ask.create(ALICE)
    assert (one.error_code, other.error_code) == (0, 0)
    bobs = ask.create(principal=BOB)
    assert ask.seen() == {one.token_id, other.token_id}
    assert ask.seen(principal=BOB) == {bobs.token_id}
    assert ask.seen(BOB) == set()
    assert ask.seen(ALICE, BOB, principal=ADMIN) == {one.token_id, other.token_id, bobs.token_id}


def test_a_token_for_another_needs_a_right(ask):
    refused = ask.create(BOB)
    assert refused.error_code == REFUSED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("bob", "alice")
    assert (refused.issue_timestamp_ms, refused.token_id, refused.hmac) == (-1, "", b"")
    ask.allow(ResourceType.USER, "User:carol", Operation.CREATE_TOKENS)
    ask.allow(ResourceType.USER, "User:bob", Operation.DESCRIBE_TOKENS)
    assert ask.create(BOB).error_code == REFUSED
    ask.allow(ResourceType.USER, "User:b", Operation.CREATE_TOKENS, pattern=PatternType.PREFIXED)
    made = ask.create(BOB)
    assert made.error_code == 0
    assert ask.seen(principal=BOB) == {made.token_id}
    assert ask.seen() == {made.token_id}
    ask.allow(ResourceType.USER, "User:bob", Operation.CREATE_TOKENS, Permission.DENY)
    assert ask.create(BOB).error_code == REFUSED
    assert ask.create(BOB, principal=ADMIN).error_code == 0


def test_tokens_of_others_are_seen_by_a_right_on_the_token_or_its_owner(ask):
    first, second = ask.create(principal=BOB), ask.create(principal=BOB)
    ask.allow(ResourceType.DELEGATION_TOKEN, first.token_id, Operation.DESCRIBE)
    assert ask.seen() == {first.token_id}
    ask.allow(ResourceType.USER, "User:bob", Operation.CREATE_TOKENS)
    assert ask.seen() == {first.token_id}
    ask.allow(ResourceType.USER, "User:bob", Operation.DESCRIBE_TOKENS)
    assert ask.seen() == ask.seen(BOB) == {first.token_id, second.token_id}
    assert ask.seen(ALICE) == set()
    assert ask(ExpireDelegationTokenRequest(first.hmac, -1), 2).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def test_who_may_not_ask_at_all_is_told_so_first(ask, broker):
    context = broker.context(ALICE)
    shown = Principal("User", "alice", by_token=True)
    context.principal = shown
    try:
        assert ask.create(BOB).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    finally:
        context.principal = ALICE
