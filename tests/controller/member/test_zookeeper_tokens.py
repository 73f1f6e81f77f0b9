"""Delegation tokens on ZooKeeper: stored as Apache Kafka 3.9 stores them, and received by every broker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from kbroker.controller.member.zookeeper_tokens import ZooKeeperTokens
from kbroker.controller.tree.memory import MemoryEnsemble
from kbroker.controller.tree.znode import Create, Delete, SetData
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.security.principal import Principal
from kbroker.security.tokens.token import TokenInformation, TokenSettings

from .world import PATIENCE_S, FixedClock, cut_once, until

SETTINGS = TokenSettings(b"secret", 1000, 100, 10)
ALICE = Principal("User", "alice")


def token(token_id="one", expires=2):
    return SETTINGS.token(TokenInformation(token_id, ALICE, ALICE, (), 1, 3, expires))


class Broker:
    def __init__(self, ensemble, clock=None):
        self.tree = ensemble.connect()
        self.tokens = ZooKeeperTokens(self.tree, SETTINGS, clock or FixedClock())
        self.heard = []

    async def begin(self):
        await self.tokens.load()
        self.tokens.follow(lambda tokens: self.heard.append(set(tokens)))
        return self

    @property
    def known(self):
        return set(self.tokens.known)


def run(scenario):
    async def inside():
        async with asyncio.timeout(PATIENCE_S):
            await scenario(MemoryEnsemble())

    asyncio.run(inside())


def test_they_stand_where_kafka_has_them():
    async def scenario(ensemble):
        broker = await Broker(ensemble).begin()
        assert await broker.tokens.change("one", lambda old: old or token()) == token()
        node, _ = ensemble.read("/delegation_token/tokens/one")
        assert json.loads(node.data) == {
            "version": 3, "owner": "User%3Aalice", "tokenRequester": "User%3Aalice", "renewers": [],
            "issueTimestamp": 1, "maxTimestamp": 3, "expiryTimestamp": 2, "tokenId": "one",
        }  # fmt: skip
        node, _ = ensemble.read("/delegation_token/token_changes/token_change_0000000000")
        assert node.data == b"one"
        assert broker.known == {token()}
        assert await broker.tokens.change("one", lambda _old: None) is None
        assert ensemble.read("/delegation_token/tokens/one") is None
        assert ensemble.read("/delegation_token/token_changes/token_change_0000000001")
        assert broker.known == set()
        assert broker.heard == [{token()}, set()]

    run(scenario)


def test_every_broker_hears_of_a_change_and_finds_it_at_its_start():
    async def scenario(ensemble):
        one, two = await Broker(ensemble).begin(), await Broker(ensemble).begin()
        await one.tokens.change("one", lambda _old: token())
        await two.tokens.change("two", lambda _old: token("two"))
        await until(lambda: one.known == two.known == {token(), token("two")})
        three = await Broker(ensemble).begin()
        assert three.known == two.known
        later = token(expires=3)
        assert await three.tokens.change("one", lambda old: replace(old, info=later.info)) == later
        await until(lambda: one.known == two.known == {later, token("two")})
        await two.tokens.change("one", lambda _old: None)
        await until(lambda: one.known == three.known == {token("two")})

    run(scenario)


def test_a_change_is_made_of_what_stands_and_a_refusal_changes_nothing():
    async def scenario(ensemble):
        one, two = await Broker(ensemble).begin(), await Broker(ensemble).begin()
        await one.tokens.change("one", lambda _old: token())

        async def longer(broker, _):
            await broker.tokens.change(
                "one", lambda old: replace(old, info=replace(old.info, max_ms=old.info.max_ms + 1))
            )

        await asyncio.gather(*(longer(broker, number) for broker in (one, two) for number in range(10)))
        await until(lambda: {each.info.max_ms for each in one.known | two.known} == {23})

        def refuse(_old):
            raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)

        with pytest.raises(ApiError):
            await one.tokens.change("one", refuse)
        assert {each.info.max_ms for each in one.known} == {23}

    run(scenario)


def test_what_java_brokers_write_is_read_and_what_cannot_be_lets_nobody_in():
    async def scenario(ensemble):
        broker = await Broker(ensemble).begin()
        java = ensemble.connect()
        data = (
            b'{"tokenId":"theirs","maxTimestamp":3,"version":3,"expiryTimestamp":2,"issueTimestamp":1,"renewers":[],'
            b'"tokenRequester":"User%3Aalice","owner":"User%3Aalice"}'
        )
        notice = Create("/delegation_token/token_changes/token_change_", b"theirs", sequential=True)
        await java.commit([Create("/delegation_token/tokens/theirs", data)])
        await java.commit([notice])
        await until(lambda: broker.known == {token("theirs")})
        await java.commit([SetData("/delegation_token/tokens/theirs", b"{")])
        await java.commit([notice])
        await until(lambda: broker.known == set())
        assert (await Broker(ensemble).begin()).known == set()
        await java.commit([SetData("/delegation_token/tokens/theirs", data), notice])
        await until(lambda: broker.known == {token("theirs")})
        for strange in (b"", b"a/b", b"\xff"):
            await java.commit([replace(notice, data=strange)])
        await java.commit([Delete("/delegation_token/tokens/theirs"), notice])
        await until(lambda: broker.known == set())

    run(scenario)


def test_whoever_was_away_finds_what_came_meanwhile():
    async def scenario(ensemble):
        one, two = await Broker(ensemble).begin(), await Broker(ensemble).begin()
        one.tree.cut()
        await two.tokens.change("one", lambda _old: token())
        await asyncio.sleep(0)
        assert one.known == set()
        one.tree.heal()
        await until(lambda: one.known == {token()})

    run(scenario)


def test_what_could_not_be_read_is_read_once_zookeeper_is_back():
    async def scenario(ensemble):
        one, two = await Broker(ensemble).begin(), await Broker(ensemble).begin()
        await two.tokens.change("one", lambda _old: token())
        await until(lambda: one.known == {token()})
        for path in ("/delegation_token/tokens/one", "/delegation_token/token_changes/token_change_0000000006"):
            cut = cut_once(one.tree, path)
            await two.tokens.change("two", lambda _old: token("two"))
            await two.tokens.change("one", lambda _old: None)
            await cut.wait()
            assert token() in one.known
            one.tree.heal()
            await until(lambda: one.known == {token("two")})
            await two.tokens.change("two", lambda _old: None)
            await two.tokens.change("one", lambda _old: token())
            await until(lambda: one.known == {token()})

    run(scenario)
