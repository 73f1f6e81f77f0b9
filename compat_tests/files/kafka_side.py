"""Puts kbroker's files where Apache Kafka finds them, while neither runs.

Owns what Kafka keeps outside of a partition's directory: znodes for 3.9 on ZooKeeper; topic ids and checkpoints for 4.x
on KRaft. Never changes a partition's log.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from compat_tests.harness.zookeeper import ZooKeeper
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.log import checkpoints
from kbroker.log.directories import meta_properties

_CHECKPOINTS: Final = (checkpoints.RECOVERY_POINTS, checkpoints.LOG_STARTS, checkpoints.HIGH_WATERMARKS)


def publish(data: Path, zookeeper: ZooKeeper) -> None:
    """Write the contents of kbroker's journal into ZooKeeper, which uses the same paths."""
    known = meta_properties.read_properties(str(data / meta_properties.META_PROPERTIES)) or {}
    values: dict[str, dict[str, Any]] = {"/cluster/id": {"version": "1", "id": known["cluster.id"]}}
    store = EmbeddedStore(str(data))
    try:
        _collect(store, "/brokers/topics", values)
        _collect(store, "/config/topics", values)
    finally:
        store.close()
    zookeeper.put(values)


def _collect(store: EmbeddedStore, path: str, values: dict[str, dict[str, Any]]) -> None:
    node = store.get(path)
    if node is not None:
        values[path] = dict(node.value)
    for name in store.children(path):
        _collect(store, f"{path}/{name}", values)


def sign_for_zookeeper(data: Path) -> None:
    """Write the meta.properties that a broker on ZooKeeper accepts: version 0 only."""
    path = str(data / meta_properties.META_PROPERTIES)
    known = meta_properties.read_properties(path) or {}
    properties = {"version": "0", "broker.id": known["node.id"]}
    properties |= {key: known[key] for key in ("cluster.id", "directory.id")}
    meta_properties.write_properties(path, properties)


def put_in_place(source: Path, target: Path, topics: Iterable[str]) -> None:
    """Replace partition 0 of topics that a stopped Kafka has just created by kbroker's, under Kafka's topic ids."""
    for topic in topics:
        place = target / f"{topic}-0"
        topic_id = checkpoints.read_topic_id(str(place))
        assert isinstance(topic_id, uuid.UUID), f"Kafka has no {place}"
        shutil.rmtree(place)
        shutil.copytree(source / f"{topic}-0", place)
        checkpoints.write_topic_id(str(place), topic_id)
    keys = {(topic, 0) for topic in topics}
    for name in _CHECKPOINTS:
        ours = checkpoints.read_offsets(str(source / name))
        theirs = checkpoints.read_offsets(str(target / name))
        merged = {key: at for key, at in theirs.items() if key not in keys}
        merged |= {key: at for key, at in ours.items() if key in keys}
        checkpoints.write_offsets(str(target / name), merged)
