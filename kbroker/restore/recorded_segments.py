"""The remote segments that a data directory knows: the records of `__remote_log_metadata` in its logs.

Owns the reading of these records without a broker, and of the names of the objects in a store. Never writes.

An object is complete or absent. Its first record is older than the object: `COPY_SEGMENT_STARTED` is on the disk before
the copy begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from kbroker.cluster_state import REMOTE_LOG_METADATA_TOPIC
from kbroker.log.batch_scan import scan_batches
from kbroker.log.directories.partition_dir_names import partition_path
from kbroker.log.files import LOG_SUFFIX, offset_name
from kbroker.log.offline.audit import OpenFile
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import compute_crc, read_records
from kbroker.remote.metadata_records import metadata_partition
from kbroker.remote.object_client import StoredObject
from kbroker.remote.object_format import ObjectName, parse_object_name, read_footer
from kbroker.remote.segment import RemoteSegment
from kbroker.remote.segments import RemoteSegments
from kbroker.remote.store import Store
from kbroker.remote.store_errors import DamagedObjectError
from kbroker.restore.restored_logs import bases_in
from kbroker.tiers.metadata import MetadataShard

_RECORDS_BYTES: Final = 1 << 30
Key = tuple[bytes, int]
"""A topic id and a partition."""
Objects = Mapping[Key, Sequence[tuple[ObjectName, StoredObject]]]
"""The objects of each partition, the oldest object first."""


async def objects_in(store: Store) -> Objects:
    """Return all objects of segments in a store. Raises StoreErrors."""
    found: dict[Key, list[tuple[ObjectName, StoredObject]]] = defaultdict(list)
    async for each in store.list(""):
        name = parse_object_name(each.name)
        if name is not None and name.text() == each.name:
            found[name.topic_id, name.partition].append((name, each))
    for objects in found.values():
        objects.sort(key=lambda pair: (pair[1].modified_ms, pair[0].base_offset))
    return found


def name_of(key: Key, segment: RemoteSegment) -> str:
    """Return the name of a segment's object."""
    return ObjectName(*key, segment.start_offset, segment.id).text()


class RecordedSegments:
    """The segments that the records name. First call `read`.

    `count` is the number of partitions of `__remote_log_metadata`. `objects` are those in the store.
    """

    def __init__(self, directory: str, count: int, objects: Objects, broker_id: int, troubles: list[str]) -> None:
        self._directory = directory
        self._count = count
        self._broker_id = broker_id
        self._troubles = troubles
        self.shards: dict[int, MetadataShard] = {}
        self.log_ends: dict[int, int] = {}
        """The log end offset of each partition of the topic."""
        self.present: set[bytes] = {name.segment_id for found in objects.values() for name, _ in found}
        """The ids of segments with an object in the store, without the `cut` ones."""
        self.cut: set[bytes] = set()
        """The ids of recorded segments whose objects have another length."""
        self._objects = objects

    def read(self) -> None:
        """Apply the records. Texts about damaged batches and missing records go to the troubles. Raises OSError."""
        for index in range(self._count):
            shard = self.shards[index] = MetadataShard(self._broker_id)
            path = partition_path(self._directory, REMOTE_LOG_METADATA_TOPIC, index)
            end = 0
            for base in bases_in(path):
                if base != end:
                    self._troubles.append(
                        f"{REMOTE_LOG_METADATA_TOPIC}-{index} has no records from offset {end} to {base - 1}"
                    )
                end = max(base, self._read_file(shard, index, offset_name(path, base, LOG_SUFFIX), base))
            self.log_ends[index] = end
        for key, found in self._objects.items():
            segments = self.of(key)
            for name, stored in found:
                segment = segments.get(name.segment_id)
                if segment is not None and not _has_length(segment, stored.size):
                    self._troubles.append(f"{stored.name} has {stored.size} bytes, and its record says another length")
                    self.cut.add(segment.id)
        self.present -= self.cut

    def _read_file(self, shard: MetadataShard, index: int, path: str, base: int) -> int:
        """Apply the records of a segment's file; return the end offset."""
        end, position = base, 0
        with OpenFile(path) as file:
            for place, header, batch in scan_batches(file, 0, file.size):
                where = f"{REMOTE_LOG_METADATA_TOPIC}-{index} at offset {header.base_offset}"
                if compute_crc(batch) != header.crc or header.base_offset != end:
                    self._troubles.append(f"{where}: the batch is damaged")
                try:
                    for record in read_records(batch, max_bytes=_RECORDS_BYTES):
                        if record.value is not None:
                            shard.replay(record.value)
                except Malformed as error:
                    self._troubles.append(f"{where}: {error}")
                end, position = header.last_offset + 1, place + header.size
            if position != file.size:
                self._troubles.append(f"{path} has no complete batch at byte {position}")
        return end

    def place(self, key: Key) -> int:
        """Return the partition of the topic that has the records of a partition."""
        return metadata_partition(*key, self._count)

    def of(self, key: Key) -> RemoteSegments:
        """Return the segments of a partition."""
        return self.shards[self.place(key)].partitions.get(key) or RemoteSegments()

    def is_being_deleted(self, topic_id: bytes) -> bool:
        """Whether the records contain the deletion of a topic, which the broker continues."""
        every = (pair for shard in self.shards.values() for pair in shard.partitions.items())
        return any(key[0] == topic_id and segments.deletion is not None for key, segments in every)

    def covers(self, known: RemoteSegments, segment: RemoteSegment) -> bool:
        """Whether present readable segments have all offsets of a segment, in its leader epochs."""
        for number, (epoch, begin) in enumerate(segment.epochs):
            following = segment.epochs[number + 1 :]
            end = following[0][1] if following else segment.end_offset + 1
            at = begin
            while at < end:
                found = known.find(epoch, at)
                if found is None or found.id not in self.present:
                    return False
                at = found.end_in_epoch(epoch) + 1
        return True


def _has_length(segment: RemoteSegment, size: int) -> bool:
    """Whether an object has the length that the record of its segment names. True if the record cannot be read."""
    if segment.custom is None:
        return True
    try:
        return read_footer(segment.custom, None).object_bytes == size
    except DamagedObjectError:
        return True
