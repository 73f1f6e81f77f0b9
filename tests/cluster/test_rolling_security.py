"""From PLAINTEXT to SASL_SSL, broker by broker, while a producer and a consumer work.

The steps are those of Kafka's documentation: every broker gets a second listener, the clients switch to it, the brokers
switch to it among themselves, and the first listener is removed.
"""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kbroker import Cluster
from tests.cluster.reading import consumed
from tests.security.tls.conftest import Files

PATIENCE_S = 30
PARTITIONS = 3
TOPIC = "orders"
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAINTEXT = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "replica.fetch.backoff.ms": 100,
    "controlled.shutdown.retry.backoff.ms": 100,
    "replica.lag.time.max.ms": 2000,
    "replica.fetch.wait.max.ms": 200,
}


class Load:
    """A producer with acks=all and a consumer of a group, which reconnect with other settings."""

    def __init__(self) -> None:
        self.sent = [0] * PARTITIONS
        self.seen: list[dict[int, int]] = [{} for _ in range(PARTITIONS)]
        self.failed: list[str] = []
        self._enough = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, settings, *, producing=True):
        self._enough.clear()
        works = [self._consume, *([self._produce] if producing else [])]
        self._threads = [threading.Thread(target=work, args=(settings,), name=work.__name__) for work in works]
        for each in self._threads:
            each.start()

    def end(self):
        self._enough.set()
        for each in self._threads:
            each.join(2 * PATIENCE_S)
            assert not each.is_alive(), f"{each.name} hangs"
        assert not self.failed

    def has_gone_on(self):
        """Return a function that says whether both have made progress since now."""
        sent, seen = sum(self.sent), sum(map(len, self.seen))
        return lambda: sum(self.sent) > sent and sum(map(len, self.seen)) > seen

    def has_seen_all(self):
        return sum(map(len, self.seen)) == sum(self.sent)

    def _produce(self, settings):
        producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 2})
        while not self._enough.wait(0.002):
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, str(self.sent[partition]), partition=partition, on_delivery=self._delivered)
                self.sent[partition] += 1
            producer.poll(0)
        if producer.flush(PATIENCE_S):
            self.failed.append("records were not answered")

    def _delivered(self, error, _message):
        if error is not None:
            self.failed.append(str(error))

    def _consume(self, settings):
        own = {"group.id": "billing", "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
        consumer = Consumer({**settings, **own, "enable.auto.commit": False})
        consumer.subscribe([TOPIC])
        while not self._enough.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.seen[message.partition()][message.offset()] = int(message.value())
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if "_NO_OFFSET" not in str(error):
                self.failed.append(f"commit: {error}")
        consumer.close()


def until(what, holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def all_in_sync(cluster):
    state = cluster.brokers[1].node.member.state
    return all(set(state.partition(TOPIC, index).isr) == {1, 2, 3} for index in range(PARTITIONS))


def roll(cluster, load, change):
    """Restart each broker with other settings; both clients make progress before the next broker's turn."""
    for broker in cluster.brokers.values():
        broker.stop()
        change(broker._settings)
        broker.start()
        until("all are in sync", lambda: all_in_sync(cluster))
        until("clients go on", load.has_gone_on())


def move(load, settings):
    load.end()
    load.begin(settings)


def addresses(cluster, name):
    found = []
    for each in cluster.brokers.values():
        listeners = each.node.config.listeners.bind
        found += [str(a) for own, a in zip(listeners, each.node.addresses, strict=True) if own.name == name]
    return ",".join(found)


def add_users(client):
    admin = AdminClient(client)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    for name in ("broker", "alice"):
        asked = UserScramCredentialUpsertion(name, info, f"{name}-secret".encode())
        admin.alter_user_scram_credentials([asked])[name].result(PATIENCE_S)


@pytest.mark.long
def test_a_cluster_goes_from_plaintext_to_sasl_ssl_under_load(tmp_path):
    files, load = Files(tmp_path), Load()
    second = {
        **files.listener(),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": (
            f'{MODULE} required username="broker" password="broker-secret";'
        ),
    }
    with Cluster(3, PLAINTEXT) as cluster:
        plain = {"bootstrap.servers": cluster.bootstrap_servers}
        admin = AdminClient(plain)
        config = {"min.insync.replicas": "2"}
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config=config)])[TOPIC].result(PATIENCE_S)
        add_users(plain)
        load.begin(plain)
        try:
            roll(
                cluster,
                load,
                lambda settings: settings.update(second, listeners=f"{settings['listeners']},SASL_SSL://127.0.0.1:0"),
            )
            secured = {
                "bootstrap.servers": addresses(cluster, "SASL_SSL"),
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": files.ca,
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "alice",
                "sasl.password": "alice-secret",
            }
            move(load, secured)
            roll(cluster, load, lambda settings: settings.update({"security.inter.broker.protocol": "SASL_SSL"}))
            roll(cluster, load, lambda settings: settings.update(listeners=settings["listeners"].partition(",")[2]))
            assert addresses(cluster, "PLAINTEXT") == ""
        finally:
            load.end()
        load.begin(secured, producing=False)
        until("the consumer has seen all", load.has_seen_all)
        load.end()
        for partition in range(PARTITIONS):
            count = load.sent[partition]
            assert consumed(secured, TOPIC, count, partition) == list(range(count))
            seen = load.seen[partition]
            assert [seen[offset] for offset in sorted(seen)] == list(range(len(seen)))
        with pytest.raises(KafkaException):
            AdminClient({**plain, "log_level": 0}).list_topics(timeout=2)
