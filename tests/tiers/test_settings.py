"""What keeps the records that name all remote segments, their sync, and when a topic uses remote storage."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from kbroker.broker.node_tiers import synced
from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.topic_plans import internal_topics
from kbroker.tiers.settings import uses_remote_storage
from tests.log.builders import NOW, batch, open_log


def test_the_records_that_name_the_segments_are_kept_whatever_the_broker_keeps() -> None:
    config = BrokerConfig({"log.retention.bytes": "1000", "log.retention.ms": "1000", "log.cleanup.policy": "compact"})
    kept = internal_topics(config)[REMOTE_LOG_METADATA_TOPIC].configs
    assert kept == {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}


@pytest.mark.parametrize(("factor", "least"), [(None, 2), (1, 1), (2, 2), (5, 2)])
def test_in_a_cluster_two_replicas_have_each_of_these_records(factor: int | None, least: int) -> None:
    values = {"zookeeper.connect": "127.0.0.1:2181", "broker.id": "1"}
    if factor is not None:
        values["rlmm.config.remote.log.metadata.topic.replication.factor"] = str(factor)
    topic = internal_topics(BrokerConfig(values))[REMOTE_LOG_METADATA_TOPIC]
    assert topic.replication_factor == (factor or 3)
    assert topic.configs["min.insync.replicas"] == str(least)


@pytest.mark.parametrize(
    ("value", "uses"), [("true", True), (" TRUE ", True), ("false", False), (None, False), ("", False)]
)
def test_a_topic_uses_remote_storage_as_kafka_reads_the_config(value: str | None, uses: bool) -> None:
    assert uses_remote_storage({} if value is None else {"remote.storage.enable": value}) is uses


@pytest.mark.parametrize("fails", [False, True])
def test_a_sync_brings_all_records_to_the_disk_or_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    log = open_log(tmp_path / "topic-0")
    log.append_as_leader(batch(), 0, NOW)
    assert log.recovery_point == 0

    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "no disk")

    if fails:
        monkeypatch.setattr("os.fsync", broken)
        monkeypatch.setattr("os.fdatasync", broken)
        with pytest.raises(OSError, match="no disk"):
            asyncio.run(synced(log, NOW))
    else:
        asyncio.run(synced(log, NOW))
    assert log.recovery_point == (0 if fails else 1)
