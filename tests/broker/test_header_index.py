"""filter.index.headers on a running broker: the files of the index come and go, and views pass over other batches."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.log.files import HEADERS_SUFFIX
from kbroker.log.offline.check import audit
from kbroker.log.segment.header_index import DamagedIndexError, HeaderIndex
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import NewRecord, build_batch
from tests.broker.test_views import LATEST, data_of, fetch, offset_at, offsets_in

INDEXED = {
    "internal.segment.bytes": "200000",
    "filter.index.headers": "region",
    "file.delete.delay.ms": "0",
    "retention.ms": "-1",  # the records are of 1970, and `until` moves the clock to the next check of retention
}
BATCHES = 200
PATIENCE_S = 60.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.segment.delete.delay.ms": "0"}) as running:
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as client:
        yield client


def filled(broker: Broker, wire: WireClient, **more: str) -> str:
    """Return a topic with some segments; batch 5 and batch 100 have one record of the region EU each."""
    name = f"indexed{next(_numbers)}"
    broker.topics.create(name, 1, config={**INDEXED, **{key.replace("_", "."): value for key, value in more.items()}})
    for number in range(BATCHES):
        regions = [b"EU" if each == 5 and number in (5, 100) else b"US" for each in range(10)]
        records: list[NewRecord] = [(0, b"%d" % number, bytes(1000), [("region", each)]) for each in regions]
        data = build_batch(records)
        request = ProduceRequest(
            None, 1, 5000, [TopicProduceData(name, partition_data=[PartitionProduceData(0, data)])]
        )
        assert not wire.ask(request, 9).responses[0].partition_responses[0].error_code
    return name


def segments(broker: Broker, topic: str) -> list[Path]:
    return sorted((Path(broker.data_dir) / f"{topic}-0").glob("*.log"))


def indexes(broker: Broker, topic: str) -> list[Path]:
    return sorted((Path(broker.data_dir) / f"{topic}-0").glob(f"*{HEADERS_SUFFIX}"))


def is_indexed(broker: Broker, topic: str) -> bool:
    """Whether each closed segment has a complete index."""
    files = indexes(broker, topic)
    if broker.node.views.shared.indexes.is_making:
        return False
    try:
        return len([HeaderIndex(each.read_bytes()) for each in files]) == len(segments(broker, topic)) - 1 > 3
    except DamagedIndexError:  # the file is being written
        return False


def until(broker: Broker, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        broker.clock.advance(seconds=2)
        time.sleep(0.02)


def view(broker: Broker, source: str, wanted: str) -> str:
    name = f"view-of-{source}-{next(_numbers)}"
    broker.topics.create(name, 1, config={"view.source": source, "view.filter": wanted})
    return name


def read(wire: WireClient, name: str) -> list[int]:
    """Read a view to its end."""
    found: list[int] = []
    end = offset_at(wire, name, LATEST)
    while not found or found[-1] + 1 < end:
        request: FetchRequest = fetch(name, offset=found[-1] + 1 if found else 0, wait_ms=5000)
        (data,) = data_of(wire.ask(request, 12))
        assert not data.error_code
        found += offsets_in(data)
    return found


def alter(broker: Broker, topic: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    entry = ConfigEntry("filter.index.headers", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(10)


def test_a_view_passes_over_what_cannot_match(broker: Broker, wire: WireClient) -> None:
    source = filled(broker, wire)
    until(broker, lambda: is_indexed(broker, source))
    before = broker.node.views.shared.scanned
    assert read(wire, view(broker, source, "header.region = 'EU'")) == [55, 1005]
    scanned = broker.node.views.shared.scanned - before
    assert scanned < BATCHES * 10 / 4, "all but the open segment and a few blocks were passed over"
    before = broker.node.views.shared.scanned
    assert len(read(wire, view(broker, source, "NOT header.region = 'EU'"))) == BATCHES * 10 - 2
    assert broker.node.views.shared.scanned - before >= BATCHES * 10


def test_the_files_go_with_the_config_and_with_the_topic(broker: Broker, wire: WireClient) -> None:
    source = filled(broker, wire)
    until(broker, lambda: is_indexed(broker, source))
    alter(broker, source, "")
    until(broker, lambda: not indexes(broker, source))
    alter(broker, source, "region,tenant")
    until(broker, lambda: is_indexed(broker, source))
    assert read(wire, view(broker, source, "header.region = 'EU' AND header.tenant IS NULL")) == [55, 1005]
    broker.topics[source].delete()
    until(broker, lambda: not list(Path(broker.data_dir).glob(f"{source}-*")))


def test_a_damaged_file_is_made_again(broker: Broker, wire: WireClient, caplog: pytest.LogCaptureFixture) -> None:
    source = filled(broker, wire)
    until(broker, lambda: is_indexed(broker, source))
    files = indexes(broker, source)
    good = [each.read_bytes() for each in files]
    for each in files[::2]:
        each.write_bytes(b"damaged")
    files[1].unlink()
    found = [each for each in audit(str(files[0].parent)) if each.path.endswith(HEADERS_SUFFIX)]
    assert len(found) == len(files[::2])
    assert read(wire, view(broker, source, "header.region = 'EU'")) == [55, 1005]
    assert any("is made again" in each for each in caplog.messages)
    until(broker, lambda: [each.read_bytes() for each in files[::2] if each.exists()] == good[::2])


def test_a_header_with_too_many_values_is_named(
    broker: Broker, wire: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for each topic, also for a new topic of the same name."""
    caplog.set_level(logging.WARNING)
    source = f"indexed{next(_numbers)}"
    said = f"{source}-0: the header id has too many values to be indexed"
    for times in (1, 2):
        broker.topics.create(source, 1, config={**INDEXED, "filter.index.headers": "id"})
        for first in range(0, 20_000, 1000):
            records: list[NewRecord] = [(0, None, b"x", [("id", b"%d" % each)]) for each in range(first, first + 1000)]
            part = PartitionProduceData(0, build_batch(records))
            wire.ask(ProduceRequest(None, 1, 5000, [TopicProduceData(source, partition_data=[part])]), 9)
        until(broker, lambda: len([each for each in caplog.messages if said in each]) == times)  # noqa: B023 - at once
        if times == 1:
            assert read(wire, view(broker, source, "header.id = '1234'")) == [1234]
            broker.topics[source].delete()


@pytest.mark.parametrize("value", ["a b", "é", ",".join(f"h{number}" for number in range(9)), "x" * 250])
def test_values_that_are_no_names_of_headers(broker: Broker, value: str) -> None:
    name = f"indexed{next(_numbers)}"
    broker.topics.create(name, 1)
    with pytest.raises(KafkaException, match="names of headers"):
        alter(broker, name, value)


def test_a_view_has_no_index_of_its_own(broker: Broker, wire: WireClient) -> None:
    source = filled(broker, wire)
    with pytest.raises(KafkaException, match=r"cannot have filter\.index\.headers"):
        alter(broker, view(broker, source, "*"), "region")
