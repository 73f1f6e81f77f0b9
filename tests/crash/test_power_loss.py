"""Power loss: started from fsynced data only, a broker with flush.messages=1 has everything that it acknowledged."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kbroker.protocol.records import build_batch
from tests.crash.power import Power
from tests.crash.writing import read
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
    batch = build_batch([(time.time_ns() // 1_000_000, None, value, ())])
    answer = client.ask(produce_request(topic, batch, partition=partition), 9)
    assert answer.responses[0].partition_responses[0].error_code == 0


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
            topic, partition = key
            found = read(client, partition, topic)
            assert found[: len(values)] == values, key
            assert len(found) == len(values)
