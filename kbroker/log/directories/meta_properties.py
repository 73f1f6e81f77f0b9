"""The owner of a log directory: `meta.properties`.

Owns reading, checking and writing this file. Never changes a directory of another owner. Never writes the file if the
old file is damaged, or is missing although there is data: the cluster id would differ from the old one.

    version=1, node.id, cluster.id, directory.id     or, of a broker on ZooKeeper, version=0 and broker.id
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping

from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.partition_dir_names import entries_of
from kbroker.log.files import read_optional, write_atomically
from kbroker.protocol.wire import parse_uuid, uuid_text

META_PROPERTIES = "meta.properties"


def read_properties(path: str) -> dict[str, str] | None:
    """Read a Java properties file of simple lines; return None if it is absent."""
    content = read_optional(path)
    if content is None:
        return None
    return parse_lines(content.decode(errors="replace"))


def parse_lines(text: str) -> dict[str, str]:
    """Read the lines of a Java properties file without escapes."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {key.strip(): value.strip() for key, _, value in pairs}


def is_cluster_id(text: str) -> bool:
    """Whether a text is a valid cluster id: usually 22 letters, digits, '-' and '_', but other ids are allowed."""
    return re.fullmatch(r"[A-Za-z0-9_+/=-]{1,64}", text) is not None


def check_properties(found: Mapping[str, str]) -> str:
    """Return the node id in a meta.properties. Raises ValueError for invalid content."""
    version = found.get("version")
    if version is None:
        raise ValueError("version is missing")
    if version not in ("0", "1"):
        raise ValueError(f"version {version!r} is neither 0 nor 1")
    needed = "broker.id" if version == "0" else "node.id"
    node = found.get("node.id", found.get(needed, ""))
    if not (node.isascii() and node.isdigit()):
        raise ValueError(f"{needed} is missing or not a number")
    if version == "1" and not found.get("cluster.id"):
        raise ValueError("cluster.id is missing")
    if "directory.id" in found:
        parse_uuid(found["directory.id"])
    return str(int(node))


def write_properties(path: str, properties: Mapping[str, str]) -> None:
    """Write a Java properties file."""
    lines = ["#", *(f"{key}={value}" for key, value in properties.items()), ""]
    write_atomically(path, "\n".join(lines).encode())


def _is_fresh(directory: str) -> bool:
    """Whether no broker has used a directory yet."""
    used = any(name.startswith("__metadata.") or name.endswith("-offset-checkpoint") for name in os.listdir(directory))
    return not used and not entries_of(directory).partitions


def take_identity(directory: str, node_id: int, cluster_id: str) -> tuple[str, str]:
    """Check the owner of a directory; write the owner of a new directory; return (cluster id, directory id).

    Raises LogDirError, OSError.
    """
    path = f"{directory}/{META_PROPERTIES}"
    repair = f"put it back, or write the lines version=1, node.id={node_id} and cluster.id=<the cluster's id> into it"
    found = read_properties(path)
    if found is None and not _is_fresh(directory):
        raise LogDirError(f"{path} is missing, although the directory holds data: {repair}")
    known = found or {}
    try:
        node = check_properties(known) if found is not None else str(node_id)
    except ValueError as error:
        raise LogDirError(f"{path} is damaged ({error}): {repair}") from error
    if node != str(node_id):
        raise LogDirError(f"{path} belongs to node {node}, not to node {node_id}")
    cluster = known.get("cluster.id") or cluster_id or uuid_text(uuid.uuid4().bytes)
    if cluster_id not in ("", cluster):
        raise LogDirError(f"{path} belongs to cluster {cluster}, not to cluster {cluster_id}")
    directory_id = known.get("directory.id") or uuid_text(uuid.uuid4().bytes)
    # Kafka on ZooKeeper accepts only version 0, and Kafka on KRaft only version 1: a directory keeps its version.
    of_zookeeper = known.get("version") == "0" and "node.id" not in known
    named = {"version": "0", "broker.id": node} if of_zookeeper else {"version": "1", "node.id": node}
    properties = {**named, "cluster.id": cluster, "directory.id": directory_id}
    if properties != found:
        write_properties(path, properties)
    return cluster, directory_id
