"""The restore of a data directory from remote storage, after the loss of a broker's disk.

Owns the choice of the state copy, and the content of the new directory. Never deletes an object, and never touches a
directory with data.

A restored directory has the metadata and the broker's own topics as the state copy has them. A topic with remote
storage has all its records in remote storage, also those in objects that are newer than the copy. Other topics are
empty.

Records that were only on the lost disk are lost, but their offsets are not used again: a reader may have stored them.
A batch without records fills these offsets, and `gap` more, as after a compaction.

The metadata are in a folder of their own (dir_lock.RESTORE) until all other files are complete. While that folder has
files, nobody else can lock the directory. After an interrupted restore, the next one begins anew there.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC, PartitionState, TopicState
from kbroker.controller.controller import PRODUCER_IDS, Controller
from kbroker.controller.embedded_store import JOURNAL, NEXT, SNAPSHOT, CorruptMetadata, EmbeddedStore
from kbroker.controller.metadata_snapshot import snapshot_line
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.extras import how_to_install
from kbroker.failpoints import passed
from kbroker.log import checkpoints
from kbroker.log.directories import dir_lock
from kbroker.log.directories.dir_lock import RESTORE
from kbroker.log.directories.meta_properties import META_PROPERTIES, write_properties
from kbroker.log.directories.partition_dir_names import partition_of
from kbroker.log.files import sync_directory
from kbroker.protocol.wire import uuid_text
from kbroker.remote.object_client import StoredObject
from kbroker.remote.segments import RemoteSegments
from kbroker.remote.state_object import LogCopy, LogEnd, StateName, StateObject, folder_of_states, parse_state_name
from kbroker.remote.store import Store
from kbroker.remote.store_errors import DamagedObjectError, ObjectNotFoundError
from kbroker.restore.found_segments import FoundSegments, RemotePart
from kbroker.restore.recorded_segments import Objects, objects_in
from kbroker.restore.restored_logs import (
    CopiedLog,
    EmptyLog,
    write_empty_log,
    write_file,
)
from kbroker.restore.state_copies import COPIED_TOPICS
from kbroker.tiers.metadata import PARTITIONS
from kbroker.tiers.settings import uses_remote_storage

GAP: Final = 100_000_000
"""The default number of offsets that stay unused behind the last known offset of a partition."""
_SKIPPED_PRODUCER_IDS: Final = 1_000_000
"""The number of producer ids that stay unused, because clients may have got them after the copy."""
_SKIPPED_EPOCHS: Final = 1_000
"""The number of leader epochs that stay unused: the lost broker may have begun them after the copy."""
_AT_ONCE: Final = 16
_NO_DATA: Final = frozenset({"lost+found", dir_lock.NAME})
_OWN_FILES: Final = frozenset({RESTORE, META_PROPERTIES, checkpoints.LOG_STARTS, SNAPSHOT, NEXT, JOURNAL})
_BEGUN: Final = f"{RESTORE}.tmp"
_Progress = Callable[[int, int], None]


class RestoreError(Exception):
    """The directory cannot be restored. The text gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """A partition of a user's topic after a restore. Offsets are absolute."""

    topic: str
    partition: int
    start: int
    """The first offset that readers can read."""
    remote_end: int
    """The end of the records in remote storage; 0 if there are none."""
    end: int
    """The offset of the next record."""
    segments: int
    """The number of readable segments in remote storage."""
    lost_offsets: int
    """The number of known offsets that have no record any more: their records were only on the lost disk.

    After a second restore, the offsets that the first one left unused count as well.
    """
    deleted: int
    """The number of recorded segments before `start` whose objects are absent: they count as deleted."""
    missing: list[str]
    """The names of missing or damaged objects."""


@dataclass(frozen=True, slots=True)
class UnknownTopic:
    """A topic with objects in remote storage that the state copy does not name.

    The topic was created after the copy, or belongs to another cluster.
    """

    topic_id: str
    partitions: int
    objects: int


@dataclass(slots=True)
class Restored:
    """The result of a restore. Times are milliseconds since 1970."""

    cluster_id: str
    directory_id: str
    broker_id: int
    written_ms: int
    """The time of the state copy."""
    own_topics: list[str]
    """The broker's own topics with records in the copy."""
    partitions: list[RestoredPartition]
    unknown_topics: list[UnknownTopic]
    notes: list[str]
    """What the restore has added to the state copy."""
    troubles: list[str]
    """Damage of objects, and of the copies that were not restored."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The cluster and the data directory to restore; None if the store has only one of them."""

    cluster_id: str | None = None
    directory_id: str | None = None


async def restore(
    store: Store,
    directory: str,
    choice: Choice = Choice(),  # noqa: B008 - immutable
    *,
    gap: int = GAP,
    progress: _Progress = lambda _done, _all: None,
) -> Restored:
    """Restore a data directory; `progress` gets the numbers of examined objects and of all objects.

    If the newest state copy is damaged, the copy before it is restored. Raises RestoreError, LogDirError, StoreErrors,
    and OSError.
    """
    _check_extra()
    _check_unused(directory)
    copies = await _copies(store, choice)
    os.makedirs(directory, exist_ok=True)
    lock = dir_lock.lock_directory(directory, restores=True)
    try:
        _check_unused(directory)
        troubles: list[str] = []
        for each in copies:
            _prepare(directory)
            try:
                state = await StateObject.open(store, each.name, each.size)
                return await _Restore(store, directory, state, gap, progress, list(troubles)).run()
            except (_DamagedCopyError, DamagedObjectError, ObjectNotFoundError, CorruptMetadata) as error:
                troubles.append(str(error))
        raise RestoreError(f"no copy of the state in {store.url} can be read: {troubles[-1]}")
    finally:
        os.close(lock)


async def _copies(store: Store, choice: Choice) -> list[StoredObject]:
    """Return the state copies of one data directory, the newest first. Raises RestoreError and StoreErrors."""
    found: dict[tuple[str, str], list[tuple[StateName, StoredObject]]] = defaultdict(list)
    async for each in store.list(folder_of_states()):
        name = parse_state_name(each.name)
        if name is None or choice.cluster_id not in (None, name.cluster_id):
            continue
        if choice.directory_id in (None, name.directory_id):
            found[name.cluster_id, name.directory_id].append((name, each))
    if not found:
        which = " of this cluster and data directory" if choice != Choice() else ""
        raise RestoreError(f"{store.url} has no copy of the state of a broker{which}")
    clusters = sorted({cluster for cluster, _ in found})
    if len(clusters) > 1:
        raise RestoreError(f"{store.url} has the state of several clusters: choose one of {', '.join(clusters)}")
    if len(found) > 1:
        newest = {key[1]: max(name.written_ms for name, _ in copies) for key, copies in found.items()}
        texts = [
            f"{each} (newest copy {_ago(newest[each])})" for each in sorted(newest, key=lambda each: -newest[each])
        ]
        raise RestoreError(f"{store.url} has the state of several data directories: choose one of {', '.join(texts)}")
    (copies,) = found.values()
    copies.sort(key=lambda pair: (pair[0].written_ms, pair[1].modified_ms, pair[1].name), reverse=True)
    return [each for _, each in copies]


def _ago(time_ms: int) -> str:
    """Return the age of a time in words."""
    seconds = max(time.time_ns() // 1_000_000 - time_ms, 0) // 1000
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} seconds ago"


def _check_extra() -> None:
    try:
        RemoteSegments()
    except ImportError:
        raise RestoreError(f"a restore needs the extra tiers: {how_to_install('tiers')}") from None


def _check_unused(directory: str) -> None:
    """Raise RestoreError if a directory has files, unless they are those of an interrupted restore."""
    names = set(os.listdir(directory)) - _NO_DATA if os.path.isdir(directory) else set()
    if dir_lock.is_restoring(directory):
        names = {name for name in names if not _is_of_restore(name)}
    if names - {_BEGUN}:
        raise RestoreError(f"{directory} is not empty: a restore needs a new directory")


def _is_of_restore(name: str) -> bool:
    """Whether a restore writes a file or folder of this name."""
    return name.removesuffix(".tmp") in _OWN_FILES or partition_of(name) is not None


def _prepare(directory: str) -> None:
    """Create the folder with the metadata, and remove all other files of an interrupted restore. Raises OSError."""
    begun, folder = f"{directory}/{_BEGUN}", f"{directory}/{RESTORE}"
    if not dir_lock.is_restoring(directory):
        os.makedirs(begun, exist_ok=True)
        write_file(f"{begun}/{JOURNAL}", b"")
        sync_directory(begun)
        os.rename(begun, folder)
        sync_directory(directory)
    for name in set(os.listdir(directory)) - _NO_DATA - {RESTORE}:
        path = f"{directory}/{name}"
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.remove(path)
    for name in os.listdir(folder):
        if name != JOURNAL:
            os.remove(f"{folder}/{name}")
    write_file(f"{folder}/{JOURNAL}", b"")


class _DamagedCopyError(Exception):
    """A part of the state copy is damaged."""


class _Restore:
    """One restore."""

    def __init__(
        self, store: Store, directory: str, state: StateObject, gap: int, progress: _Progress, troubles: list[str]
    ) -> None:
        self._store = store
        self._directory = directory
        self._state = state
        self._gap = gap
        self._progress = progress
        self._troubles = troubles
        self._notes: list[str] = []
        self._segments: FoundSegments | None = None
        self._now_ms = time.time_ns() // 1_000_000
        self._aside = f"{directory}/{RESTORE}"
        self._known = {(each.topic, each.partition): each for each in state.copy.ends}

    async def run(self) -> Restored:
        copy = self._state.copy
        self._write_properties()
        await self._write_metadata()
        objects = await objects_in(self._store)
        store = EmbeddedStore(self._aside)
        try:
            controller = Controller(store, copy.cluster_id, TopicDefaults(1, 1, {}))
            used = store.get(PRODUCER_IDS)
            controller.skip_producer_ids((int(used.value["next"]) if used else 0) + _SKIPPED_PRODUCER_IDS)
            self._complete_topics(controller, objects)
            topics = [each for each in controller.state.topics.values() if each.source is None]
            restored, epochs = await self._restore_logs(topics, objects)
            controller.raise_leader_epochs(epochs)
            unknown = self._unknown_topics(controller, objects)
        finally:
            store.close()
        self._finish()
        own = sorted({log.topic for log in copy.logs})
        facts = copy.cluster_id, copy.directory_id, copy.broker_id, copy.written_ms
        return Restored(*facts, own, restored, unknown, self._notes, self._troubles)

    def _write_properties(self) -> None:
        """Write the identity of the lost directory, so that its state copies belong to the new one."""
        copy = self._state.copy
        properties = {
            "version": "1",
            "node.id": str(copy.broker_id),
            "cluster.id": copy.cluster_id,
            "directory.id": copy.directory_id,
        }
        write_properties(f"{self._directory}/{META_PROPERTIES}", properties)

    async def _write_metadata(self) -> None:
        try:
            pieces = [bytes(piece) async for piece in self._state.pieces(0)]
        except DamagedObjectError as error:
            raise _DamagedCopyError(str(error)) from None
        write_file(f"{self._aside}/{SNAPSHOT}", snapshot_line(b"".join(pieces)))

    def _complete_topics(self, controller: Controller, objects: Objects) -> None:
        """Add what the copy is too old for: the topic about remote segments, and partitions that have objects."""
        node = self._state.copy.broker_id
        new = PartitionState((node,), (node,), node, 0)
        tiered = [each for each in controller.state.topics.values() if uses_remote_storage(each.configs)]
        counts: dict[bytes, int] = {}
        for topic_id, index in objects:
            counts[topic_id] = max(index + 1, counts.get(topic_id, 0))
        added = []
        for topic in tiered:
            count = counts.get(topic.topic_id, 0)
            if count > len(topic.partitions):
                more = count - len(topic.partitions)
                self._notes.append(f"{topic.name} gets {more} partitions that are newer than the copy of the state")
                added.append(replace(topic, partitions=(*topic.partitions, *(new,) * more)))
        if tiered and REMOTE_LOG_METADATA_TOPIC not in controller.state.topics:
            configs = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
            added.append(TopicState(REMOTE_LOG_METADATA_TOPIC, os.urandom(16), (new,) * PARTITIONS, configs))
        controller.put_topics(added)

    def _finish(self) -> None:
        """Move the metadata into the directory. Before that, all other files are on the disk."""
        sync_directory(self._directory)
        passed("restore.logs")
        for name in sorted(os.listdir(self._aside), key=lambda name: name == JOURNAL):
            os.replace(f"{self._aside}/{name}", f"{self._directory}/{name}")
            sync_directory(self._directory)
            sync_directory(self._aside)
            passed("restore.journal" if name == JOURNAL else "restore.snapshot")
        os.rmdir(self._aside)
        sync_directory(self._directory)

    # -- logs

    async def _restore_logs(
        self, topics: list[TopicState], objects: Objects
    ) -> tuple[list[RestoredPartition], dict[tuple[str, int], int]]:
        """Write the logs of all partitions; return the users' partitions, and the minimum of their leader epochs."""
        copied = {(log.topic, log.partition): (number, log) for number, log in enumerate(self._state.copy.logs, 1)}
        starts: dict[tuple[str, int], int] = {}
        users: list[tuple[TopicState, int]] = []
        for topic in topics:
            for index in range(len(topic.partitions)):
                found = copied.get((topic.name, index))
                if found is not None:
                    await self._write_copied(topic, *found)
                    starts[topic.name, index] = found[1].start
                elif topic.name in COPIED_TOPICS:
                    write_empty_log(self._directory, EmptyLog(topic.name, index, topic.topic_id, 0, 0), self._now_ms)
                else:
                    users.append((topic, index))
        passed("restore.own_topics")
        await self._find_segments(topics, objects)
        epochs: dict[tuple[str, int], int] = {}
        restored = []
        for begin in range(0, len(users), _AT_ONCE):
            some = users[begin : begin + _AT_ONCE]
            parts = await asyncio.gather(*(self._remote_part(*each) for each in some))
            for (topic, index), part in zip(some, parts, strict=True):
                done = self._write_user(topic, index, part)
                restored.append(done)
                starts[topic.name, index] = done.start
                newest = part.epochs[-1][0] if part.epochs else 0
                epochs[topic.name, index] = max(newest, topic.partitions[index].leader_epoch) + _SKIPPED_EPOCHS
        not_zero = {key: offset for key, offset in starts.items() if offset}
        checkpoints.write_offsets(f"{self._directory}/{checkpoints.LOG_STARTS}", not_zero)
        return restored, epochs

    async def _write_copied(self, topic: TopicState, number: int, log: LogCopy) -> None:
        copied = CopiedLog(topic.name, log.partition, topic.topic_id, log.segments)
        try:
            await copied.write(self._directory, self._state.pieces(number))
        except DamagedObjectError as error:
            raise _DamagedCopyError(str(error)) from None

    async def _find_segments(self, topics: list[TopicState], objects: Objects) -> None:
        metadata = next((each for each in topics if each.name == REMOTE_LOG_METADATA_TOPIC), None)
        if metadata is None:
            return
        starts = {key: each.start for key, each in self._known.items()}
        broker_id = self._state.copy.broker_id
        self._segments = FoundSegments(
            self._store, self._directory, metadata, objects, starts, broker_id, self._now_ms, self._troubles
        )
        await self._segments.learn([each for each in topics if uses_remote_storage(each.configs)], self._progress)

    async def _remote_part(self, topic: TopicState, index: int) -> RemotePart:
        if self._segments is None or not uses_remote_storage(topic.configs):
            return RemotePart()
        return await self._segments.part_of(topic, index)

    def _write_user(self, topic: TopicState, index: int, remote: RemotePart) -> RestoredPartition:
        """Write the directory of a user's partition."""
        known = self._known.get((topic.name, index)) or LogEnd(topic.name, index, 0, 0)
        known_end = max(known.end, remote.end)
        end = known_end + self._gap
        start = begin = known.start  # so committed offsets stay within the log
        if remote.end > known.start:
            start, begin = max(known.start, remote.start), remote.end
        log = EmptyLog(topic.name, index, topic.topic_id, begin, end, remote.epochs)
        write_empty_log(self._directory, log, self._now_ms)
        lost = known_end - max(remote.end, known.start)
        counts = remote.segments, lost, remote.deleted
        return RestoredPartition(topic.name, index, start, remote.end, end, *counts, remote.missing)

    def _unknown_topics(self, controller: Controller, objects: Objects) -> list[UnknownTopic]:
        """Return the topics with objects that the metadata do not name, and that nobody deletes."""
        found: dict[bytes, list[int]] = defaultdict(list)
        for (topic_id, _), some in objects.items():
            if topic_id not in controller.state.topic_names:
                found[topic_id].append(len(some))
        return [
            UnknownTopic(uuid_text(topic_id), len(each), sum(each))
            for topic_id, each in sorted(found.items())
            if self._segments is None or not self._segments.recorded.is_being_deleted(topic_id)
        ]
