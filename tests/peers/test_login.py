"""Authenticating to another broker: before the first request, again before the session ends, and in vain."""

from __future__ import annotations

import asyncio
import time

import pytest

from kbroker import Broker
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.network.loop_watch import new_event_loop
from kbroker.peers import connection
from kbroker.peers.connection import TcpPeers
from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataResponse
from kbroker.security.sasl.add_scram import parse_user
from kbroker.security.sasl.plain import PlainClient
from kbroker.security.sasl.scram import ScramClient
from kbroker.security.sasl.settings import login_between_brokers

USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_broker="secret";'
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
}
PATIENCE_MS = 60_000


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch):
    """Let a connection take as long as the response: with the default of 10 s, a busy machine fails the tests."""
    monkeypatch.setattr(connection, "_CONNECT_SECONDS", PATIENCE_MS / 1000)


@pytest.fixture(scope="module")
def secured():
    with Broker(SETTINGS) as running:
        user = parse_user("SCRAM-SHA-512=[name=broker,password=secret]")
        future = asyncio.run_coroutine_threadsafe(_add(running, user), running._loop)
        future.result(60)
        yield running


async def _add(running, user):
    controller = running.node.controller
    controller.set_configs("users", user.entity, user.revise({}))
    if (published := controller.published()) is not None:
        await published


def ask(running, login, times=1):
    """Send `times` requests in parallel."""

    async def asking():
        host, _, port = running.bootstrap_servers.rpartition(":")
        peer = TcpPeers(login=login).peer(host, int(port), "1")
        try:
            asked = [peer.ask(MetadataRequest(topics=[]), 12, MetadataResponse, PATIENCE_MS) for _ in range(times)]
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            peer.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(asking())


@pytest.mark.parametrize(
    "login",
    [
        lambda: ("PLAIN", PlainClient("broker", "secret")),
        lambda: ("SCRAM-SHA-512", ScramClient("SCRAM-SHA-512", "broker", "secret")),
    ],
    ids=["PLAIN", "SCRAM"],
)
def test_a_broker_logs_in_once_for_all_that_is_asked(secured, login):
    begun = []
    answers = ask(secured, lambda: begun.append(1) or login(), 20)
    assert [each for each in answers if isinstance(each, BaseException) or not each.brokers] == []
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("login", "why"),
    [
        (lambda: ("PLAIN", PlainClient("broker", "wrong")), "does not let this broker in: Authentication failed"),
        (lambda: ("SCRAM-SHA-512", ScramClient("SCRAM-SHA-512", "broker", "x")), "does not let this broker in"),
        (lambda: ("SCRAM-SHA-256", ScramClient("SCRAM-SHA-256", "broker", "x")), "does not offer SCRAM-SHA-256, but"),
        (None, ""),
    ],
)
def test_whom_others_do_not_let_in_hears_why(secured, login, why):
    for outcome in ask(secured, login, 3):
        assert isinstance(outcome, PeerUnavailable)
        assert why in str(outcome)
        assert "wrong" not in str(outcome)


@pytest.mark.long
def test_a_broker_logs_in_again_before_its_session_ends():
    settings = {**SETTINGS, "connections.max.reauth.ms": "1500", "sasl.enabled.mechanisms": "PLAIN"}
    begun = []

    def login():
        begun.append(1)
        return "PLAIN", PlainClient("broker", "secret")

    async def asking(running):
        host, _, port = running.bootstrap_servers.rpartition(":")
        peer = TcpPeers(login=login).peer(host, int(port), "1")
        try:
            deadline = time.monotonic() + 20
            frames = set()
            while len(begun) < 3:
                assert time.monotonic() < deadline
                both = [peer.ask(MetadataRequest(topics=[]), 12, MetadataResponse, PATIENCE_MS) for _ in range(2)]
                await asyncio.gather(*both)
                frames.add(peer._frames)
                await asyncio.sleep(0.01)
            return len(frames)
        finally:
            peer.close()

    with Broker(settings) as running, asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(asking(running)) == 1


NODE = {
    "zookeeper.connect": "127.0.0.1:1",
    "broker.id": "1",
    "listeners": "INSIDE://127.0.0.1:0",
    "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT",
    "inter.broker.listener.name": "INSIDE",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
}
MODULES = "org.apache.kafka.common.security"


def test_who_a_broker_is_among_others_stands_in_its_listeners_login():
    settings = {
        **NODE,
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.inside.scram-sha-256.sasl.jaas.config": (
            f'{MODULES}.scram.ScramLoginModule required username="broker" password="secret";'
        ),
    }
    mechanism, client = login_between_brokers(BrokerConfig(settings))()
    assert mechanism == "SCRAM-SHA-256"
    assert client.first().startswith(b"n,,n=broker,r=")
    assert login_between_brokers(BrokerConfig({})) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "is GSSAPI; brokers of this version log in by PLAIN"),
        ({"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}, "does not offer"),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "is missing"),
        (
            {
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_a="hunter2";',
            },
            "has no username, or no password",
        ),
    ],
)
def test_a_login_that_cannot_work_is_refused_in_one_line(settings, said):
    with pytest.raises(ConfigError) as refused:
        login_between_brokers(BrokerConfig({**NODE, **settings}))
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
