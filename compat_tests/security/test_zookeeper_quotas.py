"""One ZooKeeper, Apache Kafka 3.9.1 and kbroker: both describe and apply a quota that either broker receives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from compat_tests.clients.common import wait_for
from compat_tests.harness import report
from compat_tests.harness.brokers import BrokerProcess, KBroker
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.access import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from kbroker.protocol.messages.clients import (
    AlterClientQuotasRequest,
    AlteredEntity,
    AlteredEntry,
    DescribeClientQuotasRequest,
    OpData,
)
from kbroker.protocol.messages.connections import ApiVersionsRequest

pytestmark = [pytest.mark.java, pytest.mark.long]

Entity = frozenset[tuple[str, str | None]]
ENTITIES: list[dict[str, str | None]] = [
    {"user": "alice"},
    {"user": "CN=a b,O=ü*~/"},
    {"user": None},
    {"user": "alice", "client-id": "app/1"},
    {"user": "alice", "client-id": None},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"client-id": "app"},
    {"client-id": None},
]


@pytest.fixture(scope="module")
def both(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("quotas39")
    settings = {"offsets.topic.replication.factor": "1"}
    with ZooKeeper(kafka39_libs, directory / "zookeeper") as zookeeper:
        java = Kafka39(kafka39_libs, directory / "java", zookeeper, {**settings, "node.id": "1"})
        own = {**settings, "node.id": "2", "zookeeper.connect": zookeeper.bootstrap}
        with java, KBroker(directory / "kbroker", own) as ours:
            yield java, ours


def alter(broker: BrokerProcess, entity: dict[str, str | None], **limits: float | None) -> None:
    ops = [OpData(key, value or 0.0, value is None) for key, value in limits.items()]
    entry = AlteredEntry([AlteredEntity(*part) for part in entity.items()], ops)
    with WireClient(broker.bootstrap, "admin") as client:
        (answer,) = client.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries
    assert answer.error_code == 0, answer


def quotas(broker: BrokerProcess) -> dict[Entity, dict[str, float]]:
    with WireClient(broker.bootstrap, "admin") as client:
        answer = client.ask(DescribeClientQuotasRequest(), 1)
    return {
        frozenset((part.entity_type, part.entity_name) for part in each.entity): {v.key: v.value for v in each.values}
        for each in answer.entries
    }


def throttle_ms(broker: BrokerProcess, client_id: str) -> int:
    with WireClient(broker.bootstrap, client_id) as client:
        told: int = client.ask(
            ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3
        ).throttle_time_ms
    return told


def test_each_follows_what_the_other_was_told(both: tuple[BrokerProcess, BrokerProcess]) -> None:
    expected: dict[Entity, dict[str, float]] = {}

    def known(broker: BrokerProcess) -> bool:
        return quotas(broker) == expected

    for number, entity in enumerate(ENTITIES):
        limits = {"producer_byte_rate": 1e9 + number, "controller_mutation_rate": 1000.5}
        alter(both[number % 2], entity, **limits)
        expected[frozenset(entity.items())] = limits
    alter(both[0], {"ip": "127.0.0.9"}, connection_creation_rate=99.0)
    alter(both[1], {"ip": None}, connection_creation_rate=1e6)
    expected[frozenset({("ip", "127.0.0.9")})] = {"connection_creation_rate": 99.0}
    expected[frozenset({("ip", None)})] = {"connection_creation_rate": 1e6}
    for broker in both:
        wait_for(f"that {broker.name} knows the quotas", partial(known, broker))

    # A password is stored beside the quotas, and stays when they are removed.
    for number, broker in enumerate(both):
        upsertion = ScramCredentialUpsertion("alice", number + 1, 4096, b"some salt", bytes(32))
        with WireClient(both[0].bootstrap, "admin") as client:  # the controller
            assert client.ask(AlterUserScramCredentialsRequest(upsertions=[upsertion]), 0).results[0].error_code == 0
        wait_for(f"that {broker.name} knows the quotas", partial(known, broker))
    for number, entity in enumerate(ENTITIES):
        alter(both[1 - number % 2], entity, producer_byte_rate=None)
        del expected[frozenset(entity.items())]["producer_byte_rate"]
    for broker in both:
        wait_for(f"that {broker.name} knows what is left", partial(known, broker))
        with WireClient(broker.bootstrap, "admin") as client:
            (told,) = client.ask(DescribeUserScramCredentialsRequest(users=None), 0).results
        assert [each.mechanism for each in told.credential_infos] == [1, 2]
    report.count("quotas' znodes", "both")


def test_each_holds_what_the_other_was_told(both: tuple[BrokerProcess, BrokerProcess]) -> None:
    for told, other in (both, both[::-1]):
        client_id = f"slow-{told.name}"
        alter(told, {"user": "ANONYMOUS", "client-id": client_id}, request_percentage=1e-6)
        for broker in (told, other):
            wait_for(f"that {broker.name} throttles", partial(_is, broker, client_id, 1000))
        alter(other, {"user": "ANONYMOUS", "client-id": client_id}, request_percentage=None)
        for broker in (told, other):
            wait_for(f"that {broker.name} throttles no more", partial(_is, broker, client_id, 0))
    report.count("quotas of the other", "both")


def _is(broker: BrokerProcess, client_id: str, pause_ms: int) -> bool:
    return throttle_ms(broker, client_id) == pause_ms
