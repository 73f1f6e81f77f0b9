"""The broker's settings for share groups."""

from __future__ import annotations

import pytest

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.group_coordinator.config import group_config


def config(**settings):
    return group_config(BrokerConfig({name.replace("_", "."): value for name, value in settings.items()}))


def test_the_defaults_are_kafkas():
    found = config()
    assert (found.share_session_timeout_ms, found.share_heartbeat_interval_ms, found.share_max_size) == (
        45_000, 5_000, 200,
    )  # fmt: skip
    assert (found.share_assignment_interval_ms, found.share_initialize_retry_interval_ms) == (1_000, 30_000)


def test_there_is_one_assignor():
    kafkas = "org.apache.kafka.coordinator.group.assignor.SimpleAssignor"
    assert config(group_share_assignors=kafkas).share_assignor == "simple"
    for wrong in ("mine", "simple,mine"):
        with pytest.raises(ConfigError):
            config(group_share_assignors=wrong)
