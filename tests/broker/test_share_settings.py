"""The share.* configs of groups, as share partitions read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.broker.share_settings import ShareSettings
from kbroker.cluster_state import ClusterState
from kbroker.config.server_config import BrokerConfig
from kbroker.config.validation import validate_group
from kbroker.share_partition.persister import EARLIEST, LATEST
from tests.coordination.world import ManualClock

CONFIG = BrokerConfig({"log.dirs": "unused"})
DAY_MS = 86_400_000


def settings_of(**configs: str) -> ShareSettings:
    own = {name.replace("_", "."): value for name, value in configs.items()}
    validate_group(CONFIG, own)
    clock = ManualClock()
    clock.ms = 3.0 * DAY_MS
    return ShareSettings(CONFIG, clock, lambda: replace(ClusterState(""), group_configs={"g": own}))


@pytest.mark.parametrize("space", ["", " ", "\t"])
def test_spaces_around_a_value_do_not_count(space: str) -> None:
    settings = settings_of(
        share_isolation_level=f"{space}read_committed{space}",
        share_renew_acknowledge_enable=f"{space}True",
        share_delivery_count_limit=f"{space}3{space}",
        share_auto_offset_reset=f"{space}earliest{space}",
    )
    assert settings.reads_committed("g")
    assert settings.limits("g").renews
    assert settings.limits("g").delivery_count == 3
    assert settings.auto_offset_reset("g") == EARLIEST
    assert settings_of(share_auto_offset_reset=f"by_duration:P1D{space}").auto_offset_reset("g") == 2 * DAY_MS


def test_what_a_group_does_not_set() -> None:
    settings = settings_of(share_renew_acknowledge_enable=" false")
    assert not settings.limits("g").renews
    assert settings.limits("h").renews
    assert not settings.reads_committed("g")
    assert settings.auto_offset_reset("g") == LATEST
