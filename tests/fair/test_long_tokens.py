"""Requests about delegation tokens, where they are served: neither lists nor hundreds of tokens prolong a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kbroker.broker.node import BrokerNode
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers.registry import RequestContext
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.access import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kbroker.security.principal import Principal
from tests.fair.gaps import Counter, run

ALICE = Principal("User", "alice")
MOST_STEPS = 80_000
"""Interpreter steps between two yields: 2 to 3 ms."""


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[RequestContext]:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "delegation.token.secret.key": "secret",
        "log.dirs": str(directory),
    }
    node = await BrokerNode.start(BrokerConfig(settings))
    try:
        context = RequestContext(node.services, "/127.0.0.1", "SASL_PLAINTEXT", ("", 0))
        context.principal = ALICE
        yield context
    finally:
        await node.stop()


def created(renewers: int) -> CreateDelegationTokenRequest:
    return CreateDelegationTokenRequest(None, None, [CreatableRenewers("User", "bob")] * renewers, -1)


@pytest.mark.long
def test_renewers_and_owners(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as context:
            for count, code in ((1, 0), (256, 0), (50_000, ErrorCode.POLICY_VIOLATION)):
                done = await run(context, created(count), 3, Counter)
                assert done.answer.error_code == code
                assert done.longest < MOST_STEPS, count
            owners = [DescribeDelegationTokenOwner("User", f"u{number}") for number in range(20_000)]
            done = await run(context, DescribeDelegationTokenRequest(owners=owners), 3, Counter)
            assert done.answer.tokens == []
            assert done.longest < 10_000

    asyncio.run(scenario())


def test_hundreds_of_tokens(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as context:
            for _ in range(600):
                done = await run(context, created(1), 3)
            for request, version, steps in (
                (created(1), 3, 6_000),
                (RenewDelegationTokenRequest(done.answer.hmac, -1), 2, 6_000),
                (DescribeDelegationTokenRequest(owners=None), 3, 2_000),
            ):
                done = await run(context, request, version, Counter)
                assert done.answer.error_code == 0
                assert done.longest < steps, request

    asyncio.run(scenario())
