"""Passwords that AlterConfigs sets in a cluster: encrypted in the ZooKeeper substitute, and in use."""

from __future__ import annotations

import socket
import ssl

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kbroker import Cluster
from kbroker.security.tls import development
from tests.security.tls.conftest import Files

PATIENCE_S = 30
PREFIX = "listener.name.ssl.ssl"
PASSWORD = "key-secret"
SECRET = "password.encoder.secret"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def config(files):
    return {
        **files.listener(),
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "controlled.shutdown.retry.backoff.ms": "100",
    }


def renewed(files):
    signed = development.sign(files.authority, "server", ["localhost", "127.0.0.1"])
    path = files.write("renewed.pem", signed.pem(PASSWORD))
    return signed.certificate.serial_number, {f"{PREFIX}.keystore.location": path, f"{PREFIX}.key.password": PASSWORD}


def alter(cluster, configs):
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in configs.items()]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": cluster.brokers[1].bootstrap_servers.split(",")[0]})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    asked = ConfigResource(ConfigResource.Type.BROKER, "1")
    return admin.describe_configs([asked])[asked].result(PATIENCE_S)


def serial(cluster, files):
    host, _, port = cluster.brokers[1].bootstrap_servers.split(",")[1].rpartition(":")
    context = ssl.create_default_context(cafile=files.ca)
    raw = socket.create_connection((host, int(port)), PATIENCE_S)
    with context.wrap_socket(raw, server_hostname="localhost") as secured:
        return int(secured.getpeercert()["serialNumber"], 16)


def stored(cluster):
    node, _ = cluster.ensemble.read("/config/brokers/1")
    return node.data.decode()


def test_a_password_is_stored_encrypted_and_counts_also_after_a_restart(config, files):
    with Cluster(1, {**config, SECRET: "one"}) as cluster:
        number, configs = renewed(files)
        assert serial(cluster, files) != number
        shown = alter(cluster, configs)
        assert shown[f"{PREFIX}.key.password"].value is None
        assert serial(cluster, files) == number
        text = stored(cluster)
        assert PASSWORD not in text
        assert "encryptedPassword:" in text
        alter(cluster, {"message.max.bytes": "5000"})  # leaves the other passwords unchanged
        assert serial(cluster, files) == number
        broker = cluster.brokers[1]
        broker.stop()
        broker._settings |= {SECRET: "two", "password.encoder.old.secret": "one"}
        broker.start()
        assert serial(cluster, files) == number
        assert stored(cluster) != text
        broker.stop()
        del broker._settings["password.encoder.old.secret"]
        broker.start()
        assert serial(cluster, files) == number


def test_without_a_secret_passwords_are_refused(config, files):
    with Cluster(1, config) as cluster:
        _, configs = renewed(files)
        with pytest.raises(KafkaException, match="Password encoder secret not configured") as caught:
            alter(cluster, configs)
        assert PASSWORD not in str(caught.value)
        assert cluster.ensemble.read("/config/brokers/1") is None
