"""Under the same trouble, clients of Apache Kafka see what docs/faults-and-clients.md says, where it can be caused.

A proxy cuts Kafka's connections and loses its responses. Its records are refused because they are invalid. Its disk is
small, and full. It is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.faults.catalogue import CONSUME, GROUP, PRODUCE, PRODUCE_PLAIN, TRANSACT
from compat_tests.faults.client import Client
from compat_tests.faults.proxy import Proxy
from compat_tests.faults.table import expected
from compat_tests.faults.with_aiokafka import WithAiokafka
from compat_tests.faults.with_confluent import WithConfluent
from compat_tests.faults.with_java import java_clients
from compat_tests.faults.with_kafka_python import WithKafkaPython
from compat_tests.harness.brokers import ApacheKafka
from compat_tests.harness.disks import Disk, MayNotMount
from kbroker import Broker
from tests.tries import FORM

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(FORM != "long", reason="asks Apache Kafka alone, which does not change: only in make torture"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
slow = pytest.mark.skipif(FORM != "long", reason="waits for seconds: only with KBROKER_TESTS=long")
_APIS: Final = {PRODUCE: (0, "Produce"), PRODUCE_PLAIN: (0, "Produce"), CONSUME: (1, "Fetch")}
_APIS_OF_GROUPS: Final = {GROUP: (8, "OffsetCommit"), TRANSACT: (26, "EndTxn")}
_TIMES: Final = {0: "not written", 1: "written once", 2: "written twice"}


class BehindProxy(ApacheKafka):
    """Apache Kafka that tells its clients the address of a proxy."""

    def __init__(self, libs: Path, directory: Path, proxy: Proxy) -> None:
        super().__init__(libs, directory, {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"})
        self._proxy = proxy

    def _command(self) -> list[str]:
        command = super()._command()
        properties = self.directory / "server.properties"
        told = f"advertised.listeners=PLAINTEXT://127.0.0.1:{self._port},"
        text = properties.read_text()
        assert told in text
        properties.write_text(text.replace(told, told.replace(str(self._port), str(self._proxy.port))))
        self._proxy.upstream = self._port
        return command

    def _ready(self) -> bool:
        ready = super()._ready()
        self.bootstrap = f"127.0.0.1:{self._proxy.port}"
        return ready


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    with Proxy() as made:
        yield made


@pytest.fixture(scope="module")
def kafka(kafka_libs: Path, proxy: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BehindProxy]:
    with BehindProxy(kafka_libs, tmp_path_factory.mktemp("apache"), proxy) as broker:
        transact = WithConfluent().transact(broker.bootstrap, create(broker.bootstrap, "first"), "first")
        assert transact == "committed", "its coordinators are there from now on"
        yield broker


@pytest.fixture(scope="module")
def clients(kafka_libs: Path) -> Iterator[dict[str, Client]]:
    with java_clients(kafka_libs) as java:
        made: list[Client] = [WithConfluent(), WithAiokafka(), WithKafkaPython(), java]
        yield {each.name: each for each in made}


def create(bootstrap: str, topic: str, **config: str) -> str:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(20)
    return topic


def copies(bootstrap: str, topic: str) -> int:
    """Return how many copies of the record exist, whatever became of its transaction."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks", "log_level": 0})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)
    consumer.close()
    return int(end)


def judged(does: str, fault: str, name: str, found: str) -> None:
    said = expected()[does, fault][name]
    assert found in said, f"{name} at Apache Kafka: {found!r}; the page says of kbroker: {said}"


NAMES: Final = ("confluent-kafka", "aiokafka", "kafka-python", "Java")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", ["request", "before", "middle", "after"])
@pytest.mark.parametrize("does", [PRODUCE, PRODUCE_PLAIN])
def test_a_produce_whose_connection_breaks(
    kafka: BehindProxy, proxy: Proxy, clients: dict[str, Client], does: str, when: str, name: str
) -> None:
    _put(kafka, proxy, clients[name], does, when, f'disconnect("Produce", "{when}", times=1)')


@slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("does", [PRODUCE, PRODUCE_PLAIN])
def test_a_produce_whose_answer_is_lost(
    kafka: BehindProxy, proxy: Proxy, clients: dict[str, Client], does: str, name: str
) -> None:
    _put(kafka, proxy, clients[name], does, "drop", 'drop("Produce", times=1)')


def _put(kafka: BehindProxy, proxy: Proxy, client: Client, does: str, what: str, fault: str) -> None:
    topic = create(kafka.bootstrap, f"{does.replace(' ', '-')}-{what}-{client.name}")
    proxy.meet(0, what)
    told = client.produce(kafka.bootstrap, topic, 1, idempotent=does == PRODUCE)
    assert proxy.hits == 1
    judged(does, fault, client.name, f"{told}; {_TIMES[copies(kafka.bootstrap, topic)]}")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", ["request", "before", "middle", "after"])
def test_a_fetch_whose_connection_breaks(
    kafka: BehindProxy, proxy: Proxy, clients: dict[str, Client], when: str, name: str
) -> None:
    topic = create(kafka.bootstrap, f"fetch-{when}-{name}")
    WithConfluent().produce(kafka.bootstrap, topic, 1, idempotent=False)
    proxy.meet(1, when)
    told = clients[name].consume(kafka.bootstrap, topic)
    assert proxy.hits == 1
    judged(CONSUME, f'disconnect("Fetch", "{when}", times=1)', name, told)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", ["request", "before", "middle", "after"])
def test_a_commit_whose_connection_breaks(
    kafka: BehindProxy, proxy: Proxy, clients: dict[str, Client], when: str, name: str
) -> None:
    topic = create(kafka.bootstrap, f"commit-{when}-{name}")
    WithConfluent().produce(kafka.bootstrap, topic, 1, idempotent=False)
    proxy.meet(8, when)
    told = clients[name].consume_in_group(kafka.bootstrap, topic, topic)
    assert proxy.hits == 1
    judged(GROUP, f'disconnect("OffsetCommit", "{when}", times=1)', name, told)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", ["request", "before", "middle", "after"])
def test_the_end_of_a_transaction_whose_connection_breaks(
    kafka: BehindProxy, proxy: Proxy, clients: dict[str, Client], when: str, name: str
) -> None:
    topic = create(kafka.bootstrap, f"end-{when}-{name}")
    proxy.meet(26, when)
    told = clients[name].transact(kafka.bootstrap, topic, topic)
    assert proxy.hits == 1
    left = "records committed" if _committed(kafka.bootstrap, topic) else "records open"
    judged(TRANSACT, f'disconnect("EndTxn", "{when}", times=1)', name, f"{told}; {left}")


def _committed(bootstrap: str, topic: str) -> bool:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "looks", "isolation.level": "read_committed", "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.poll(10)
    consumer.close()
    return found is not None and found.error() is None


@pytest.mark.parametrize("name", NAMES)
def test_a_record_that_is_too_large(kafka: BehindProxy, clients: dict[str, Client], name: str) -> None:
    topic = create(kafka.bootstrap, f"large-{name}", max_message_bytes="10")
    told = clients[name].produce(kafka.bootstrap, topic, 1, idempotent=True)
    found = f"{told}; {_TIMES[copies(kafka.bootstrap, topic)]}"
    judged(PRODUCE, 'fail("Produce", ErrorCode.MESSAGE_TOO_LARGE)', name, found)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_without_a_key_in_a_compacted_topic(kafka: BehindProxy, clients: dict[str, Client], name: str) -> None:
    topic = create(kafka.bootstrap, f"invalid-{name}", cleanup_policy="compact")
    told = clients[name].produce(kafka.bootstrap, topic, 1, idempotent=True)
    found = f"{told}; {_TIMES[copies(kafka.bootstrap, topic)]}"
    judged(PRODUCE, 'fail("Produce", ErrorCode.INVALID_RECORD)', name, found)


@pytest.mark.parametrize("name", NAMES)
def test_a_transaction_that_times_out(kafka: BehindProxy, clients: dict[str, Client], name: str) -> None:
    """With Apache Kafka the test waits for the timeout; with kbroker it moves the clock."""
    client, pause_ms = clients[name], 2_500
    topic = create(kafka.bootstrap, f"overdue-{name}")
    there = client.transact(kafka.bootstrap, topic, topic, pause_ms, 1_000)
    with Broker() as broker, ThreadPoolExecutor(1) as pool:
        broker.topics.create("t")
        here = pool.submit(client.transact, broker.bootstrap_servers, "t", "x", 500, 60_000)
        broker.wait_for(lambda _: broker.topics["t"].records())
        broker.clock.advance(minutes=2)
        assert here.result() == there
        assert there != "committed"
        broker.wait_for(lambda _: [each.transaction for each in broker.topics["t"].records()] == ["aborted"])


@slow
@pytest.mark.parametrize("name", NAMES)
def test_a_member_whose_session_is_over(
    kafka: BehindProxy, proxy: Proxy, clients: dict[str, Client], name: str
) -> None:
    """The member's heartbeat is delayed for longer than its session, on both sides."""
    client, pause_ms = clients[name], 3_500
    topic = create(kafka.bootstrap, f"session-{name}")
    WithConfluent().produce(kafka.bootstrap, topic, 1, idempotent=False)
    proxy.meet(12, "delay", 2.5)
    there = client.consume_in_group(kafka.bootstrap, topic, topic, pause_ms, 1_000)
    assert proxy.hits == 1
    with Broker({"group.min.session.timeout.ms": 1000}) as broker:
        broker.topics.create("t").produce("0")
        with broker.faults.delay("Heartbeat", 2.5, times=1) as fault:
            here = client.consume_in_group(broker.bootstrap_servers, "t", "g", pause_ms, 1_000)
        assert fault.hits == 1
    assert here == there, "some have joined again by then, and commit; others are told that they cannot"


@slow
@pytest.mark.parametrize("name", NAMES)
def test_a_disk_that_is_full(kafka_libs: Path, tmp_path: Path, clients: dict[str, Client], name: str) -> None:
    broker = ApacheKafka(kafka_libs, tmp_path / "apache")
    try:
        with Disk(broker.data_dir) as disk:
            broker.start()
            try:
                topic = create(broker.bootstrap, "t")
                Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0}).list_topics(timeout=10)
                disk.fill()
                told = clients[name].produce(broker.bootstrap, topic, 1, idempotent=True)
                judged(PRODUCE, "full_disk()", name, f"{told}; not written")
            finally:
                broker.kill()
    except MayNotMount as why:
        pytest.skip(str(why))


@slow
@pytest.mark.parametrize("name", NAMES)
def test_a_broker_that_was_killed(
    kafka_libs: Path, tmp_path: Path, proxy: Proxy, clients: dict[str, Client], name: str
) -> None:
    with Proxy() as own:
        broker = BehindProxy(kafka_libs, tmp_path / "apache", own).start()
        create(broker.bootstrap, "t")
        broker.kill()
        told = clients[name].produce(broker.bootstrap, "t", 1, idempotent=True)
        judged(PRODUCE, "refuse_connections()", name, f"{told}; not written")
