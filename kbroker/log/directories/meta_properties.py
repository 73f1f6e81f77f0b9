"""Whose a log directory is, and whose a partition's directory in it.

Owns `meta.properties`: reading, checking and signing it. Never changes a directory that belongs to somebody else.
"""

from __future__ import annotations

import os
import uuid

from kbroker.log import checkpoints
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.files import LOG_SUFFIX


def holds_other(path: str, topic_id: uuid.UUID) -> bool:
    """Whether a directory holds data that is not this topic's: another id is on it, or none although it has data."""
    if not os.path.isdir(path):
        return False
    found = checkpoints.read_topic_id(path)
    if found is not None:
        return found != topic_id
    return any(entry.name.endswith(LOG_SUFFIX) and entry.stat().st_size > 0 for entry in os.scandir(path))


def take_identity(directory: str, node_id: int, cluster_id: str) -> tuple[str, str]:
    """Check whose directory it is, and sign it where that has not been done; returns (cluster id, directory id)."""
    path = f"{directory}/{checkpoints.META_PROPERTIES}"
    found = checkpoints.read_properties(path)
    known = found or {}
    version = known.get("version", "0" if "broker.id" in known else "1")
    if version not in ("0", "1"):
        raise LogDirError(f"{path} has version {version}, which is not known")
    node = known.get("node.id", known.get("broker.id", str(node_id)))
    if node != str(node_id):
        raise LogDirError(f"{path} belongs to node {node}, not to node {node_id}")
    cluster = known.get("cluster.id") or cluster_id or checkpoints.encode_uuid(uuid.uuid4())
    if cluster_id not in ("", cluster):
        raise LogDirError(f"{path} belongs to cluster {cluster}, not to cluster {cluster_id}")
    directory_id = known.get("directory.id") or checkpoints.encode_uuid(uuid.uuid4())
    # Kafka on ZooKeeper takes version 0 only, Kafka on KRaft version 1: a directory keeps the form it came with.
    of_zookeeper = found is not None and version == "0" and "node.id" not in known
    named = {"version": "0", "broker.id": node} if of_zookeeper else {"version": "1", "node.id": node}
    properties = {**named, "cluster.id": cluster, "directory.id": directory_id}
    if properties != found:
        checkpoints.write_properties(path, properties)
    return cluster, directory_id
