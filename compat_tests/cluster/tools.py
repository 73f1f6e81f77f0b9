"""Short forms for clients of a cluster that is being broken: topics with replicas, patient producers, complete logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.harness.clusters import DEADLINE_S, Cluster
from compat_tests.harness.disks import Disk
from compat_tests.harness.network import Network

QUIET: Final[dict[str, Any]] = {
    "retry.backoff.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "socket.timeout.ms": 10_000,
    "enable.metrics.push": False,
    "log_level": 0,
}


@dataclass(frozen=True)
class Frail:
    """A cluster whose network can be cut, and whose disks can be full if file systems can be mounted."""

    cluster: Cluster
    network: Network
    disks: Mapping[int, Disk]


def create(cluster: Cluster, topic: str, partitions: int = 1, *, min_isr: int = 2, **config: Any) -> str:
    """Create a topic with three replicas and wait for its leaders; config keys are written with "_" for "."."""
    return _created(cluster, NewTopic(topic, partitions, 3, config=_configs(min_isr, config)))


def create_led_by(cluster: Cluster, leader: int, topic: str, *, min_isr: int = 2, **config: Any) -> str:
    """Create a topic with one partition that a given broker leads, and wait until all brokers know that."""
    replicas = [[leader, *cluster.others(leader)]]
    return _created(cluster, NewTopic(topic, 1, replica_assignment=replicas, config=_configs(min_isr, config)))


def _configs(min_isr: int, config: dict[str, Any]) -> dict[str, str]:
    return {"min.insync.replicas": str(min_isr), **{key.replace("_", "."): str(each) for key, each in config.items()}}


def _created(cluster: Cluster, new: NewTopic) -> str:
    topic: str = new.topic
    partitions: int = new.num_partitions
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    client.create_topics([new], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)

    def led_everywhere() -> bool:
        for node_id in cluster.serving:
            found = [cluster.partition(topic, index, of=node_id) for index in range(partitions)]
            if any(each is None or each.leader_id < 0 for each in found):
                return False
        return True

    cluster.wait_for(f"the leaders of {topic}", led_everywhere)
    return topic


def producer(cluster: Cluster, **config: Any) -> Producer:
    """Return a producer that retries as long as a test lasts; config keys are written with "_" for "."."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    defaults = {"acks": "all", "delivery.timeout.ms": int(DEADLINE_S * 1000), "request.timeout.ms": 10_000}
    return Producer({"bootstrap.servers": cluster.bootstrap, **QUIET, **defaults, **settings})


@contextmanager
def consumer(cluster: Cluster, group: str, **config: Any) -> Iterator[Consumer]:
    """Yield a consumer that commits only when it is asked to; config keys are written with "_" for "."."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 10_000}
    client = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, **QUIET, **defaults, **settings})
    try:
        yield client
    finally:
        client.close()


class Sent:
    """The delivery reports of a producer's records."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[tuple[bytes, str]] = []

    def told(self, error: KafkaError | None, message: Message) -> None:
        """Handle a delivery report."""
        value = message.value() or b""
        if error is None:
            self.acknowledged.append(value)
        else:
            self.failed.append((value, str(error.name())))


def send(client: Producer, topic: str, values: list[bytes], partition: int = 0) -> Sent:
    """Send records and wait until each was acknowledged or failed."""
    sent = Sent()
    for value in values:
        client.produce(topic, value, partition=partition, on_delivery=sent.told)
    left = client.flush(DEADLINE_S)
    assert left == 0, f"{left} records were neither acknowledged nor refused"
    return sent


def numbered(prefix: str, count: int) -> list[bytes]:
    """Return values that show the position of each."""
    return [f"{prefix}-{number:06d}".encode() for number in range(count)]


def read_all(cluster: Cluster, topic: str, partition: int = 0, **config: Any) -> list[bytes]:
    """Return everything that a consumer can read of a partition, from its start to its current end."""
    with consumer(cluster, f"{topic}-reader", enable_partition_eof=True, **config) as client:
        client.assign([TopicPartition(topic, partition, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = client.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
        raise AssertionError(f"{topic}-{partition} could not be read to its end; {len(found)} records came")


def take(client: Consumer, count: int) -> list[bytes]:
    """Poll until `count` records have arrived."""
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came: {found[-3:]}"
        message = client.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    return found


class Stream(threading.Thread):
    """Produces endlessly from its own thread, to the partitions in turn; `finish` ends it."""

    def __init__(self, client: Producer, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._topic = topic
        self._partitions = partitions
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self.sent = [Sent() for _ in range(partitions)]
        self.produced = 0

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                partition = self.produced % self._partitions
                value = f"{partition}-{self.produced // self._partitions:08d}".encode()
                try:
                    self._client.produce(self._topic, value, partition=partition, on_delivery=self.sent[partition].told)
                    self.produced += 1
                except BufferError:
                    self._client.poll(0.05)
                self._client.poll(0)
                self._ended.wait(0.001)
            assert self._client.flush(DEADLINE_S) == 0
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._error = error

    @property
    def acknowledged(self) -> int:
        return sum(len(each.acknowledged) for each in self.sent)

    def wait_for_more(self, cluster: Cluster, count: int) -> None:
        """Wait until `count` more records are acknowledged."""
        goal = self.acknowledged + count
        cluster.wait_for(f"{count} more acknowledged records", lambda: self._failed() or self.acknowledged >= goal)
        self._raise()

    def finish(self) -> None:
        """Stop producing and wait for the records in flight; raises the first error."""
        self._ended.set()
        self.join(DEADLINE_S * 1.5)
        assert not self.is_alive(), "the producer did not end"
        self._raise()

    def _failed(self) -> bool:
        return self._error is not None

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


@contextmanager
def streaming(client: Producer, topic: str, partitions: int) -> Iterator[Stream]:
    """Yield a stream that produces while the body runs."""
    stream = Stream(client, topic, partitions)
    stream.start()
    try:
        yield stream
    finally:
        stream.finish()


def try_for(cluster: Cluster, what: str, call: Callable[[], Any], errors: type[Exception]) -> Any:
    """Call until no error is raised, and return the result."""
    seen: list[object] = [None]

    def tried() -> bool:
        try:
            seen[0] = call()
        except errors as error:
            seen[0] = error
            return False
        return True

    cluster.wait_for(what, tried)
    return seen[0]
