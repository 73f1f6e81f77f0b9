"""Clients with each mechanism, with right and wrong secrets, on both brokers; Kafka's own tools among them."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import uuid
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokens
from confluent_kafka import KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from compat_tests.clients.java_tools.tool import run
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.security.sasl_brokers import MECHANISMS, OAUTH, PLAIN, SCRAM, open_address

pytestmark = pytest.mark.java

PATIENCE_S = 20.0
CASES = [(mechanism, secret) for mechanism in MECHANISMS for secret in ("secret", "wrong")]


def unsigned(secret: str) -> str:
    now = int(time.time())
    parts = [{"alg": "none"}, {"sub": "alice", "iat": now, "exp": now + 3600}]
    if secret != "secret":
        return "a.b.c"
    return ".".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts) + "."


class Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def token(self) -> str:
        return unsigned(self._secret)


class AsyncTokens(AioTokens):  # type: ignore[misc]
    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def token(self) -> str:
        return unsigned(self._secret)


def confluent(address: str, mechanism: str, secret: str) -> str:
    errors: list[Any] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": secret,
        "error_cb": errors.append,
        "log_level": 0,
    }
    if mechanism == "OAUTHBEARER":
        settings = {name: value for name, value in settings.items() if name not in ("sasl.username", "sasl.password")}
        settings["oauth_cb"] = lambda _config: (unsigned(secret), time.time() + 3600)
    producer = Producer(settings)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            producer.list_topics(timeout=0.5)
        except KafkaException:
            producer.poll(0.1)
        else:
            return "served"
        if any(each.name() == "_AUTHENTICATION" for each in errors):
            return "not let in"
    return "neither"


def python(address: str, mechanism: str, secret: str, tokens: Any) -> dict[str, Any]:
    settings = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return {**settings, "sasl_oauth_token_provider": tokens(secret)}
    return {**settings, "sasl_plain_username": "alice", "sasl_plain_password": secret}


def kafka_python(address: str, mechanism: str, secret: str) -> str:
    settings = python(address, mechanism, secret, Tokens)
    try:
        producer = KafkaProducer(**settings, bootstrap_timeout_ms=3000, max_block_ms=5000)
    except KafkaError:
        return "not let in"
    try:
        producer.send(f"t-{uuid.uuid4().hex}", b"x").get(PATIENCE_S)
    except KafkaError:
        return "not let in"
    else:
        return "served"
    finally:
        producer.close(1)


def aio(address: str, mechanism: str, secret: str) -> str:
    async def converse() -> str:
        producer = aiokafka.AIOKafkaProducer(**python(address, mechanism, secret, AsyncTokens))
        try:
            await asyncio.wait_for(producer.start(), PATIENCE_S / 2)
            await asyncio.wait_for(producer.send_and_wait(f"t-{uuid.uuid4().hex}", b"x"), PATIENCE_S / 4)
        except (aiokafka.errors.KafkaError, TimeoutError):
            return "not let in"
        else:
            return "served"
        finally:
            await producer.stop()

    return asyncio.run(converse())


@pytest.mark.parametrize("client", [confluent, kafka_python, aio])
@pytest.mark.parametrize(("mechanism", "secret"), CASES)
def test_a_client(sasl_brokers: dict[str, BrokerProcess], client: Any, mechanism: str, secret: str) -> None:
    outcomes = {side: client(broker.bootstrap, mechanism, secret) for side, broker in sasl_brokers.items()}
    expected = "served" if secret == "secret" else "not let in"
    assert outcomes == dict.fromkeys(outcomes, expected)


def _login(mechanism: str, secret: str) -> str:
    if mechanism == "OAUTHBEARER":
        return f'{OAUTH} required unsecuredLoginStringClaim_sub="alice";'
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return f'{module} required username="alice" password="{secret}";'


def _file(directory: Path, mechanism: str, secret: str) -> str:
    lines = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": _login(mechanism, secret),
    }
    path = directory / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(path)


@pytest.mark.parametrize(
    ("mechanism", "secret"),
    [("PLAIN", "secret"), ("SCRAM-SHA-512", "secret"), ("OAUTHBEARER", "secret"), ("SCRAM-SHA-256", "wrong")],
)
def test_kafkas_own_tools(sasl_brokers: dict[str, BrokerProcess], tmp_path: Path, mechanism: str, secret: str) -> None:
    topic = f"t-{uuid.uuid4().hex}"
    file = _file(tmp_path, mechanism, secret)
    outcomes = {}
    for side, broker in sasl_brokers.items():
        told = run("topics", "--create", "--topic", topic, "--command-config", file, bootstrap=broker.bootstrap)
        outcomes[side] = [line for line in told if "ERROR" not in line]
    assert outcomes["kbroker"] == outcomes["apache"]
    assert outcomes["kbroker"][0] == ("exit 0" if secret == "secret" else "exit 1")


def test_the_tool_for_users(sasl_brokers: dict[str, BrokerProcess]) -> None:
    entity = ("--entity-type", "users", "--entity-name", "carol, x=y")
    outcomes = {}
    for side, broker in sasl_brokers.items():
        address = open_address(broker)
        outcomes[side] = [
            run("configs", "--alter", *entity, "--add-config", "SCRAM-SHA-256=[password=x]", bootstrap=address),
            run("configs", "--alter", *entity, "--delete-config", "SCRAM-SHA-512", bootstrap=address),
            run("configs", "--alter", *entity, "--delete-config", "SCRAM-SHA-256", bootstrap=address),
        ]
    assert outcomes["kbroker"] == outcomes["apache"]
