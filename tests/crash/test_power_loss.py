"""Power loss: started from what had been fsynced alone, a broker with flush.messages=1 has all that it acknowledged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.protocol.records import build_batch, read_records
from tests.crash.power import Power
from tests.figures import figure

SEED = 20261121
LOSSES = 12
SETTINGS = {
    "log.segment.bytes": str(1 << 20),
    "log.flush.offset.checkpoint.interval.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
}


def create(client: WireClient, name: str) -> None:
    configs = [CreatableTopicConfig("flush.messages", "1")]
    topics = [CreatableTopic(name, 2, 1, configs=configs)]
    answer = client.ask(CreateTopicsRequest(topics=topics, timeout_ms=5000), 5)
    assert answer.topics[0].error_code == 0


def produce(client: WireClient, topic: str, partition: int, value: bytes) -> None:
    batch = build_batch([(1_700_000_000_000, None, value, ())])
    answer = client.ask(produce_request(topic, batch, partition=partition), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


def read(client: WireClient, topic: str, partition: int) -> list[bytes]:
    found: list[bytes] = []
    while True:
        wanted = FetchPartition(partition=partition, fetch_offset=len(found), partition_max_bytes=1 << 20)
        topics = [FetchTopic(topic=topic, partitions=[wanted])]
        answer = client.ask(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 11)
        data = answer.responses[0].partitions[0]
        assert data.error_code == 0, (topic, partition, data.error_code)
        if len(found) >= data.high_watermark:
            return found
        view = memoryview(data.records)
        while len(view) > 12 and len(view) >= (size := int.from_bytes(view[8:12]) + 12):
            found += [bytes(record.value or b"") for record in read_records(view[:size], max_bytes=1 << 24)]
            view = view[size:]


def test_what_was_acknowledged_holds_over_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"seed {SEED}, {LOSSES} losses")
    rng = random.Random(SEED)
    directory = tmp_path / "data"
    directory.mkdir()
    acknowledged: dict[tuple[str, int], list[bytes]] = {}
    power = Power(directory)
    records = 0
    with (
        power.watched(monkeypatch),
        Broker(SETTINGS, data_dir=str(directory)) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        for loss in range(LOSSES):
            name = f"t{loss}"
            create(client, name)
            acknowledged |= {(name, 0): [], (name, 1): []}
            for number in range(rng.randint(1, 40)):
                key = rng.choice(list(acknowledged))
                value = f"{loss}-{number}".encode().ljust(rng.choice((10, 100_000)), b".")
                produce(client, *key, value)
                acknowledged[key].append(value)
                records += 1
            survivor = tmp_path / f"after-{loss}"
            power.after_power_loss(survivor)
            _check(survivor, acknowledged)
    figure("losses of power", f"{LOSSES}, {power.syncs} syncs, {records} records acknowledged and readable later")


def _check(survivor: Path, acknowledged: dict[tuple[str, int], list[bytes]]) -> None:
    with Broker(SETTINGS, data_dir=str(survivor)) as broker, WireClient(broker.bootstrap_servers) as client:
        for key, values in acknowledged.items():
            found = read(client, *key)
            assert found[: len(values)] == values, key
            assert len(found) == len(values)
