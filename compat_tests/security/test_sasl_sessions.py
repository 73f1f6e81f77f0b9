"""Sessions that expire, on both brokers: re-authentication, also with another identity, too early, and too late."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.clients.java_tools.tool import run
from compat_tests.harness import report
from compat_tests.harness.brokers import BrokerProcess
from compat_tests.security.sasl_brokers import PLAIN, SASL, both
from compat_tests.security.test_sasl_wire import Step, _run, handshake, metadata, token
from compat_tests.wire.client import WireClient

pytestmark = pytest.mark.java

SESSION_MS: Final = 2500
SETTINGS: Final = {
    **SASL,
    "connections.max.reauth.ms": str(SESSION_MS),
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="secret" user_bob="b";',
}
BOB: Final = b"\0bob\0b"
SESSIONS: Final = 3
"""The number of sessions that a client lives through under load."""


@pytest.fixture(scope="module")
def brokers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    with ExitStack() as running:
        found = both(kafka_libs, tmp_path_factory.mktemp("sessions"), SETTINGS)
        yield {each.name: running.enter_context(each) for each in found}


def passes(ms: int) -> Step:
    """Let time pass: the tests are about the end of a session."""

    def step(_client: WireClient) -> Any:
        time.sleep(ms / 1000)
        return None

    return step


SEQUENCES: Final[dict[str, list[Step]]] = {
    "again": [handshake(), token(), handshake(), token(), metadata()],
    "again, bare": [handshake(), token(), handshake(version=0), metadata()],
    "again, v0": [handshake(), token(version=0), handshake(), token(version=0), metadata()],
    "again too soon": [handshake(), token(), handshake(), token(), handshake(), metadata()],
    "again after a second": [handshake(), token(), handshake(), token(), passes(1100), handshake(), token()],
    "another name": [handshake(), token(), handshake(), token(BOB), metadata()],
    "another mechanism": [handshake(), token(), handshake("SCRAM-SHA-256"), token(b"n,,n=alice,r=x"), metadata()],
    "a mechanism that is not offered": [handshake(), token(), handshake("X"), metadata()],
    "a wrong password": [handshake(), token(), handshake(), token(b"\0alice\0x"), metadata()],
    "something in between": [handshake(), token(), handshake(), metadata()],
    "over": [handshake(), token(), metadata(), passes(SESSION_MS + 200), metadata()],
    "over, and again": [handshake(), token(), passes(SESSION_MS + 200), handshake(), token(), metadata()],
    "a token without a handshake": [handshake(), token(), token(), metadata()],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_session_comes_to_the_same(brokers: dict[str, BrokerProcess], name: str) -> None:
    outcomes = {side: _run(broker.bootstrap, SEQUENCES[name]) for side, broker in brokers.items()}
    for side in outcomes.values():
        for each in side:
            if isinstance(each, dict) and "error_message" in each:
                # Kafka's text names both principals, as Java prints them.
                each["error_message"] = (each["error_message"] or "").partition(" from ")[0]
    assert outcomes["kbroker"] == outcomes["apache"]


def _confluent(address: str, _directory: Path) -> Any:
    """Write and read for some sessions; return the errors."""
    failed: list[Any] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "error_cb": failed.append,
        "log_level": 0,
    }
    topic = f"t-{uuid.uuid4().hex}"
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    producer = Producer({**settings, "linger.ms": 5, "retries": 0})
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    sent = got = 0
    deadline = time.monotonic() + SESSIONS * SESSION_MS / 1000
    patience = deadline + 20
    try:
        while time.monotonic() < deadline or (got < sent and time.monotonic() < patience):
            if time.monotonic() < deadline:
                for _ in range(20):
                    producer.produce(topic, b"x" * 100, on_delivery=told)
                    sent += 1
                producer.poll(0)
            got += sum(message.error() is None for message in consumer.consume(100, 0.05))
        assert producer.flush(20) == 0
    finally:
        consumer.close()
    assert sent > 100
    return [str(each) for each in failed], sent - got


def _java(address: str, directory: Path) -> Any:
    """Run Java's producer for some sessions; return how it ended."""
    topic = f"t-{uuid.uuid4().hex}"
    file = directory / f"{topic}.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nretries=0\nenable.idempotence=false\n"
        f'sasl.jaas.config={PLAIN} required username="alice" password="secret";\n'
    )
    created = run("topics", "--create", "--topic", topic, "--command-config", str(file), bootstrap=address)
    rate = 500
    count = rate * SESSIONS * SESSION_MS // 1000
    size = ["--num-records", str(count), "--record-size", "100", "--throughput", str(rate)]
    lines = run(
        "producer-perf", "--topic", topic, *size, "--command-config", str(file),
        "--command-property", f"bootstrap.servers={address}",
    )  # fmt: skip
    assert f"{count} records sent" in lines[-1], lines
    return created[0], lines[0], [line for line in lines if "xception" in line]


@pytest.mark.parametrize("client", [_confluent, _java])
def test_clients_authenticate_again_under_load(
    brokers: dict[str, BrokerProcess], tmp_path: Path, client: Callable[[str, Path], Any]
) -> None:
    outcomes = {side: client(broker.bootstrap, tmp_path) for side, broker in brokers.items()}
    assert outcomes["kbroker"] == outcomes["apache"]
    assert outcomes["kbroker"] == (([], 0) if client is _confluent else ("exit 0", "exit 0", []))
    report.count("authenticating again", "both")
