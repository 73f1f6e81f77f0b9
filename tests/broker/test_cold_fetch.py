"""A fetch of records from before the start: one read checks only a limited number of batches."""

from __future__ import annotations

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.log import checks_at_first_read as links
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tests.log.builders import NOW, batch

AN_HOUR_MS = 3_600_000


def test_a_read_that_is_cut_short_does_not_wait_for_min_bytes(tmp_path, monkeypatch):
    config = {"log.dirs": str(tmp_path)}
    with Broker(config) as broker:
        client = WireClient(broker.bootstrap_servers)
        client.ask(CreateTopicsRequest(topics=[CreatableTopic("t", 1, 1)], timeout_ms=5000), 7)
        client.close()
        log = next(partition.log for partition in broker.node.replicas if partition.topic == "t")
        for _ in range(50):
            log.append_as_leader(batch(), 0, NOW)
    monkeypatch.setattr(links, "HEADERS_AT_ONCE", 10)
    with Broker(config) as broker:
        client = WireClient(broker.bootstrap_servers)
        partition = FetchPartition(partition=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=AN_HOUR_MS, min_bytes=3000, max_bytes=1 << 20,
            topics=[FetchTopic(topic="t", partitions=[partition])],
        )  # fmt: skip
        records = client.ask(request, 4).responses[0].partitions[0].records
        client.close()
    assert 10 * len(batch()) == len(records)
