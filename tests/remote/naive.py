"""Kafka's rules of remote segments, said as plainly as possible: everything is searched, nothing is indexed.

With `loses`, a shorter copy with the same start replaces a segment, which is no longer listed in its epoch, and a copy
within a segment hides the segment's end, as in Apache Kafka 4.4. Otherwise such copies replace and hide nothing.
"""

from __future__ import annotations

import random

from kbroker.remote.segment import RemoteSegment, SegmentState

STARTED, FINISHED, DELETING, DELETED = SegmentState


class NaiveSegments:
    def __init__(self, loses: bool = False) -> None:
        self.loses = loses
        self.known: dict[bytes, RemoteSegment] = {}
        self.readable: dict[int, dict[int, bytes]] = {}
        self.others: dict[int, set[bytes]] = {}
        self.highest: dict[int, int] = {}

    def reach(self, segment: RemoteSegment) -> None:
        """Take a segment in its new state; the transition is legal."""
        for epoch, start in segment.epochs:
            readable, others = self.readable.setdefault(epoch, {}), self.others.setdefault(epoch, set())
            if segment.state is FINISHED:
                self.finish(epoch, start, segment)
            elif segment.state is DELETED:
                others.discard(segment.id)
            else:
                others.add(segment.id)
                if readable.get(start) == segment.id:
                    del readable[start]
        self.known[segment.id] = segment
        if segment.state is DELETED:
            del self.known[segment.id]

    def finish(self, epoch: int, start: int, segment: RemoteSegment) -> None:
        readable, others = self.readable[epoch], self.others[epoch]
        end = segment.end_in_epoch(epoch)
        before = [at for at in readable if at <= start]
        if before and not self.loses:
            at = max(before)
            covers = self.known[readable[at]].end_in_epoch(epoch)
            if covers > end or (covers == end and at < start):
                others.add(segment.id)
                return
        if epoch not in self.highest or self.highest[epoch] <= end:
            for later in [each for each in readable if each >= start]:
                others.add(readable.pop(later))
        elif start in readable and not self.loses:
            others.add(readable[start])
        readable[start] = segment.id
        others.discard(segment.id)
        self.highest[epoch] = max(end, self.highest.get(epoch, end))

    def find(self, epoch: int, offset: int) -> bytes | None:
        starts = [start for start in self.readable.get(epoch, {}) if start <= offset]
        if not starts:
            return None
        segment = self.known[self.readable[epoch][max(starts)]]
        return segment.id if offset <= segment.end_in_epoch(epoch) else None

    def ids(self, epoch: int) -> set[bytes]:
        return {*self.readable.get(epoch, {}).values(), *self.others.get(epoch, ())}


EPOCHS = range(5)
EPOCH_STARTS = (0, 30, 35, 70, 100)


def small_segment(rng: random.Random, segment_id: bytes) -> RemoteSegment:
    """Return a segment of a small log: its epochs are those of the log, or, rarely, any."""
    start = rng.randrange(0, 110, rng.choice([1, 5, 10]))
    end = start + rng.randrange(30)
    epochs = {
        epoch: max(first, start)
        for epoch, first in enumerate(EPOCH_STARTS)
        if first <= end and (epoch + 1 == len(EPOCH_STARTS) or EPOCH_STARTS[epoch + 1] > start)
    }
    if rng.random() < 0.1:
        epochs = {rng.choice(EPOCHS): rng.randrange(end + 1) for _ in range(rng.randint(1, 3))}
    return RemoteSegment(
        segment_id,
        start,
        end,
        max_timestamp_ms=end,
        event_timestamp_ms=1,
        broker_id=1,
        size=rng.randrange(1000),
        epochs=tuple(sorted(epochs.items())),
        no_aborted_transactions=rng.random() < 0.7,
    )
