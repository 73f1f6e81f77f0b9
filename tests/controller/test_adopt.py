"""Adopting a directory's topics: what is recorded, and what is refused without recording anything."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest

from kbroker.controller.adopt import AdoptError, adopt
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import JOURNAL, EmbeddedStore
from kbroker.controller.features import BOOTSTRAP
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.log import checkpoints
from kbroker.log.directories import meta_properties
from kbroker.log.directories.dir_lock import LogDirError, lock_directory
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.log_config import LogConfig
from kbroker.protocol.wire import uuid_text
from tests.log.builders import NOW, batch

IDS = {"orders": uuid.UUID(int=7 << 64), "__consumer_offsets": uuid.UUID(int=8 << 64)}
CLUSTER = "5L6g3nShT-eMCtK--X86sw"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory as Kafka 3.9 on ZooKeeper leaves it: partitions, checkpoints, meta.properties v0.

    No journal.
    """
    data = tmp_path / "data"
    logs = LogDirectory(str(data), node_id=3, cluster_id=CLUSTER)
    logs.load(lambda _topic: LogConfig(), NOW)
    for topic, partition in (("orders", 0), ("orders", 1), ("__consumer_offsets", 0)):
        log = logs.get_or_create(topic, partition, IDS[topic], LogConfig())
        for epoch in (0, 4 + partition):
            log.append_as_leader(batch(2), epoch, NOW)
    logs.close()
    (data / meta_properties.META_PROPERTIES).write_text(f"#\nversion=0\nbroker.id=3\ncluster.id={CLUSTER}\n")
    return data


def recorded(directory: Path) -> Controller:
    store = EmbeddedStore(str(directory))
    controller = Controller(store, CLUSTER, TopicDefaults(1, 1, {}))
    store.close()
    return controller


def test_topics_are_recorded_as_the_files_have_them(directory: Path) -> None:
    (directory / "__cluster_metadata-0").mkdir()
    (directory / f"orders-2.{'0' * 32}-delete").mkdir()
    before = {path: path.read_bytes() for path in directory.glob("*/*")}
    found = adopt(str(directory), {"orders": {"retention.ms": "-1"}})
    assert [topic.name for topic in found] == ["__consumer_offsets", "orders"]
    state = recorded(directory).state
    assert state.features == BOOTSTRAP
    orders = state.topics["orders"]
    assert orders.topic_id == IDS["orders"].bytes
    assert orders.configs == {"retention.ms": "-1"}
    assert [(p.leader, p.replicas, p.isr, p.leader_epoch) for p in orders.partitions] == [
        (3, (3,), (3,), 5),
        (3, (3,), (3,), 6),
    ]
    assert state.topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"
    assert {path: path.read_bytes() for path in directory.glob("*/*")} == before
    assert adopt(str(directory), {}) == []


def test_a_lost_checkpoint_does_not_let_the_epoch_go_back(directory: Path) -> None:
    (directory / "orders-1" / checkpoints.LEADER_EPOCHS).unlink()
    adopt(str(directory), {})
    assert recorded(directory).state.topics["orders"].partitions[1].leader_epoch == 6


def refused(directory: Path, configs: dict[str, dict[str, str]] | None = None) -> str:
    with pytest.raises(AdoptError) as caught:
        adopt(str(directory), configs or {})
    assert not (directory / JOURNAL).exists() or not (directory / JOURNAL).read_bytes()
    return str(caught.value)


def test_what_is_not_certain_is_refused(directory: Path) -> None:
    assert "is not a topic to be adopted" in refused(directory, {"order": {"retention.ms": "1"}})
    assert "no config of a topic" in refused(directory, {"orders": {"retention": "1"}})
    assert "retention.ms" in refused(directory, {"orders": {"retention.ms": "x"}})
    metadata = directory / "orders-1" / checkpoints.PARTITION_METADATA
    text = metadata.read_text()
    metadata.write_text(text.replace(uuid_text(IDS["orders"].bytes), uuid_text(uuid.UUID(int=9).bytes)))
    assert "different topic ids" in refused(directory)
    metadata.write_text("version: 0\n")
    assert "partition.metadata" in refused(directory)
    metadata.unlink()
    assert "is missing" in refused(directory)
    metadata.write_text(text)
    (directory / "orders-0").rename(directory / "orders-2")
    assert "orders-0 is not in" in refused(directory)
    (directory / meta_properties.META_PROPERTIES).write_text("version=0\nbroker.id=3\n")
    assert "no cluster.id" in refused(directory)
    (directory / meta_properties.META_PROPERTIES).unlink()
    assert "no meta.properties" in refused(directory)


def test_a_topic_of_that_name_with_another_id_is_refused(directory: Path) -> None:
    adopt(str(directory), {})
    for partition in (0, 1):
        checkpoints.write_topic_id(str(directory / f"orders-{partition}"), uuid.UUID(int=9 << 64))
    with pytest.raises(AdoptError, match="there is a topic orders already"):
        adopt(str(directory), {})
    for partition in (0, 1):
        checkpoints.write_topic_id(str(directory / f"orders-{partition}"), IDS["orders"])
    shutil.copytree(directory / "orders-0", directory / "copy-0")
    with pytest.raises(AdoptError, match="is that of the topic orders"):
        adopt(str(directory), {})
    shutil.rmtree(directory / "copy-0")
    shutil.rmtree(directory / "orders-1")
    with pytest.raises(AdoptError, match="has 2 recorded partitions"):
        adopt(str(directory), {})


def test_a_directory_in_use_is_refused(directory: Path) -> None:
    lock = lock_directory(str(directory))
    try:
        with pytest.raises(LogDirError, match="in use"):
            adopt(str(directory), {})
    finally:
        os.close(lock)
