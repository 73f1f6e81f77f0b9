"""Adopt Kafka's data: record the topics of a data directory in kbroker's metadata journal.

Owns the construction of a topic's record (id, number of partitions, leader epochs) from the topic's files alone. Never
touches a partition's files, and never guesses: if the input is uncertain, it raises an error and records nothing.

The journal also records which producer ids are in use, so that the broker does not allocate them again. If the
directory has Kafka's own metadata log, this log contains the next free id. Otherwise the largest producer id in the
partitions counts. This id may be in a producer snapshot, in the log after the snapshot, or in `__transaction_state`: a
producer with a transactional id may never have written a record. Unreadable files are skipped: the broker checks the
producer ids again after recovery.

If the journal is new, it gets the feature levels of a new node: Kafka's groups and queues need them.

A topic's configs are not in its files. If the caller does not pass them, the topic gets the broker's defaults. With the
defaults, retention may delete old segments as soon as a broker starts. Therefore kbroker adopts topics only on request.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from kbroker.cluster_state import PartitionState, TopicState
from kbroker.config.model import InvalidConfig
from kbroker.config.table import TOPIC
from kbroker.config.values import parse_all
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import EmbeddedStore
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.log import checkpoints
from kbroker.log.batch_scan import scan_batches, scan_headers
from kbroker.log.directories import meta_properties
from kbroker.log.directories.dir_lock import lock_directory
from kbroker.log.files import LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_name, offset_of
from kbroker.log.offline.audit import OpenFile
from kbroker.log.offline.check import partitions_of
from kbroker.log.offline.check_checkpoints import parse_epochs, parse_topic_id
from kbroker.log.producers.producer_snapshots import decode_snapshot
from kbroker.log.producers.producer_state import CREDIBLE_IDS
from kbroker.protocol.compiler import decoder
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.coordinator_records import TransactionLogValue
from kbroker.protocol.records import Record, read_records
from kbroker.protocol.wire import read_uvarint, uuid_text

_COMPACTED: Final = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
INTERNAL: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": _COMPACTED,
    "__transaction_state": {**_COMPACTED, "compression.type": "uncompressed"},
    "__share_group_state": {**_COMPACTED, "cleanup.policy": "delete", "retention.ms": "-1"},
}
"""The configs that Kafka gives its own topics."""
_KRAFT: Final = "__cluster_metadata"
_TRANSACTIONS: Final = "__transaction_state"
_METADATA_SUFFIXES: Final = (LOG_SUFFIX, ".checkpoint")
_PRODUCER_IDS_RECORD: Final = 15
_MAX_RECORD_BYTES: Final = 256 << 20
_READERS: Final = (decoder(TransactionLogValue, 0), decoder(TransactionLogValue, 1))


class AdoptError(Exception):
    """The topics of a directory cannot be adopted, and none was recorded. The text gives the reason in one line."""


def adopt(directory: str, configs: Mapping[str, Mapping[str, str]]) -> list[TopicState]:
    """Record all unrecorded topics of `directory`, and return them; `configs` are by topic name.

    Raises LogDirError if the directory is in use. Also raises AdoptError, CorruptMetadata and OSError.
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
            # If a later step fails, a second attempt begins here again. The second attempt only skips some unused ids.
            controller.begin_features()
            controller.skip_producer_ids(first_unused_producer_id(directory))
            controller.put_topics(fresh)
            return fresh
        finally:
            store.close()
    finally:
        os.close(lock)


def directory_identity(directory: str) -> tuple[int, str]:
    """Return the node and the cluster to which a directory belongs."""
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
    """Return the newest leader epoch in a partition's files; -1 if there is none."""
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
    """Whether a topic is not recorded yet. Raises AdoptError if its name or id belongs to another topic."""
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
            f"{topic.name} has {len(known.partitions)} recorded partitions, but files of {len(topic.partitions)}"
        )
    return known is None


def first_unused_producer_id(directory: str) -> int:
    """Return an id that is higher than all producer ids in use in a `directory` of Apache Kafka. Raises OSError."""
    least = 0
    for path, (topic, _) in partitions_of(directory).items():
        if topic == _KRAFT:
            least = max(least, _allocated(path))
        else:
            least = max(least, _largest_producer(path) + 1)
        if topic == _TRANSACTIONS:
            least = max(least, _largest_of_transactions(path) + 1)
    return least


def _bases(path: str, suffix: str) -> list[int]:
    found = (offset_of(name) for name in os.listdir(path) if name.endswith(suffix))
    return sorted(base for base in found if base is not None)


def _largest_producer(path: str) -> int:
    """Return the largest producer id in a partition's newest snapshot and the log after it, -1 if there is none."""
    largest, known_from = -1, 0
    for base in reversed(_bases(path, SNAPSHOT_SUFFIX)):
        try:
            with open(offset_name(path, base, SNAPSHOT_SUFFIX), "rb") as content:
                entries = decode_snapshot(content.read())
        except ValueError:
            continue
        largest, known_from = max((i for e in entries if (i := e.producer_id) < CREDIBLE_IDS), default=-1), base
        break
    bases = _bases(path, LOG_SUFFIX)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is not None and following <= known_from:
            continue
        with OpenFile(offset_name(path, base, LOG_SUFFIX)) as file:
            for _, header in scan_headers(file, 0, file.size):
                if largest < header.producer_id < CREDIBLE_IDS:
                    largest = header.producer_id
    return largest


def _largest_of_transactions(path: str) -> int:
    """Return the largest producer id in a partition of `__transaction_state`, -1 if there is none."""
    largest = -1
    for base in _bases(path, LOG_SUFFIX):
        for record in _records(offset_name(path, base, LOG_SUFFIX)):
            if not record.value:
                continue
            try:
                version = int.from_bytes(record.value[:2], "big")
                value = _READERS[min(version, len(_READERS) - 1)](record.value[2:])
            except (Malformed, ValueError):
                continue
            largest = max(largest, value.producer_id, value.previous_producer_id, value.next_producer_id)
    return largest


def _allocated(path: str) -> int:
    """Return the next producer id in the metadata log of Kafka's controller; 0 if there is none."""
    least = 0
    for name in os.listdir(path):
        if name.endswith(_METADATA_SUFFIXES):
            for record in _records(os.path.join(path, name)):
                least = max(least, _next_producer_id(record.value or b""))
    return least


def _next_producer_id(value: bytes) -> int:
    """Return the next id in a ProducerIdsRecord; 0 for another record of the metadata log.

    frame version uvarint (1) | type uvarint | version uvarint | broker id i32 | broker epoch i64 | next id i64
    """
    try:
        frame, position = read_uvarint(value, 0)
        kind, position = read_uvarint(value, position)
        _, position = read_uvarint(value, position)
    except (Malformed, IndexError):
        return 0
    if frame != 1 or kind != _PRODUCER_IDS_RECORD or len(value) < position + 20:
        return 0
    return int.from_bytes(value[position + 12 : position + 20], "big", signed=True)


def _records(path: str) -> Iterator[Record]:
    """Yield the records of a log file, up to the first invalid batch."""
    with OpenFile(path) as file:
        for _, header, batch in scan_batches(file, 0, file.size):
            if header.is_control:
                continue
            try:
                yield from read_records(batch, max_bytes=_MAX_RECORD_BYTES)
            except Malformed:
                return
