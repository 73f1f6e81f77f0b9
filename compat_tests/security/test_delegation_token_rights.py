"""Delegation tokens with StandardAuthorizer on both brokers: tokens for others, and tokens of others (KIP-373)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from compat_tests.harness.brokers import BrokerProcess
from compat_tests.security.sasl_brokers import both, open_address
from compat_tests.security.test_delegation_tokens import MECHANISM, SETTINGS, USERS, Side, compare
from compat_tests.security.token_clients import add_user, describe
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.access import (
    AclCreation,
    CreateAclsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kbroker.security.authorizer.acls import Operation, PatternType, Permission, ResourceType

pytestmark = pytest.mark.java

RIGHTS: Final = {
    **SETTINGS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
USER, TOKEN = ResourceType.USER, ResourceType.DELEGATION_TOKEN
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY


@pytest.fixture(scope="module")
def brokers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    with ExitStack() as running:
        found: dict[str, BrokerProcess] = {}
        for broker in both(kafka_libs, tmp_path_factory.mktemp("token-rights"), RIGHTS):
            running.enter_context(broker)
            for name in USERS:
                assert add_user(open_address(broker), name, "secret", MECHANISM)
            found[broker.name] = broker
        yield found


def give(
    side: Side,
    kind: ResourceType,
    name: str,
    operation: Operation,
    pattern: PatternType = LITERAL,
    permission: Permission = ALLOW,
) -> None:
    """Grant alice a right, or revoke one from her; record the answer."""
    creation = AclCreation(kind, name, pattern, "User:alice", "*", operation, permission)
    with WireClient(open_address(side.broker)) as client:
        answer = client.ask(CreateAclsRequest(creations=[creation]), 3)
    side.log.append([each.error_code for each in answer.results])


def rights(side: Side) -> None:
    alice, bob, carol = (side(name) for name in USERS)
    own = side.settled(alice, side.created(alice))
    side.created(alice, owner=("User", "alice"))
    of_bob = side.settled(bob, side.created(bob))
    of_carol = side.settled(carol, side.created(carol))
    for_bob = partial(side.created, alice, owner=("User", "bob"))

    def seen(expected: list[Any]) -> None:
        """Wait until alice sees this number of tokens, because ACLs take effect after a while; record them."""
        side.until(lambda: len(describe(alice).tokens) == len(expected) + 2)
        side.described(alice)
        side.described(alice, ["bob"])

    for_bob()
    side.created(alice, owner=("Robot", "alice"))
    seen([])
    give(side, USER, "User:bob", Operation.DESCRIBE_TOKENS)
    seen([of_bob])
    for_bob()
    give(side, TOKEN, of_carol.token_id, Operation.DESCRIBE)
    seen([of_bob, of_carol])
    for request in (RenewDelegationTokenRequest(of_bob.hmac, 1), ExpireDelegationTokenRequest(of_carol.hmac, -1)):
        side.changed(alice, request)
    give(side, USER, "User:b", Operation.CREATE_TOKENS, PREFIXED)
    give(side, USER, "User:bob", Operation.DESCRIBE_TOKENS, LITERAL, DENY)
    seen([of_carol])
    made = for_bob()
    side.settled(bob, made)
    seen([of_carol, made])  # she has asked for it
    side.changed(alice, RenewDelegationTokenRequest(made.hmac, 1))
    side.changed(bob, RenewDelegationTokenRequest(made.hmac, 60_000))
    give(side, USER, "User:bob", Operation.ALL, LITERAL, DENY)
    give(side, TOKEN, own.token_id, Operation.DESCRIBE, LITERAL, DENY)
    give(side, TOKEN, of_carol.token_id, Operation.ALL, LITERAL, DENY)
    seen([made])
    for_bob()


def test_both_go_by_the_same_rights(brokers: dict[str, BrokerProcess]) -> None:
    compare(brokers, rights, "rights")
