"""kbroker and Apache Kafka 3.9.1 on one ZooKeeper, with SCRAM between them: each has users that the other added."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from compat_tests.clients.confluent.tools import metadata
from compat_tests.harness.brokers import BrokerProcess, KBroker, free_port
from compat_tests.harness.zookeeper import Kafka39, ZooKeeper
from compat_tests.security.sasl_brokers import SCRAM

pytestmark = pytest.mark.java

PATIENCE_S: Final = 60.0
MECHANISM: Final = "SCRAM-SHA-512"
SETTINGS: Final = {
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": f"{MECHANISM},SCRAM-SHA-256",
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": (
        f'{SCRAM} required username="broker" password="between";'
    ),
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM} required;",
    "offsets.topic.replication.factor": "2",
    "replica.lag.time.max.ms": "4000",
}


class Member(KBroker):
    """Kbroker, as a node of the cluster; it adds the user with which all brokers authenticate."""

    zookeeper = ""

    def _command(self) -> list[str]:
        self.ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "kbroker", "start", "--ready-file", str(self.ready_file)]
        command += ["--data-dir", str(self.data_dir), "--add-scram", f"{MECHANISM}=[name=broker,password=between]"]
        settings = {
            **{key: value for key, value in self.settings.items() if not key.startswith("share.")},
            "node.id": "2",
            "zookeeper.connect": self.zookeeper,
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_port()}",
        }
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        return command

    def _ready(self) -> bool:
        try:
            self.bootstrap = json.loads(self.ready_file.read_text())["bootstrap_servers"]
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        return True


@pytest.fixture(scope="module")
def both(kafka39_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerProcess]]:
    directory = tmp_path_factory.mktemp("sasl-cluster")
    with ZooKeeper(kafka39_libs, directory / "zookeeper") as zookeeper:
        java = Kafka39(kafka39_libs, directory / "java", zookeeper, {**SETTINGS, "node.id": "1"})
        java.own = {"listeners": f"SASL_PLAINTEXT://127.0.0.1:{java.port}"}
        ours = Member(directory / "kbroker", SETTINGS)
        ours.zookeeper = zookeeper.bootstrap
        # Java first: it would not work with the features that kbroker finalizes in a new cluster.
        with java, ours:
            yield {"apache": java, "kbroker": ours}


def client(address: str, name: str = "broker", secret: str = "between", mechanism: str = MECHANISM) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": secret,
        "log_level": 0,
    }


def until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_each_follows_the_other(both: dict[str, BrokerProcess]) -> None:
    admin = AdminClient(client(both["kbroker"].bootstrap))
    until("both live", lambda: (found := metadata(admin)) and len(found.brokers) == 2)
    new = NewTopic("both", 2, replica_assignment=[[1, 2], [2, 1]], config={"min.insync.replicas": "2"})
    admin.create_topics([new])["both"].result(PATIENCE_S)
    failed: list[Any] = []
    producer = Producer({**client(both["apache"].bootstrap), "acks": "all"})
    for number in range(200):
        producer.produce("both", b"x", partition=number % 2, on_delivery=lambda error, _message: failed.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failed == [None] * 200
    partitions = admin.list_topics("both", timeout=5).topics["both"].partitions
    assert {index: sorted(each.isrs) for index, each in partitions.items()} == {0: [1, 2], 1: [1, 2]}


def serves(address: str, name: str, secret: str, mechanism: str) -> bool:
    try:
        return bool(AdminClient(client(address, name, secret, mechanism)).list_topics(timeout=3).brokers)
    except KafkaException:
        return False


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_both_know_a_user_wherever_it_was_added(both: dict[str, BrokerProcess], mechanism: str) -> None:
    admin = AdminClient(client(both["apache"].bootstrap))
    kind = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}[mechanism]
    name = "carol, x=y" if mechanism.endswith("256") else "carol"
    upsertion = UserScramCredentialUpsertion(name, ScramCredentialInfo(kind, 8192), b"secret")
    admin.alter_user_scram_credentials([upsertion])[name].result(PATIENCE_S)
    for side, broker in both.items():
        until(side, lambda broker=broker: serves(broker.bootstrap, name, "secret", mechanism))  # type: ignore[misc]
        assert not serves(broker.bootstrap, name, "wrong", mechanism)
    gone = UserScramCredentialDeletion(name, kind)
    admin.alter_user_scram_credentials([gone])[name].result(PATIENCE_S)
    for side, broker in both.items():
        until(side, lambda broker=broker: not serves(broker.bootstrap, name, "secret", mechanism))  # type: ignore[misc]


def test_the_controller_may_be_either(both: dict[str, BrokerProcess]) -> None:
    """Credentials that the other controller changes are the same as with this one."""
    both["kbroker"].stop()
    admin = AdminClient(client(both["apache"].bootstrap))
    upsertion = UserScramCredentialUpsertion("dave", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")

    def added() -> bool:
        try:
            admin.alter_user_scram_credentials([upsertion])["dave"].result(5)
        except KafkaException:
            return False
        return True

    until("another controller", added)
    both["kbroker"].start()
    until("dave", lambda: serves(both["kbroker"].bootstrap, "dave", "secret", "SCRAM-SHA-256"))
