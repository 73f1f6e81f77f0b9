"""What keeps the records that name all remote segments, and when a topic uses remote storage."""

from __future__ import annotations

import pytest

from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.topic_plans import internal_topics
from kbroker.tiers.settings import uses_remote_storage


def test_the_records_that_name_the_segments_are_kept_whatever_the_broker_keeps() -> None:
    config = BrokerConfig({"log.retention.bytes": "1000", "log.retention.ms": "1000", "log.cleanup.policy": "compact"})
    kept = internal_topics(config)[REMOTE_LOG_METADATA_TOPIC].configs
    assert kept == {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}


@pytest.mark.parametrize(
    ("value", "uses"), [("true", True), (" TRUE ", True), ("false", False), (None, False), ("", False)]
)
def test_a_topic_uses_remote_storage_as_kafka_reads_the_config(value: str | None, uses: bool) -> None:
    assert uses_remote_storage({} if value is None else {"remote.storage.enable": value}) is uses
