"""Short forms for confluent-kafka: clients that close, topics that exist, records and errors as plain values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ClusterMetadata, NewTopic

from compat_tests.clients.common import T0, WAIT_S, wait_for

# Short backoffs, and no telemetry, which would send the broker requests that it cannot answer.
QUIET = {"retry.backoff.ms": 50, "enable.metrics.push": False, "log_level": 0}


def admin(bootstrap: str) -> AdminClient:
    """Return an admin client. A caller that drops it before its futures are done never sees them done."""
    return AdminClient({"bootstrap.servers": bootstrap, **QUIET})


def metadata(client: AdminClient) -> ClusterMetadata | None:
    """Return the cluster's metadata; None while a broker that has just started knows no brokers (`_PARTIAL`)."""
    try:
        return client.list_topics(timeout=WAIT_S)
    except KafkaException:
        return None


def error_name(error: KafkaError | None) -> str | None:
    """Return the name of an error; None if there is no error."""
    return None if error is None else str(error.name())


def told(call: Callable[[], Any]) -> Any:
    """Return what `call` returns, or the name and the text of the Kafka error that it raises."""
    try:
        return call()
    except KafkaException as error:
        return {"error": error_name(error.args[0]), "text": error.args[0].str()}


def _shown(future: Any, show: Callable[[Any], Any]) -> Any:
    return show(future.result(WAIT_S))


def answers(futures: dict[Any, Any], show: Callable[[Any], Any] = lambda result: result) -> dict[str, Any]:
    """Return the outcome of each future of an admin call, by its key (such as a topic)."""
    found = {}
    for about, future in futures.items():
        name = f"{about.topic}-{about.partition}" if isinstance(about, TopicPartition) else str(about)
        found[name] = told(partial(_shown, future, show))
    return found


def create(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> str:
    """Create a topic, wait for its leaders and return its name; config keys are written with "_" for "."."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    client = admin(bootstrap)
    client.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(WAIT_S)

    def led() -> bool:
        topic = client.list_topics(name, timeout=WAIT_S).topics[name]
        return len(topic.partitions) == partitions and all(each.leader >= 0 for each in topic.partitions.values())

    wait_for("leaders", led)
    return name


@contextmanager
def producer(bootstrap: str, **config: Any) -> Iterator[Producer]:
    """Yield a producer and flush it at the end; config keys are written with "_" for "."."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    client = Producer({"bootstrap.servers": bootstrap, **QUIET, **settings})
    yield client
    left = client.flush(WAIT_S)
    assert left == 0, f"{left} messages were not delivered"


def send(client: Producer, topic: str, value: bytes | None = None, **options: Any) -> list[Any]:
    """Send one record and return its delivery report: error, partition, offset, timestamp."""
    seen: list[list[Any]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        seen.append([error_name(error), message.partition(), message.offset(), list(message.timestamp())])

    client.produce(topic, value, on_delivery=delivered, **options)
    client.flush(WAIT_S)
    return seen[0]


def fill(bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **config: Any) -> None:
    """Append values to a partition, with increasing keys k0, k1, ... and times from T0 on."""
    with producer(bootstrap, **config) as client:
        for number, value in enumerate(values):
            key = f"k{number}".encode()
            client.produce(topic, value, key=key, partition=partition, timestamp=T0 + number)


@contextmanager
def consumer(bootstrap: str, group: str, **config: Any) -> Iterator[Consumer]:
    """Yield a consumer that starts at the beginning and does not commit by itself; keys use "_" for "."."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    base = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **QUIET}
    client = Consumer({**base, "enable.auto.commit": False, **settings})
    try:
        yield client
    finally:
        client.close()


def take(client: Consumer, count: int) -> list[Message]:
    """Poll until `count` messages or errors have arrived; return them ordered by partition and offset."""
    taken: list[Message] = []

    def enough() -> bool:
        taken.extend(client.consume(count - len(taken), 0.2))
        return len(taken) >= count

    wait_for(f"{count} messages", enough)
    return sorted(taken, key=lambda message: (message.topic(), message.partition(), message.offset()))


def read(bootstrap: str, topic: str, count: int, partitions: int = 1, **config: Any) -> list[Message]:
    """Read `count` messages of a topic from its beginning."""
    with consumer(bootstrap, f"{topic}-reader", **config) as client:
        client.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        return take(client, count)


def plain(message: Message) -> dict[str, Any]:
    """Return a message as plain values."""
    return {
        "error": error_name(message.error()),
        "partition": message.partition(),
        "offset": message.offset(),
        "leader epoch": message.leader_epoch(),
        "key": message.key(),
        "value": message.value(),
        "headers": message.headers(),
        "timestamp": list(message.timestamp()),
    }
