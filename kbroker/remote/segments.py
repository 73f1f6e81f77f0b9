"""The segments of one partition in remote storage, as the records of `__remote_log_metadata` determine them.

Owns the segments in all states except the last. Never reads or writes records, and never decides what to copy or
delete. Pure. The cost of a change grows with the logarithm of the number of segments. Segments are packed into some 300
bytes each.

A segment is referenced in a leader epoch while a lookup of an offset in that epoch can find it. All other segments of
the epoch are unreferenced: their copy or deletion is not complete, or a better copy has replaced them. Unreferenced
segments must be deleted.

Sources: RemoteLogMetadataCache and RemotePartitionMetadataStore of Apache Kafka 4.4 (KIP-405). One difference: in Kafka
a shorter copy within the records of a segment hides a part of the segment. Then lookups find only a part of the
records, although brokers may have removed all of them from their disks. Here the shorter copy becomes unreferenced.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.long_work import turn
from kbroker.remote.epoch_index import EpochIndex, first_key, id_of
from kbroker.remote.segment import (
    DeleteState,
    RemoteSegment,
    SegmentState,
    deletion_may_become,
    may_become,
    pack,
    packed_start,
    unpack,
)


class UnknownSegmentError(LookupError):
    """Raised for an update of a segment that is unknown or deleted (RemoteResourceNotFoundException)."""


class RemoteSegments:
    """The segments of one partition that are not yet deleted.

    Until `loaded` is set, records may begin in the middle of a segment's life: updates of unknown segments are dropped.
    """

    def __init__(self) -> None:
        self.loaded = False
        """Whether the records that existed before this broker began to read the partition have been applied."""
        self.deletion: DeleteState | None = None
        """The state of the partition's deletion; None if the partition is not being deleted."""
        self._packed: dict[bytes, bytes] = {}
        self._index = EpochIndex(self._start_of)
        self._counts = [0] * len(SegmentState)
        self._sizes = [0] * len(SegmentState)

    def __len__(self) -> int:
        return len(self._packed)

    def get(self, segment_id: bytes) -> RemoteSegment | None:
        """Return the segment with an id, in any state."""
        packed = self._packed.get(segment_id)
        return None if packed is None else unpack(segment_id, packed)

    def count(self, state: SegmentState) -> int:
        """Return the number of segments in a state."""
        return self._counts[state]

    def size(self, state: SegmentState) -> int:
        """Return the total size in bytes of the segments in a state."""
        return self._sizes[state]

    def add(self, segment: RemoteSegment) -> bool:
        """Record that a segment's copy has started. Return False if this transition is not legal.

        Raises ValueError for a segment in another state.
        """
        if segment.state is not SegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"a segment begins with COPY_SEGMENT_STARTED, not with {segment.state.name}")
        known = self.get(segment.id)
        if not may_become(None if known is None else known.state, segment.state):
            return False
        if known is not None:
            self._remove(known)
        self._keep(segment)
        for epoch, _ in segment.epochs:
            self._index.copy_started(epoch, segment.id)
        return True

    def update(
        self, segment_id: bytes, state: SegmentState, broker_id: int, event_timestamp_ms: int, custom: bytes | None
    ) -> bool:
        """Record the next state of a segment.

        Return False if the update is dropped: the transition is not legal, or the segment is still unknown. The update
        that deletes a readable segment must contain the segment's custom data. Otherwise its writer wants to delete an
        unfinished copy, and has not seen the end of the copy. Raises UnknownSegmentError, and ValueError for
        COPY_SEGMENT_STARTED, which only `add` accepts.
        """
        known = self.get(segment_id)
        if known is None:
            if not self.loaded:
                return False
            raise UnknownSegmentError(f"remote storage has no segment {segment_id.hex()}")
        if not may_become(known.state, state):
            return False
        if state is SegmentState.COPY_SEGMENT_STARTED:
            raise ValueError("an update cannot start the copy of a segment")
        if known.state is SegmentState.COPY_SEGMENT_FINISHED is not state and known.custom and not custom:
            return False
        if state is SegmentState.DELETE_SEGMENT_FINISHED:
            self._remove(known)
            return True
        segment = known.updated(state, broker_id, event_timestamp_ms, custom)
        self._count(known, -1)
        self._keep(segment)
        for epoch, start in segment.epochs:
            if state is SegmentState.COPY_SEGMENT_FINISHED and not self._is_covered(epoch, start, segment):
                self._index.copy_finished(epoch, start, segment.end_in_epoch(epoch), segment_id)
            elif state is SegmentState.DELETE_SEGMENT_STARTED:
                self._index.delete_started(epoch, start, segment_id)
        return True

    def _is_covered(self, epoch: int, start: int, segment: RemoteSegment) -> bool:
        """Whether a readable segment has all records that another one has in an epoch, and more."""
        found = self._index.floor(epoch, start)
        if found is None:
            return False
        known, end = self._known(found), segment.end_in_epoch(epoch)
        is_longer = known.end_in_epoch(epoch) > end
        return is_longer or (known.end_in_epoch(epoch) == end and dict(known.epochs)[epoch] < start)

    def delete_partition(self, state: DeleteState) -> bool:
        """Record the state of the partition's deletion. Return False if this transition is not legal.

        At DELETE_PARTITION_FINISHED all segments are forgotten.
        """
        if not deletion_may_become(self.deletion, state):
            return False
        self.deletion = state
        if state is DeleteState.DELETE_PARTITION_FINISHED:
            self._packed.clear()
            self._index.clear()
            self._counts = [0] * len(SegmentState)
            self._sizes = [0] * len(SegmentState)
        return True

    def find(self, epoch: int, offset: int) -> RemoteSegment | None:
        """Return the readable segment that contains an offset of a leader epoch."""
        found = self._index.floor(epoch, offset)
        if found is None:
            return None
        segment = self._known(found)
        return None if offset > segment.end_in_epoch(epoch) else segment

    def first(self) -> RemoteSegment | None:
        """Return the first readable segment in the lowest leader epoch with a readable segment."""
        found = self._index.first()
        return None if found is None else self._known(found)

    def first_from(self, epoch: int, start: int, end: int) -> RemoteSegment | None:
        """Return the first readable segment of a leader epoch that contains offsets of the epoch in [start, end)."""
        found = self.find(epoch, start)
        if found is not None:
            return found
        following = self._index.ceiling(epoch, start)
        segment = None if following is None else self._known(following)
        return segment if segment is not None and dict(segment.epochs)[epoch] < end else None

    def useless(self) -> Iterator[RemoteSegment]:
        """Yield the segments that no lookup can find: unfinished segments, and those that better copies have replaced.

        There can be very many segments: let other tasks run in between. A segment may be yielded twice.
        """
        for segment_id in self._index.unreferenced():
            segment = self._known(segment_id)
            if not any(self._index.refers_to(epoch, start, segment_id) for epoch, start in segment.epochs):
                yield segment

    def last(self, epoch: int) -> RemoteSegment | None:
        """Return the last readable segment of a leader epoch."""
        found = self._index.last(epoch)
        return None if found is None else self._known(found)

    async def find_with_aborted(self, epoch: int, offset: int) -> RemoteSegment | None:
        """Return the first readable segment of an epoch, from an offset on, that can have aborted transactions.

        The search skips segments without aborted transactions, as long as each segment continues the previous one
        (RemoteLogMetadataCache.nextSegmentWithTxnIndex). Contradictory leader epochs end the search, not the broker.
        """
        found = self.find(epoch, offset)
        while found is not None and found.no_aborted_transactions:
            await turn
            if found.end_offset < offset:
                return None
            offset = found.end_offset + 1
            found = self.find(epoch, offset)
        return found

    def highest_offset(self, epoch: int) -> int | None:
        """Return the highest offset of a leader epoch that has ever been readable.

        A deletion does not lower this offset.
        """
        return self._index.highest(epoch)

    def of_epoch(self, epoch: int) -> Iterator[RemoteSegment]:
        """Yield all segments of a leader epoch in any state, in the order of their start offsets.

        There may be very many: let other tasks run in between. A segment that changes meanwhile may be yielded twice.
        """
        after_one = after_other = first_key(epoch)
        while True:
            one = self._index.next_referenced(after_one, epoch)
            other = self._index.next_unreferenced(after_other, epoch)
            if one is not None and (other is None or self._start_of(id_of(one)) <= self._start_of(id_of(other))):
                after_one = one
                yield self._known(id_of(one))
            elif other is not None:
                after_other = other
                yield self._known(id_of(other))
            else:
                return

    def unreferenced(self, epoch: int) -> Iterator[bytes]:
        """Yield the ids of a leader epoch's unreferenced segments in the order of start offsets, like `of_epoch`."""
        after = first_key(epoch)
        while (found := self._index.next_unreferenced(after, epoch)) is not None:
            after = found
            yield id_of(found)

    def all(self) -> Iterator[RemoteSegment]:
        """Yield all segments in any state and in no order.

        Segments that appear or disappear meanwhile may be missing.
        """
        for segment_id in list(self._packed):
            segment = self.get(segment_id)
            if segment is not None:
                yield segment

    def _known(self, segment_id: bytes) -> RemoteSegment:
        return unpack(segment_id, self._packed[segment_id])

    def _start_of(self, segment_id: bytes) -> int:
        return packed_start(self._packed[segment_id])

    def _keep(self, segment: RemoteSegment) -> None:
        self._packed[segment.id] = pack(segment)
        self._count(segment, 1)

    def _remove(self, known: RemoteSegment) -> None:
        for epoch, _ in known.epochs:
            self._index.delete_finished(epoch, known.id)
        del self._packed[known.id]
        self._count(known, -1)

    def _count(self, segment: RemoteSegment, by: int) -> None:
        self._counts[segment.state] += by
        self._sizes[segment.state] += by * segment.size
