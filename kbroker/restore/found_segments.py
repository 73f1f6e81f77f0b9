"""The remote segments that a restore finds: those of the restored records, and those of newer objects.

Owns the comparison of the objects in the store with the records of `__remote_log_metadata` in a restored directory, and
the records that are added there. An object is complete or absent. So an object without a record of its end is readable,
even if the broker was lost before it wrote that record. Never deletes an object.

A record whose object is absent counts only if no present object has its offsets. Such records at the beginning of a
partition belong to deleted segments. Later ones are holes: the records stay, so that reads there fail with an error.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kbroker.cluster_state import TopicState
from kbroker.coordination.encoding import record_batch
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.log.directories.partition_dir_names import partition_path
from kbroker.log.files import LOG_SUFFIX, offset_name
from kbroker.protocol.wire import uuid_text
from kbroker.remote.inspection import inspected
from kbroker.remote.metadata_records import (
    MetadataRecord,
    encode_record,
    segment_record,
    update_record,
)
from kbroker.remote.object_client import StoredObject
from kbroker.remote.object_format import ObjectName, Part, read_epochs_bytes
from kbroker.remote.segment import RemoteSegment, SegmentState
from kbroker.remote.segment_objects import SegmentObject
from kbroker.remote.segments import RemoteSegments
from kbroker.remote.store import Store
from kbroker.remote.store_errors import DamagedObjectError, ObjectNotFoundError, WrongLengthError
from kbroker.restore.recorded_segments import Key, Objects, RecordedSegments, name_of
from kbroker.restore.restored_logs import bases_in

_AT_ONCE: Final = 16
_BATCH_RECORDS: Final = 500
_STARTED: Final = SegmentState.COPY_SEGMENT_STARTED
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED


@dataclass(slots=True)
class RemotePart:
    """The records of a partition in remote storage. Offsets are absolute."""

    start: int = 0
    """The first offset."""
    end: int = 0
    """The end of the records; 0 if there are none."""
    segments: int = 0
    """The number of present segments."""
    deleted: int = 0
    """The number of recorded segments before the first offset whose objects are absent: they count as deleted."""
    missing: list[str] = field(default_factory=list)
    """The names of missing objects after the first offset."""
    epochs: Sequence[tuple[int, int]] = ()
    """A pair (leader epoch, first offset) for each leader epoch of the records."""


class FoundSegments:
    """The remote segments of the topics that use remote storage.

    `metadata` is the topic `__remote_log_metadata`, whose logs are in `directory`. `starts` has the known start offset
    of partitions, by topic and index. First call `learn`.
    """

    def __init__(
        self,
        store: Store,
        directory: str,
        metadata: TopicState,
        objects: Objects,
        starts: Mapping[tuple[str, int], int],
        broker_id: int,
        now_ms: int,
        troubles: list[str],
    ) -> None:
        self._store = store
        self._directory = directory
        self._metadata = metadata
        self._objects = objects
        self._starts = starts
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._troubles = troubles
        self._deleted: dict[Key, int] = {}
        self.recorded = RecordedSegments(directory, len(metadata.partitions), objects, broker_id, troubles)

    async def learn(self, topics: Iterable[TopicState], progress: Callable[[int, int], None]) -> None:
        """Read the records, examine the objects of topics without a complete record, and add records about these.

        `progress` gets the numbers of examined and of all such objects. Raises StoreErrors and OSError.
        """
        self.recorded.read()
        names = {topic.topic_id: topic.name for topic in topics}
        unknown = [
            pair
            for key, found in self._objects.items()
            for pair in found
            if key[0] in names and self._is_unknown(key, pair[0])
        ]
        added: dict[int, list[CoordinatorRecord]] = defaultdict(list)
        for begin in range(0, len(unknown), _AT_ONCE):
            progress(begin, len(unknown))
            some = unknown[begin : begin + _AT_ONCE]
            for (name, _), segment in zip(some, await asyncio.gather(*map(self._inspect, some)), strict=True):
                if segment is not None:
                    owner = names[name.topic_id], name.topic_id, name.partition
                    added[self.recorded.place(owner[1:])] += self._records_of_object(owner, segment)
        progress(len(unknown), len(unknown))
        for index, shard in self.recorded.shards.items():
            for key in [each for each in shard.partitions if each[0] in names]:
                added[index] += self._records_of_deleted((names[key[0]], *key))
        for index, records in added.items():
            self._append(index, records)

    async def part_of(self, topic: TopicState, index: int) -> RemotePart:
        """Return the records of a partition in remote storage. Raises StoreErrors."""
        key = topic.topic_id, index
        segments = self.recorded.of(key)
        readable = [each for each in segments.all() if each.state is _FINISHED]
        missing = [name_of(key, each) for each in readable if each.id not in self.recorded.present]
        found = RemotePart(0, 0, len(readable) - len(missing), self._deleted.get(key, 0), sorted(missing))
        last, first = _last(segments, readable), segments.first()
        if last is not None and first is not None:
            found.start, found.end = max(first.start_offset, first.epochs[0][1]), last.end_offset + 1
            found.epochs = await self._epochs(key, last, readable, found.missing)
        return found

    # -- records

    def _is_unknown(self, key: Key, name: ObjectName) -> bool:
        known = self.recorded.of(key).get(name.segment_id)
        return known is None or known.state is _STARTED

    def _records_of_object(self, owner: tuple[str, bytes, int], segment: RemoteSegment) -> list[CoordinatorRecord]:
        """Return the records about the segment of an object, after applying them.

        A segment whose offsets are all in other present objects, or before the partition's start, is recorded as a
        started copy. So the broker deletes its object.
        """
        known = self.recorded.of(owner[1:])
        made: list[MetadataRecord] = []
        if known.get(segment.id) is None:
            made.append(segment_record(*owner, segment))
        is_needed = segment.end_offset >= self._starts.get((owner[0], owner[2]), 0)
        if is_needed and not self.recorded.covers(known, segment):
            made.append(self._update(owner, segment, _FINISHED))
        return self._applied(owner, made)

    def _records_of_deleted(self, owner: tuple[str, bytes, int]) -> list[CoordinatorRecord]:
        """Return records that delete the absent segments that nobody misses, after applying them.

        These are the segments before the first present one, and those whose offsets present segments have. If all
        segments are absent, all are missed.
        """
        known = self.recorded.of(owner[1:])
        readable = [each for each in known.all() if each.state is _FINISHED]
        begin = min((each.start_offset for each in readable if each.id in self.recorded.present), default=-1)
        absent = [each for each in readable if each.id not in self.recorded.present]
        first = {each.id for each in absent if each.end_offset < begin and each.id not in self.recorded.cut}
        gone = [each for each in absent if each.id in first or self.recorded.covers(known, each)]
        self._deleted[owner[1:]] = len(first)
        records = []
        for state in (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED):
            records += self._applied(owner, [self._update(owner, each, state) for each in gone])
        return records

    def _update(self, owner: tuple[str, bytes, int], segment: RemoteSegment, state: SegmentState) -> MetadataRecord:
        return update_record(*owner, segment.updated(state, self._broker_id, self._now_ms, segment.custom))

    def _applied(self, owner: tuple[str, bytes, int], made: list[MetadataRecord]) -> list[CoordinatorRecord]:
        key = f"{uuid_text(owner[1])}-{owner[2]}".encode()
        records = [CoordinatorRecord(key, encode_record(each)) for each in made]
        shard = self.recorded.shards[self.recorded.place(owner[1:])]
        for record in records:
            shard.replay(record.value or b"")
        return records

    def _append(self, index: int, records: list[CoordinatorRecord]) -> None:
        """Append records to a partition of the topic, and sync them to the disk. Raises OSError."""
        path = partition_path(self._directory, self._metadata.name, index)
        with open(offset_name(path, bases_in(path)[-1], LOG_SUFFIX), "ab") as file:
            for begin in range(0, len(records), _BATCH_RECORDS):
                some = records[begin : begin + _BATCH_RECORDS]
                batch = record_batch(some, self._metadata.partitions[index].leader_epoch, None, self._now_ms)
                file.write(self.recorded.log_ends[index].to_bytes(8, "big") + batch[8:])
                self.recorded.log_ends[index] += len(some)
            file.flush()
            os.fsync(file.fileno())

    # -- objects

    async def _inspect(self, pair: tuple[ObjectName, StoredObject]) -> RemoteSegment | None:
        """Return the segment of an object; None if the object is damaged or was deleted meanwhile."""
        try:
            return await inspected(self._store, pair[1], pair[0], self._broker_id)
        except (DamagedObjectError, ObjectNotFoundError, WrongLengthError) as error:
            self._troubles.append(str(error))
            self.recorded.present.discard(pair[0].segment_id)
            return None

    async def _epochs(
        self, key: Key, last: RemoteSegment, readable: list[RemoteSegment], missing: list[str]
    ) -> Sequence[tuple[int, int]]:
        """Return all leader epochs up to the last segment: its object has them. Without it, all segments together."""
        name = name_of(key, last)
        try:
            stored = await SegmentObject.open(self._store, name, last.id, footer=last.custom)
            return read_epochs_bytes(await stored.whole(Part.LEADER_EPOCHS))
        except (DamagedObjectError, ObjectNotFoundError, WrongLengthError) as error:
            self._troubles.append(str(error))
            if name not in missing:
                missing.append(name)
        starts: dict[int, int] = {}
        for segment in readable:
            for epoch, begin in segment.epochs:
                starts[epoch] = min(begin, starts.get(epoch, begin))
        return sorted(starts.items())


def _last(segments: RemoteSegments, readable: list[RemoteSegment]) -> RemoteSegment | None:
    """Return the last readable segment of the newest leader epoch."""
    for epoch in sorted({epoch for each in readable for epoch, _ in each.epochs}, reverse=True):
        found = segments.last(epoch)
        if found is not None:
            return found
    return None
