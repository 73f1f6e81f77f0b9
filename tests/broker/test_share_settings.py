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


def settings_of(level: int = 2, **configs: str) -> ShareSettings:
    own = {name.replace("_", "."): value for name, value in configs.items()}
    validate_group(CONFIG, own)
    clock = ManualClock()
    clock.ms = 3.0 * DAY_MS
    features = {"share.version": level}
    return ShareSettings(CONFIG, clock, lambda: replace(ClusterState(""), group_configs={"g": own}, features=features))


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


def test_dead_letters_need_a_topic_and_the_feature() -> None:
    name = {"errors_deadletterqueue_topic_name": "dlq.t"}
    assert settings_of(**name).limits("g").dead_letters
    assert not settings_of(1, **name).limits("g").dead_letters
    assert not settings_of(**name).limits("h").dead_letters
    assert not settings_of(errors_deadletterqueue_topic_name=" ").limits("g").dead_letters


def test_how_long_a_record_that_came_back_is_kept() -> None:
    settings = settings_of(
        share_release_backoff_ms=" 100", share_release_backoff_max_ms="1000", share_release_backoff_multiplier="3.0d "
    )
    assert [settings.limits("g").backoff_after(count) for count in (1, 2, 3, 4, 1000)] == [100, 300, 900, 1000, 1000]
    assert settings.limits("h").backoff_after(3) == 0, "by default"
    most = settings_of(
        share_release_backoff_ms=str(2**31 - 1),
        share_release_backoff_max_ms=str(2**31 - 1),
        share_release_backoff_multiplier="10",
    )
    assert most.limits("g").backoff_after(1000) == 2**31 - 1
    assert (
        settings_of(share_release_backoff_ms="50", share_release_backoff_max_ms="20").limits("g").backoff_after(1) == 20
    )


def test_a_changed_config_applies_from_the_next_use_on() -> None:
    states = [ClusterState("", group_configs={"g": {"share.delivery.count.limit": text}}) for text in ("3", "4")]
    settings = ShareSettings(CONFIG, ManualClock(), lambda: states[0])
    assert settings.limits("g") is settings.limits("g")
    assert settings.limits("g").delivery_count == 3
    del states[0]
    assert settings.limits("g").delivery_count == 4
