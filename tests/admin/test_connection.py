"""Which requests are retried, and which are not."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError, UnknownBrokerIdError
from kafka.net.selector import NetworkSelector
from kafka.structs import OffsetAndMetadata, TopicPartition

from kbroker import Broker, Cluster
from kbroker.admin.connection import Connection, in_words, patiently
from kbroker.admin.group_offsets import committed_offsets
from kbroker.admin.own_request import coordinator_of


@pytest.mark.parametrize(
    "error", [KafkaConnectionError("111 ECONNREFUSED"), NodeNotReadyError(1), UnknownBrokerIdError(1)]
)
def test_what_only_reads_is_asked_again_when_its_broker_is_gone(error):
    answers = iter([error, error, "told"])

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently(ask, reads=True) == "told"
    answers = iter([error])
    with pytest.raises(type(error)):
        patiently(ask)


@pytest.fixture
def made_here(monkeypatch):
    """Return the selectors that this thread creates: other threads of this process may have their own."""
    made = []
    begin, here = NetworkSelector.__init__, threading.current_thread()

    def init(self, *args, **settings):
        if threading.current_thread() is here:
            made.append(self)
        begin(self, *args, **settings)

    monkeypatch.setattr(NetworkSelector, "__init__", init)
    return made


@pytest.mark.parametrize("kind", ["open_admin", "consumer", "producer"])
def test_a_client_that_finds_no_broker_leaves_nothing_behind(kind, made_here):
    """The console retries a broker that never answers once a second."""
    begun = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"127.0.0.1:{silent.getsockname()[1]}"
        connection = Connection(where, {"bootstrap_timeout_ms": 200, "client_id": f"left-{kind}"})
        for _ in range(2):
            with pytest.raises(KafkaTimeoutError):
                begun.append(getattr(connection, kind)())
    assert begun == []
    assert [each.name for each in threading.enumerate() if f"left-{kind}" in each.name] == []
    assert len(made_here) == 2
    assert all(each._closed for each in made_here)


def test_a_client_that_is_kept_finds_the_next_coordinator():
    with Cluster(brokers=3) as cluster, Connection(cluster.bootstrap_servers, {}).admin() as admin:
        cluster.topics.create("t", partitions=1)
        admin.alter_group_offsets("g", {TopicPartition("t", 0): OffsetAndMetadata(0, "", -1)})
        assert committed_offsets(admin, "g") == {TopicPartition("t", 0): 0}
        before = coordinator_of(admin, "g")
        cluster.brokers[before].stop()
        assert patiently(lambda: committed_offsets(admin, "g"), reads=True) == {TopicPartition("t", 0): 0}
        assert patiently(lambda: coordinator_of(admin, "g"), reads=True) != before


def test_a_broker_that_nobody_tells_of_is_told_of_in_words():
    assert in_words(UnknownBrokerIdError(2), Connection("h:1", {})).startswith("broker 2 is gone")


def test_a_consumer_creates_no_topic() -> None:
    """The client's own setting has no effect: its metadata requests would create each missing topic."""
    with Broker() as broker:
        until = time.monotonic() + 60
        while not broker.requests.of("Metadata", topic="missing"):
            assert time.monotonic() < until
            # A consumer that is refreshing its metadata at this moment may not name the topic for minutes.
            consumer = Connection(broker.bootstrap_servers, {}).consumer(group_id=None)
            consumer.subscribe(["missing"])
            consumer.poll(timeout_ms=500)
            consumer.close()
        assert "missing" not in broker.topics
