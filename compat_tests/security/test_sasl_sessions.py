"""Sessions that end, on both brokers: authenticating again, with what must not change, too soon, and too late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

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


@pytest.fixture(scope="module")
def brokers(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    with ExitStack() as running:
        found = both(kafka_libs, tmp_path_factory.mktemp("sessions"), SETTINGS)
        yield {each.name: running.enter_context(each) for each in found}


def passes(ms: int) -> Step:
    """Let time pass: what a session's end is about."""

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
                # Kafka names both, in words of Java.
                each["error_message"] = (each["error_message"] or "").partition(" from ")[0]
    assert outcomes["kbroker"] == outcomes["apache"]
