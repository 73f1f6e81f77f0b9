"""The check of remote segments against the records in a data directory, without a broker.

Owns the comparison: each readable segment has a complete object, and each object has a record. Also owns the deletion
of orphans. A broker may use the directory meanwhile. So a finding counts only if the records still say the same at the
end.

An object without a record is an orphan only if nobody needs it: its records are before the log's start, or in other
segments. Any other such object may be the only copy of its records, and `kbroker log restore` reads it. So it is a
fault, and is never deleted. Objects of topics that the directory does not know may belong to another cluster.

Orphans are deleted only if there is no fault at all, if the directory has all records of the newest state copy, and
after a day. So neither a backup nor a second restored directory can delete what the broker needs.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.log import checkpoints
from kbroker.log.directories import dir_lock
from kbroker.log.directories.meta_properties import META_PROPERTIES, read_properties
from kbroker.log.directories.partition_dir_names import partition_path
from kbroker.log.files import LOG_SUFFIX, offset_name
from kbroker.log.offline.check import partitions_of
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.wire import uuid_text
from kbroker.remote.inspection import inspected
from kbroker.remote.object_client import StoredObject
from kbroker.remote.object_format import ObjectName, Part
from kbroker.remote.segment import RemoteSegment, SegmentState
from kbroker.remote.segment_objects import FilePart, SegmentObject, pieces_of
from kbroker.remote.segments import RemoteSegments
from kbroker.remote.state_object import LogCopy, StateObject, folder_of_states, parse_state_name
from kbroker.remote.store import Store
from kbroker.remote.store_errors import DamagedObjectError, ObjectNotFoundError, StoreError, WrongLengthError
from kbroker.restore.recorded_segments import Key, Objects, RecordedSegments, name_of, objects_in

_PAUSE_S: Final = 0.5
_DAY_MS: Final = 86_400_000
_AT_ONCE: Final = 16
_FINISHED: Final = SegmentState.COPY_SEGMENT_FINISHED


class CheckError(Exception):
    """The store cannot be checked against the directory. The text gives the reason in one line."""


class Fault(NamedTuple):
    """A segment that cannot be read, or an object whose records nothing else has."""

    name: str
    what: str
    is_recorded: bool = True


class Orphan(NamedTuple):
    """An object that nobody needs."""

    name: str
    modified_ms: int
    what: str


@dataclass(slots=True)
class StoreChecked:
    """The result of a check. Sizes are in bytes."""

    segments: int = 0
    """The number of readable segments."""
    size: int = 0
    """The bytes of their objects."""
    faults: list[Fault] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)
    deleted: list[Orphan] = field(default_factory=list)
    strangers: dict[str, int] = field(default_factory=dict)
    """The number of objects of each topic id that the directory does not know."""


async def check_store(store: Store, directory: str, *, deep: bool = False, sweep: bool = False) -> StoreChecked:
    """Compare a store with a data directory. With `deep`, read all bytes and compare them with their CRC32C.

    With `sweep`, also read all bytes, and then delete the orphans unless there is a fault. Raises CheckError,
    StoreErrors and OSError.
    """
    check = _Check(store, directory, deep=deep or sweep)
    found = await check.run()
    if sweep and not found.faults:
        if not check.is_proven:
            raise CheckError(
                f"no state of {directory} is in {store.url}: orphans are deleted only when there is one, and brokers of"
                " a cluster store none"
            )
        newest_ms = time.time_ns() // 1_000_000 - _DAY_MS
        old = [each for each in found.orphans if each.modified_ms <= newest_ms]
        found.orphans = [each for each in found.orphans if each.modified_ms > newest_ms]
        for each in old:
            try:
                await store.delete(each.name)
            except StoreError as error:
                found.faults.append(Fault(each.name, f"it is not deleted: {error}", is_recorded=False))
            else:
                found.deleted.append(each)
    return found


class _Check:
    """One check."""

    def __init__(self, store: Store, directory: str, *, deep: bool) -> None:
        self._store = store
        self._directory = directory
        self._deep = deep
        self._found = StoreChecked()
        self._damaged: set[bytes] = set()
        """The ids of the segments with a fault."""
        self.is_proven = False
        """Whether the directory has all records of the newest state copy."""

    async def run(self) -> StoreChecked:
        if dir_lock.is_restoring(self._directory):
            raise CheckError(f"{self._directory} is not completely restored")
        await self._compare_with_state()
        objects = await objects_in(self._store)  # before the records: a record is older than its object
        recorded = await self._records(objects)
        if not objects and not self.is_proven:
            raise CheckError(f"{self._store.url} has no object of a broker: is the address right?")
        names = {each.name: each for some in objects.values() for _, each in some}
        for shard in recorded.shards.values():
            for key, segments in shard.partitions.items():
                readable = [each for each in segments.all() if each.state is _FINISHED]
                for begin in range(0, len(readable), _AT_ONCE):
                    some = readable[begin : begin + _AT_ONCE]
                    await asyncio.gather(*(self._check_segment(key, each, names) for each in some))
        recorded.present -= self._damaged
        await self._check_objects(objects, recorded)
        if self._found.faults:
            self._found.faults = sorted(await self._lasting(self._found.faults))
        return self._found

    async def _records(self, objects: Objects) -> RecordedSegments:
        """Read the records of the directory. Raises CheckError if a part of them is not here, or cannot be read.

        A broker that writes meanwhile may leave a batch that is not complete yet.
        """
        indexes = sorted(
            index for topic, index in partitions_of(self._directory).values() if topic == REMOTE_LOG_METADATA_TOPIC
        )
        if indexes != list(range(len(indexes))) or not indexes:
            raise CheckError(f"{self._directory} does not have all partitions of {REMOTE_LOG_METADATA_TOPIC}")
        for pause_s in (_PAUSE_S, _PAUSE_S, 0):
            troubles: list[str] = []
            recorded = RecordedSegments(self._directory, len(indexes), objects, -1, troubles)
            recorded.read()
            if len(troubles) == len(recorded.cut):  # `_check_segment` tells about these
                return recorded
            await asyncio.sleep(pause_s)
        raise CheckError(f"the records about remote segments cannot be read: {troubles[0]}")

    async def _compare_with_state(self) -> None:
        """Compare the directory with its newest state copy. Raises CheckError for a directory without its records.

        An old backup does not know the newest segments, and would take their objects for orphans.
        """
        known = read_properties(os.path.join(self._directory, META_PROPERTIES)) or {}
        if not known.get("cluster.id") or not known.get("directory.id"):
            raise CheckError(f"{self._directory} has no {META_PROPERTIES} with cluster.id and directory.id")
        copies = [
            (name.written_ms, each.modified_ms, each)
            async for each in self._store.list(folder_of_states(known["cluster.id"]))
            if (name := parse_state_name(each.name)) is not None and name.directory_id == known["directory.id"]
        ]
        if not copies:
            return
        newest = max(copies, key=lambda copy: copy[:2])[2]
        try:
            state = await StateObject.open(self._store, newest.name, newest.size)
        except DamagedObjectError as error:
            raise CheckError(str(error)) from None
        for number, log in enumerate(state.copy.logs, 1):
            if log.topic == REMOTE_LOG_METADATA_TOPIC and self._checksum(log) != state.checksum(number):
                raise CheckError(
                    f"{self._directory} lacks records of its newest state in {self._store.url}: it is an older copy, or"
                    " another broker with the same directory.id uses the store"
                )
        self.is_proven = True

    def _checksum(self, log: LogCopy) -> int:
        """Return the CRC32C of the bytes that a state copy has of a log; -1 if a part of them is not here."""
        path, checksum = partition_path(self._directory, log.topic, log.partition), 0
        for base, size in log.segments:
            try:
                for piece in pieces_of(FilePart(offset_name(path, base, LOG_SUFFIX), size)):
                    checksum = crc32c(piece, checksum)
            except (FileNotFoundError, WrongLengthError):
                return -1
        return checksum

    def _starts(self) -> dict[Key, int]:
        """Return the log start offsets of the partitions in the directory. A log without a known start has 0."""
        starts = checkpoints.read_offsets(os.path.join(self._directory, checkpoints.LOG_STARTS))
        found = {}
        for path, key in partitions_of(self._directory).items():
            topic_id = checkpoints.read_topic_id(path)
            if topic_id is not None:
                found[topic_id.bytes, key[1]] = starts.get(key, 0)
        return found

    # -- segments

    async def _check_segment(self, key: Key, segment: RemoteSegment, names: dict[str, StoredObject]) -> None:
        name = name_of(key, segment)
        try:
            found = names.get(name) or await self._store.head(name)
            stored = await SegmentObject.open(self._store, name, segment.id, footer=segment.custom)
            if stored.layout.object_bytes != found.size:
                raise WrongLengthError(f"the object has {found.size} bytes, not {stored.layout.object_bytes}")
            if self._deep:
                await self._read(name, stored, segment)
        except ObjectNotFoundError:
            offsets = f"{segment.start_offset} to {segment.end_offset}"
            self._fault(name, segment, f"the object is missing; its offsets were {offsets}")
        except (DamagedObjectError, WrongLengthError) as error:
            self._fault(name, segment, str(error))
        else:
            self._found.segments += 1
            self._found.size += found.size

    def _fault(self, name: str, segment: RemoteSegment, what: str) -> None:
        self._found.faults.append(Fault(name, what))
        self._damaged.add(segment.id)

    async def _read(self, name: str, stored: SegmentObject, segment: RemoteSegment) -> None:
        """Read all parts of an object, and its footer. Raises DamagedObjectError for another content."""
        for part in Part:
            if stored.layout.lengths[part]:
                async for _ in stored.pieces(part):
                    pass
        if segment.custom is not None:
            await SegmentObject.open(self._store, name, segment.id)

    # -- objects

    async def _check_objects(self, objects: Objects, recorded: RecordedSegments) -> None:
        """Find the objects without a record."""
        starts = self._starts()
        known_ids = {topic_id for topic_id, _ in starts}
        for key, some in objects.items():
            segments = recorded.of(key)
            unknown = [pair for pair in some if not _is_recorded(segments, pair[0])]
            if not unknown or segments.deletion is not None:
                continue
            if key[0] not in known_ids:
                text = uuid_text(key[0])
                self._found.strangers[text] = self._found.strangers.get(text, 0) + len(unknown)
                continue
            for name, each in unknown:
                await self._check_unrecorded(name, each, recorded, starts.get(key, 0))

    async def _check_unrecorded(
        self, name: ObjectName, found: StoredObject, recorded: RecordedSegments, start: int
    ) -> None:
        try:
            segment = await inspected(self._store, found, name, -1)
        except ObjectNotFoundError:  # it was deleted meanwhile
            return
        except (DamagedObjectError, WrongLengthError) as error:
            text = f"no record names it, and it cannot be read: {error}"
            self._found.faults.append(Fault(found.name, text, is_recorded=False))
            return
        offsets = f"offsets {segment.start_offset} to {segment.end_offset}"
        if segment.end_offset < start:
            why = "its records are before the log's start"
        elif recorded.covers(recorded.of((name.topic_id, name.partition)), segment):
            why = "other segments have its records"
        else:
            text = f"no record names it, and no other segment has its records ({offsets})"
            self._found.faults.append(Fault(found.name, f"{text}: kbroker log restore reads them", is_recorded=False))
            return
        self._found.orphans.append(Orphan(found.name, found.modified_ms, f"no record names it ({offsets}), and {why}"))

    async def _lasting(self, faults: list[Fault]) -> list[Fault]:
        """Return the faults that the records still show: a broker may have deleted segments meanwhile."""
        now = await self._records({})
        live = {
            name_of(key, each)
            for shard in now.shards.values()
            for key, segments in shard.partitions.items()
            for each in segments.all()
            if each.state is _FINISHED
        }
        return [each for each in faults if each.name in live or not each.is_recorded]


def _is_recorded(segments: RemoteSegments, name: ObjectName) -> bool:
    known = segments.get(name.segment_id)
    return known is not None and known.start_offset == name.base_offset
