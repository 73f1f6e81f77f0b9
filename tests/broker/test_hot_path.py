"""The cost of a Produce and a Fetch in calls of Python functions, which are deterministic, unlike time.

Raise a bound only with a reason: each call takes 50 to 100 ns in every request of every client.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise

import pytest

from compat_tests.wire.exchanges.produce import batch
from compat_tests.wire.exchanges.produce import request as produce_request
from kbroker.broker.node import BrokerNode
from kbroker.clock import SystemClock
from kbroker.config.server_config import BrokerConfig
from kbroker.handlers.registry import RequestContext
from kbroker.network.dispatch import Dispatcher
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.connections import RequestHeader
from kbroker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from kbroker.quota.client_quotas import ClientQuotas
from kbroker.quota.configured import CLIENT_KEYS, PRODUCER, Entity
from kbroker.quota.rate import Window
from tests.broker.in_effect import in_effect

PRODUCE_CALLS = 30
IDEMPOTENT_PRODUCE_CALLS = 37
FETCH_CALLS = 36
OTHERS_QUOTAS_CALLS = 2
"""The calls that other clients' quotas cost a client without a quota."""
ROUNDS = 50


@pytest.fixture(autouse=True)
def as_in_production(monkeypatch):
    """Turn off the logs' self-checks, unless a run asks for them."""
    monkeypatch.delenv("KBROKER_VERIFY", raising=False)


def frame(request, version):
    cls = type(request)
    header = RequestHeader(request_api_key=cls.KEY, request_api_version=version, correlation_id=1, client_id="hot")
    return encode(header, 2 if version in cls.FLEXIBLE else 1) + encode(request, version)


def others_quotas():
    """Set a quota for another client than the requesting one."""
    window = Window(11, 1000)
    quotas = ClientQuotas(SystemClock().monotonic_ms, window, window)
    quotas.replace({Entity("bob"): dict.fromkeys(CLIENT_KEYS, 1.0), Entity(client_id="bobs"): {PRODUCER: 1.0}})
    return quotas


async def calls_per_request(directory, frames, quotas=None):
    """Return the Python-level calls per frame, once everything is compiled and warm.

    The two costliest frames do not count: work that is due at a time, or a garbage collection, may fall into them.
    """
    node = await BrokerNode.start(BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": directory}))
    try:
        node.controller.auto_create("hot")
        await in_effect(node)
        context = RequestContext(node.services, "/127.0.0.1", "PLAINTEXT", ("", 0))
        dispatcher = Dispatcher(quotas=quotas)
        count = 0

        def profile(_frame, event, _argument):
            nonlocal count
            count += event == "call"

        for raw in frames[: len(frames) // 2]:
            assert dispatcher.run(context, memoryview(bytearray(raw)), bytearray(), []) is None
        views = [memoryview(bytearray(raw)) for raw in frames[len(frames) // 2 :]]
        counts = [0]
        sys.setprofile(profile)
        try:
            for view in views:
                dispatcher.run(context, view, bytearray(), [])
                counts.append(count)
        finally:
            sys.setprofile(None)
        each = sorted(after - before for before, after in pairwise(counts))[:-2]
        return sum(each) / len(each)
    finally:
        await node.stop()


def measured(tmp_path, frames, quotas=None):
    calls = asyncio.run(calls_per_request(str(tmp_path), frames, quotas))
    print(f"{calls:.1f} calls a request")
    return calls


@pytest.mark.parametrize("quotas", [False, True], ids=["", "others have quotas"])
def test_produce(tmp_path, quotas):
    frames = [frame(produce_request("hot", batch(100)), 9)] * (2 * ROUNDS)
    calls = measured(tmp_path, frames, others_quotas() if quotas else None)
    assert calls <= PRODUCE_CALLS + OTHERS_QUOTAS_CALLS * quotas


def test_produce_of_an_idempotent_producer(tmp_path):
    frames = [
        frame(produce_request("hot", batch(10, producer_id=7, producer_epoch=0, base_sequence=10 * i)), 9)
        for i in range(2 * ROUNDS)
    ]
    assert measured(tmp_path, frames) <= IDEMPOTENT_PRODUCE_CALLS


@pytest.mark.parametrize("quotas", [False, True], ids=["", "others have quotas"])
def test_fetch(tmp_path, quotas):
    part = FetchPartition(partition=0, partition_max_bytes=1 << 20)
    fetch = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic="hot", partitions=[part])])
    warm = [frame(produce_request("hot", batch(1000)), 9)] * (ROUNDS - 1)
    calls = measured(tmp_path, [*warm, *([frame(fetch, 11)] * (ROUNDS + 1))], others_quotas() if quotas else None)
    assert calls <= FETCH_CALLS + OTHERS_QUOTAS_CALLS * quotas
