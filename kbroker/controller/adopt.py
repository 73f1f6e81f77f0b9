"""Record the topics whose files lie in a data directory in kbroker's metadata journal: this adopts Kafka's data.

Owns how a topic's record is built from its files alone: id, number of partitions, leader epochs. Never touches a
partition's files, and never guesses: uncertain input is refused, and then nothing is recorded.

A topic's configs are not among its files. They are passed in, or the topic gets the broker's defaults, under which
retention may delete old segments as soon as a broker starts. Therefore nothing is ever adopted unasked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.config.model import InvalidConfig
from kbroker.config.table import TOPIC
from kbroker.config.values import parse_all
from kbroker.controller.adopt_producer_ids import first_unused_producer_id
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.log import checkpoints
from kbroker.log.batch_scan import scan_headers
from kbroker.log.directories import meta_properties
from kbroker.log.directories.dir_lock import lock_directory
from kbroker.log.files import LOG_SUFFIX, offset_name, offset_of
from kbroker.log.offline.audit import OpenFile
from kbroker.log.offline.check import partitions_of
from kbroker.log.offline.check_checkpoints import parse_epochs, parse_topic_id
from kbroker.protocol.wire import uuid_text

_COMPACTED: Final = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
INTERNAL: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": _COMPACTED,
    "__transaction_state": {**_COMPACTED, "compression.type": "uncompressed"},
    "__share_group_state": {**_COMPACTED, "cleanup.policy": "delete", "retention.ms": "-1"},
}
"""Configs that Kafka gives its own topics."""
_KRAFT: Final = "__cluster_metadata"


class AdoptError(Exception):
    """A directory's topics cannot be adopted; the text gives the reason in one line, and nothing has been recorded."""


def adopt(directory: str, configs: Mapping[str, Mapping[str, str]]) -> list[TopicState]:
    """Record all unrecorded topics of `directory`, and return them; `configs` are by topic name.

    Raises AdoptError, LogDirError (in use), CorruptMetadata, OSError.
    """
    node_id, cluster_id = directory_identity(directory)
    lock = lock_directory(directory)
    try:
        store = EmbeddedStore(directory)
        try:
            controller = Controller(store, cluster_id, TopicDefaults(1, 1, {}))
            found = _topics(directory, node_id, configs)
            fresh = [topic for topic in found if _is_fresh(topic, controller)]
            strangers = configs.keys() - {topic.name for topic in fresh}
            if strangers:
                raise AdoptError(f"configs are given for {min(strangers)}, which is not a topic to be adopted")
            # First: if the rest fails, some ids are skipped, and nothing else has happened.
            controller.skip_producer_ids(first_unused_producer_id(directory))
            controller.put_topics(fresh)
            return fresh
        finally:
            store.close()
    finally:
        os.close(lock)


def directory_identity(directory: str) -> tuple[int, str]:
    """Return the node and the cluster that a directory belongs to."""
    path = os.path.join(directory, meta_properties.META_PROPERTIES)
    known = meta_properties.read_properties(path)
    if known is None:
        raise AdoptError(f"{directory} has no {meta_properties.META_PROPERTIES}: it is not a broker's data directory")
    node = known.get("node.id", known.get("broker.id", ""))
    if known.get("version") not in ("0", "1") or not node.isdigit():
        raise AdoptError(f"{path} does not say which node it belongs to")
    if not known.get("cluster.id"):
        raise AdoptError(f"{path} has no cluster.id")
    return int(node), known["cluster.id"]


def _topics(directory: str, node_id: int, configs: Mapping[str, Mapping[str, str]]) -> list[TopicState]:
    paths: dict[str, dict[int, str]] = {}
    for path, (name, partition) in partitions_of(directory).items():
        if name != _KRAFT:
            paths.setdefault(name, {})[partition] = path
    found = []
    for name, by_index in sorted(paths.items()):
        if sorted(by_index) != list(range(len(by_index))):
            missing = next(index for index in range(len(by_index)) if index not in by_index)
            raise AdoptError(f"partition {name}-{missing} is not in {directory}, but later ones are")
        ids = {_topic_id(path) for path in by_index.values()}
        if len(ids) != 1:
            raise AdoptError(f"the partitions of {name} have different topic ids")
        partitions = tuple(
            PartitionState((node_id,), (node_id,), node_id, _last_epoch(by_index[index]) + 1)
            for index in range(len(by_index))
        )
        given = {**INTERNAL.get(name, {}), **configs.get(name, {})}
        _check_configs(name, given)
        found.append(TopicState(name, ids.pop(), partitions, given))
    return found


def _topic_id(path: str) -> bytes:
    file = os.path.join(path, checkpoints.PARTITION_METADATA)
    try:
        topic_id = parse_topic_id(file)
    except ValueError as error:
        raise AdoptError(f"{file}: {error}") from error
    if topic_id is None:
        raise AdoptError(f"{file} is missing, so that the topic's id is not known")
    return topic_id


def _last_epoch(path: str) -> int:
    """Return the newest leader epoch of a partition's files, -1 without one."""
    try:
        epochs = parse_epochs(os.path.join(path, checkpoints.LEADER_EPOCHS))
    except ValueError as error:
        raise AdoptError(f"{path}/{checkpoints.LEADER_EPOCHS}: {error}") from error
    newest = epochs[-1][0] if epochs else -1
    bases = [base for name in os.listdir(path) if name.endswith(LOG_SUFFIX) and (base := offset_of(name)) is not None]
    if bases:
        with OpenFile(offset_name(path, max(bases), LOG_SUFFIX)) as file:
            for _, header in scan_headers(file, 0, file.size):
                newest = max(newest, header.leader_epoch)
    return newest


def _check_configs(name: str, given: Mapping[str, str]) -> None:
    for key in given:
        if key not in TOPIC:
            raise AdoptError(f"{name}: {key} is no config of a topic")
    try:
        parse_all(TOPIC, dict(given), {})
    except InvalidConfig as error:
        raise AdoptError(f"{name}: {error.text}") from error


def _is_fresh(topic: TopicState, controller: Controller) -> bool:
    """Whether a topic is not recorded yet; raises AdoptError if its name or id belongs to another topic."""
    known = controller.state.topics.get(topic.name)
    if known is not None and known.topic_id != topic.topic_id:
        raise AdoptError(
            f"there is a topic {topic.name} already, with the id {uuid_text(known.topic_id)}; "
            f"the files have {uuid_text(topic.topic_id)}"
        )
    other = controller.state.topic_names.get(topic.topic_id)
    if other not in (None, topic.name):
        raise AdoptError(f"the id of {topic.name}'s files is that of the topic {other}")
    if known is not None and len(known.partitions) != len(topic.partitions):
        raise AdoptError(
            f"{topic.name} is recorded with {len(known.partitions)} partitions, the files are {len(topic.partitions)}"
        )
    return known is None
