"""How often partitions check for producers that have been silent for long."""

from __future__ import annotations

import pytest

from compat_tests.wire.client import WireClient
from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker import Broker
from kbroker.broker import periodic_work
from tests.broker.test_endings import create, until


@pytest.mark.parametrize("interval_ms", [1, 600_000])
def test_producers_are_looked_for_as_often_as_configured(interval_ms, monkeypatch):
    monkeypatch.setattr(periodic_work, "_TICK_SECONDS", 0.02)
    keys = {"producer.id.expiration.ms": "1", "producer.id.expiration.check.interval.ms": str(interval_ms)}
    with Broker(keys) as broker, WireClient(broker.bootstrap_servers) as client:
        create(client, "t")
        sent = batch(1, producer_id=7, producer_epoch=0, base_sequence=0)
        assert client.ask(produce_request("t", sent), 9).responses[0].partition_responses[0].error_code == 0
        log = broker.node.replicas.leader("t", 0).log
        ticks = []
        inner = broker.node.logs.due

        async def counted(now_ms):
            await inner(now_ms)
            ticks.append(now_ms)

        broker.node.logs.due = counted
        until(lambda: len(ticks) > 2)
        assert [entry.producer_id for entry in log.active_producers()] == ([] if interval_ms == 1 else [7])
