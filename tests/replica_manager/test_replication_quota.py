"""How fast throttled replicas are copied, over which time."""

from __future__ import annotations

import pytest

from kbroker.config.server_config import BrokerConfig
from kbroker.quota.rate import Window
from kbroker.replica_manager.config import replication_config
from kbroker.replica_manager.replication_quota import ReplicationQuota


@pytest.mark.parametrize("window", [Window(11, 1000), Window(3, 2000)])
def test_a_rate_is_the_mean_of_the_samples(window):
    quota = ReplicationQuota(window)
    quota.rate = 100
    begin = 10_000 * window.sample_ms
    quota.record(100 * window.sample_ms // 1000, begin)
    assert not quota.is_exceeded(begin)
    quota.record(1, begin)
    assert quota.is_exceeded(begin + window.sample_ms)
    assert not quota.is_exceeded(begin + window.sample_ms + 10)
    quota.record(10**9, begin + window.sample_ms)
    assert quota.is_exceeded(begin + window.samples * window.sample_ms)
    assert not quota.is_exceeded(begin + (window.samples + 1) * window.sample_ms)


def test_a_broker_is_told_the_window():
    settings = {"replication.quota.window.num": "5", "replication.quota.window.size.seconds": "3"}
    assert replication_config(BrokerConfig(settings)).quota_window == Window(5, 3000)
