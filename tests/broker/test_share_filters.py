"""Share groups that read a view, and share groups with a filter of their own."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from tests.views.world import records_of

PATIENCE_S = 20.0
EU = "header.region = 'EU'"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    quick = {f"group.share.{name}heartbeat.interval.ms": "200" for name in ("min.", "")}
    with Broker(quick) as running:
        yield running


def set_configs(broker: Broker, group: str, **configs: str) -> None:
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in configs.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    changed = admin.incremental_alter_configs([ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)])
    next(iter(changed.values())).result(PATIENCE_S)


def put(broker: Broker, topic: str, count: int, *, every: int = 10) -> list[bytes]:
    """Write records, of which one in `every` matches. Return the values that match."""
    wanted = []
    for _ in range(count):
        number = next(_numbers)
        region = "US" if number % every else "EU"
        broker.topics[topic].produce(str(number), headers=[("region", region)])
        if region == "EU":
            wanted.append(b"%d" % number)
    return wanted


def take(consumer: ShareConsumer, count: int, seconds: float = PATIENCE_S) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        found += [message.value() for message in consumer.poll(0.2)]
    return found


def until_no_lag(broker: Broker, group: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while broker.groups[group].lag():
        assert time.monotonic() < deadline, broker.groups[group].lag()
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["view", "filter"])
def test_a_share_group_gets_what_matches_and_has_no_lag(broker: Broker, kind: str) -> None:
    source, group = f"jobs-{kind}", f"workers-{kind}"
    broker.topics.create(source)
    topic = source
    if kind == "view":
        topic = "jobs-of-eu"
        broker.topics.create(topic, config={"view.source": source, "view.filter": EU})
        set_configs(broker, group, share_auto_offset_reset="earliest")
    else:
        set_configs(broker, group, share_auto_offset_reset="earliest", share_filter=EU)
    wanted = put(broker, source, 95)
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    try:
        assert take(consumer, len(wanted)) == wanted
        consumer.poll(0.2)  # acknowledges
        until_no_lag(broker, group)
        put(broker, source, 20, every=10**9)
        assert take(consumer, 1, 1.5) == []
        until_no_lag(broker, group)
        before = len(broker.requests.of("ShareFetch"))
        put(broker, source, 30, every=10**9)
        assert take(consumer, 1, 1.5) == []
        assert len(broker.requests.of("ShareFetch")) - before < 15, "the fetch is held while nothing matches"
        more = put(broker, source, 40)
        assert take(consumer, len(more)) == more
    finally:
        consumer.close()


def test_a_group_on_a_view_with_a_filter_gets_what_matches_both(broker: Broker) -> None:
    broker.topics.create("both")
    broker.topics.create("both-eu", config={"view.source": "both", "view.filter": EU})
    set_configs(broker, "both-group", share_auto_offset_reset="earliest", share_filter="value > 30")
    for number in range(60):
        broker.topics["both"].produce(str(number), headers=[("region", "EU" if number % 2 else "US")])
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "both-group"})
    consumer.subscribe(["both-eu"])
    wanted = [b"%d" % number for number in range(31, 60, 2)]
    try:
        assert take(consumer, len(wanted)) == wanted
    finally:
        consumer.close()


def test_a_fetch_that_waits_gets_nothing_of_the_source_when_its_view_is_deleted(broker: Broker) -> None:
    broker.topics.create("kept")
    broker.topics.create("gone", config={"view.source": "kept", "view.filter": EU})
    set_configs(broker, "gone-group", share_auto_offset_reset="earliest")
    (wanted,) = put(broker, "kept", 1, every=1)
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "gone-group"})
    consumer.subscribe(["gone"])
    assert take(consumer, 1) == [wanted]  # the group has a state for the view
    assert broker._node is not None
    topic_id = broker._node.metadata.state.topics["gone"].topic_id

    def request(epoch: int, wait_ms: int) -> ShareFetchRequest:
        return ShareFetchRequest(
            group_id="gone-group", member_id="AAAAAAAAAAAAAAAAAAAAAA", share_session_epoch=epoch, min_bytes=1,
            max_wait_ms=wait_ms, max_bytes=1 << 20, max_records=500, batch_size=500,
            topics=[FetchTopic(topic_id, [FetchPartition(0, [])])] if not epoch else [],
        )  # fmt: skip

    with WireClient(broker.bootstrap_servers) as client:
        assert client.ask(request(0, 0), 1).error_code == 0
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(client.ask(request(1, 8_000), 1)))
        waiting.start()
        time.sleep(0.3)  # otherwise the fetch may begin after the deletion
        broker.topics["gone"].delete()
        broker.topics["kept"].produce("secret", headers=[("region", "US")])
        waiting.join(PATIENCE_S)
    consumer.close()
    (answer,) = answers
    for topic in answer.responses:
        for partition in topic.partitions:
            assert not partition.records, records_of(partition.records)
    hosted = broker._node.services.share.of_group("gone-group")
    assert not hosted


def test_a_wrong_filter_of_a_group_is_refused(broker: Broker) -> None:
    with pytest.raises(KafkaException, match="at character"):
        set_configs(broker, "wrong", share_filter="((")
